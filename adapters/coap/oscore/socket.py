"""One UDP socket whose peers may protect their messages (RFC 8613), without the socket.

A request with the OSCORE option is unprotected and handed to the endpoint of its context's user; that endpoint's
responses are protected, each bound to its request. Other datagrams go to the endpoint of peers without protection. The
gateway is asked for a context that is not known yet (`gateway.port.oscore`), once a message has shown that its sender
has the keys, and again while it is in use, so that one
that was removed ends within `CHECK_MS`.

Messages that come again are recognised before they are unprotected, for the replay window has seen them (7.5.1).
"""

from collections.abc import Sequence

import msgspec

from adapters.coap.codec.registry import (
    ACK,
    BAD_OPTION,
    BAD_REQUEST,
    CON,
    ECHO,
    EMPTY,
    FETCH,
    MAX_AGE,
    OBSERVE,
    RST,
    SERVICE_UNAVAILABLE,
    UNAUTHORIZED,
)
from adapters.coap.codec.wire import HEADER_BYTES, MessageFormatError, Packet, decode, encode_options, read_options
from adapters.coap.endpoint.endpoint import CoapEndpoint
from adapters.coap.exchanges.answers import Answer
from adapters.coap.exchanges.exchanges import Exchange
from adapters.coap.exchanges.message_ids import InnerMessageIds, SocketMessageIds
from adapters.coap.messages.blocks import SharedTransfers
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.messages.times import SocketTime
from adapters.coap.oscore.association import Association, Replies
from adapters.coap.oscore.context import NumbersUsedUpError, ProtectionError, RequestId, SecurityContext
from adapters.coap.oscore.contexts import Contexts, HeldContext
from adapters.coap.oscore.messages import (
    OuterOptionError,
    ProtectedRequest,
    inner_datagram,
    options_of,
    plaintext_of,
    protected_datagram,
    read_protected,
)
from adapters.coap.oscore.option import CoseError, Fields, has_oscore
from adapters.coap.secured.endpoints import Endpoints, SecuredEndpoint
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Deliverable, Deliveries, Effect, Outcome, Peer, Random, Token

PEERS_COUNT_MAX = 8  # addresses of one context; the one that was heard longest ago is forgotten
RETRY_AFTER_S = 2


class OscoreSocket:
    """The `DatagramAdapter` of CoAP with OSCORE."""

    def __init__(self, settings: CoapOptions, time: SocketTime | None = None, *, random: Random) -> None:
        self._time = time
        self._settings = settings
        self._random = random
        self._transfers = SharedTransfers(settings)
        self._inner = msgspec.structs.replace(settings, exchange_lifetime_ms=0, amplification_max=0)
        self._replies = Replies(lifetime_ms=settings.exchange_lifetime_ms, bytes_max=settings.block_bytes_max)
        self._endpoints = Endpoints(self._new_endpoint)
        self._contexts = Contexts(
            new_token=self._endpoints.new_token,
            forget_peers=self._forget_peers,
            is_genuine=_is_genuine,
            forged=self._forged,
            random=random,
        )
        self._by_inner: dict[Peer, tuple[HeldContext, Association]] = {}
        self._by_address: dict[Peer, dict[Peer, SecuredEndpoint]] = {}  # the names inside of an address
        self._output: list[tuple[bytes, Peer]] = []
        self._effects: list[Effect] = []

    def _new_endpoint(self, who: Principal | None) -> CoapEndpoint:
        """Makes an endpoint. Peers behind OSCORE share block transfers, are no strangers, and repeat nothing here."""
        if who is None:
            shared = SocketMessageIds(self._random.getrandbits(16), shared=True)
            plain = CoapEndpoint(self._settings, random=self._random, mids=shared, time=self._time)
            shared.answered_apart += plain.exchanges.answered_apart, self._answered_apart
            return plain
        mids = InnerMessageIds(self._endpoints.plain.core.mids, _outer_of)
        endpoint = CoapEndpoint(self._inner, random=self._random, transfers=self._transfers, mids=mids, time=self._time)
        endpoint.admit(who)
        return endpoint

    def _answered_apart(self, peer: Peer, mid: int) -> bool:
        """Returns whether a protected request of an address has a response in a message of its own."""
        return any(self._replies.answered_apart(inner, mid) for inner in self._by_address.get(peer, ()))

    # ---- the port

    def receive(self, datagrams: Sequence[tuple[bytes, Peer]], *, now_ms: int) -> Sequence[Effect]:
        """Takes datagrams that arrived together."""
        plain: list[tuple[bytes, Peer]] = []
        for data, peer in datagrams:
            if len(data) < HEADER_BYTES or data[0] >> 6 != 1 or data[1] >> 5:
                plain.append((data, peer))
            elif data[1] == EMPTY:
                plain.append((data, peer))
                for inner, endpoint in self._by_address.get(peer, {}).items():
                    self._effects += self._endpoints.receive(endpoint, [(data, inner)], now_ms)
            elif has_oscore(data):
                self._receive_protected(data, peer, now_ms)
            else:
                plain.append((data, peer))
        effects: list[Effect] = []
        if plain or not datagrams:
            effects += self._endpoints.receive(self._endpoints.plain, plain, now_ms)
        return self._turn(effects, now_ms)

    def completed(self, token: Token, outcome: Outcome, *, now_ms: int) -> Sequence[Effect]:
        """Takes the outcome of an effect."""
        parked = self._contexts.completed(token, outcome, now_ms)
        if parked is None:
            self._effects += self._endpoints.completed(token, outcome, now_ms)
        for data, peer in parked or ():
            if outcome.error is not None:
                self._refuse(data, peer, outcome.error, now_ms)
            else:
                self._receive_protected(data, peer, now_ms)
        return self._turn([], now_ms)

    def deliver(self, deliveries: Deliverable, *, now_ms: int) -> int:
        """Notifies observers."""
        if not isinstance(deliveries, Deliveries):
            return 0
        taken = self._endpoints.deliver(deliveries, now_ms)
        self._send(now_ms)
        return taken

    def tick(self, *, now_ms: int) -> Sequence[Effect]:
        """Runs the timers that are due."""
        self._replies.expire(now_ms)
        self._transfers.expire(now_ms)
        return self._turn(self._endpoints.tick(now_ms), now_ms)

    def deadline_ms(self) -> int | None:
        """Returns the earliest of all that waits; at once where something is to be asked of the gateway."""
        if self._effects or self._contexts.effects:
            return 0
        deadlines = (self._endpoints.deadline_ms(), self._replies.deadline_ms())
        return min([deadline for deadline in deadlines if deadline is not None], default=None)

    def take_output(self) -> Sequence[tuple[bytes, Peer]]:
        """Returns the datagrams to send now."""
        output, self._output = self._output, []
        return output

    def _turn(self, effects: list[Effect], now_ms: int) -> Sequence[Effect]:
        self._send(now_ms)
        effects = [*effects, *self._effects, *self._contexts.effects]
        self._effects, self._contexts.effects = [], []
        return effects

    def _forget_peers(self, held: HeldContext) -> None:
        for peer in list(held.peers):
            self._forget_peer(held, peer)

    def _forget_peer(self, held: HeldContext, peer: Peer) -> None:
        association = held.peers.pop(peer)
        del self._by_inner[association.inner]
        names = self._by_address[peer]
        endpoint = names.pop(association.inner)
        if not names:
            del self._by_address[peer]
        endpoint.core.forget(association.inner)
        self._effects += self._endpoints.take_effects(endpoint)

    # ---- requests

    def _receive_protected(self, data: bytes, peer: Peer, now_ms: int) -> None:
        """Takes a request with the OSCORE option (RFC 8613, 8.2)."""
        try:
            packet = decode(data)
        except MessageFormatError:
            self._effects += self._endpoints.receive(self._endpoints.plain, [(data, peer)], now_ms)
            return
        try:
            request = read_protected(packet)
        except CoseError:
            self._answer(packet, peer, BAD_OPTION, "Failed to decode COSE", now_ms)
            return
        except OuterOptionError as error:
            if packet.type == CON:
                self._answer(packet, peer, BAD_OPTION, str(error), now_ms)
            return
        assert request.fields.kid is not None
        held = self._contexts.find((request.fields.kid, request.fields.kid_context), data, peer, now_ms)
        if held is None:
            return
        reply = self._replies.find(_inner_name(held, peer), packet.mid, data, now_ms, ours=False)
        if reply is not None:
            if reply:
                self._output.append((reply, peer))
            return
        plaintext = self._unprotect(held, peer, packet, request, data, now_ms)
        inner = None if plaintext is None else inner_datagram(data, plaintext, observe=request.observe)
        if inner is not None:
            self._take(held, peer, packet, request, data, inner, now_ms)

    def _unprotect(  # noqa: PLR0917 - the parts of the request known by now
        self, held: HeldContext, peer: Peer, packet: Packet, request: ProtectedRequest, data: bytes, now_ms: int
    ) -> bytes | None:
        """Returns the plaintext of a request that is genuine and new; answers another one, or has it wait."""
        context, piv, kid = held.context, request.fields.piv, request.fields.kid
        assert context is not None
        assert piv is not None
        assert kid is not None
        knows = context.knows_requests
        if knows and not context.is_new(piv):
            self._answer(packet, peer, UNAUTHORIZED, "Replay detected", now_ms)
            return None
        bound = RequestId(kid, piv, packet.code == FETCH)
        try:
            plaintext = context.unprotect(bound, request.ciphertext)
            if inner_datagram(b"\x40\0\0\0", plaintext, observe=None) is None:
                raise ProtectionError
        except ProtectionError:
            self._answer(packet, peer, BAD_REQUEST, "Decryption failed", now_ms)
            return None
        if knows:
            context.note(piv)
        elif not _has_echo(plaintext, held.echo):
            self._ask_for_echo(held, peer, packet, bound)
            return None
        elif held.elsewhere:
            self._contexts.take(held, data, peer)
            return None
        else:
            context.begin_after(piv)
        return plaintext

    def _take(  # noqa: PLR0917 - the parts of the request known by now
        self,
        held: HeldContext,
        peer: Peer,
        packet: Packet,
        request: ProtectedRequest,
        data: bytes,
        inner: bytes,
        now_ms: int,
    ) -> None:
        """Hands a genuine request to the endpoint of its user: its address is its client's from now on."""
        fields = request.fields
        assert held.opened is not None
        assert fields.kid is not None
        assert fields.piv is not None
        association = self._associate(held, peer)
        self._replies.put(association.inner, packet.mid, data, b"", now_ms, ours=False)
        association.asked(packet.mid, packet.token, RequestId(fields.kid, fields.piv, packet.code == FETCH))
        endpoint = self._endpoints.of(held.opened.principal.name, held.opened.principal)
        self._by_address[peer][association.inner] = endpoint
        self._effects += self._endpoints.receive(endpoint, [(inner, association.inner)], now_ms)

    def _associate(self, held: HeldContext, peer: Peer) -> Association:
        """Returns the association of an address in a context; a new address replaces the one silent longest."""
        association = held.peers.pop(peer, None)
        if association is None:
            assert held.context is not None
            assert held.opened is not None
            if len(held.peers) >= PEERS_COUNT_MAX:
                self._forget_peer(held, next(iter(held.peers)))
            association = Association(held.context, peer, _inner_name(held, peer))
            self._by_inner[association.inner] = held, association
            endpoint = self._endpoints.of(held.opened.principal.name, held.opened.principal)
            self._by_address.setdefault(peer, {})[association.inner] = endpoint
        held.peers[peer] = association
        return association

    def _ask_for_echo(self, held: HeldContext, peer: Peer, packet: Packet, bound: RequestId) -> None:
        """Asks a client to prove that its request is new, after the replay window was lost (RFC 8613, B.1.2)."""
        context = held.context
        assert context is not None
        plaintext = bytes((UNAUTHORIZED,)) + encode_options([(ECHO, held.echo)])
        kind = ACK if packet.type == CON else packet.type
        mid = packet.mid if packet.type == CON else packet.mid ^ self._endpoints.plain.core.mids.mask
        first = 0x40 | kind << 4 | len(packet.token)
        data = bytes((first, UNAUTHORIZED, mid >> 8, mid & 0xFF)) + packet.token
        try:
            piv, ciphertext = context.protect(bound, plaintext, own_number=True)
        except NumbersUsedUpError:
            return
        fields = Fields(piv)
        sent = protected_datagram(data, observe=None, fetched=bound.fetched, fields=fields, ciphertext=ciphertext)
        self._output.append((sent, peer))

    def _forged(self, data: bytes, peer: Peer, now_ms: int) -> None:
        """Answers a request that no keys of its context have protected."""
        self._answer(decode(data), peer, BAD_REQUEST, "Decryption failed", now_ms)

    def _refuse(self, data: bytes, peer: Peer, refusal: Refusal, now_ms: int) -> None:
        """Answers a request whose context cannot be used (RFC 8613, 8.2)."""
        packet = decode(data)
        if refusal.cause is Cause.UNAUTHENTICATED:
            self._answer(packet, peer, UNAUTHORIZED, "Security context not found", now_ms)
        else:
            self._answer(packet, peer, SERVICE_UNAVAILABLE, "try again", now_ms, max_age_s=RETRY_AFTER_S)

    def _answer(
        self, packet: Packet, peer: Peer, code: int, diagnostic: str, now_ms: int, *, max_age_s: int = 0
    ) -> None:
        """Answers a request without protection: it could not be unprotected. No cache may keep that (Max-Age 0)."""
        tag = packet.mid.to_bytes(2, "big") + packet.token
        exchange = Exchange(peer, tag, b"", now_ms, packet.type == CON)
        options = ((MAX_AGE, max_age_s.to_bytes(1, "big") if max_age_s else b""),)
        self._endpoints.plain.core.answer(exchange, Answer(code, options, diagnostic.encode()), now_ms)
        self._endpoints.collect(self._endpoints.plain)

    # ---- responses

    def _send(self, now_ms: int) -> None:
        """Takes the endpoints' datagrams: as they are, or protected."""
        output, self._endpoints.output = self._endpoints.output, []
        for endpoint, data, peer in output:
            if endpoint is self._endpoints.plain:
                self._output.append((data, peer))
                continue
            found = self._by_inner.get(peer)
            if found is None:
                continue  # its context was removed
            held, association = found
            mid = data[2] << 8 | data[3]
            kind = data[0] >> 4 & 3
            if data[1] == EMPTY:
                sent: bytes | None = data
            else:
                sent = self._protect(held, endpoint, association, data, mid, now_ms)
            if sent is None:
                continue
            if kind in {ACK, RST}:
                self._replies.answer(peer, mid, sent)
            self._output.append((sent, association.outer))

    def _protect(  # noqa: PLR0917 - the parts of the response known by now
        self,
        held: HeldContext,
        endpoint: SecuredEndpoint,
        association: Association,
        data: bytes,
        mid: int,
        now_ms: int,
    ) -> bytes | None:
        """Returns a response protected; None where its request is not known any more (RFC 8613, 8.3).

        A retransmission is the same datagram: a Confirmable message of ours keeps its Partial IV.
        """
        piggybacked = data[0] >> 4 & 3 == ACK
        if not piggybacked:
            again = self._replies.find(association.inner, mid, data, now_ms, ours=True)
            if again is not None:
                return again
        token = data[HEADER_BYTES : HEADER_BYTES + (data[0] & 15)]
        mask = endpoint.core.mids.mask
        pending = association.request_of(mid, token, mask=mask, piggybacked=piggybacked)
        if pending is None:
            return None
        self._contexts.check(held, now_ms)
        options, end = options_of(data)
        observe = dict(options).get(OBSERVE)
        own_number = observe is not None or not pending.nonce_unused
        try:
            piv, ciphertext = association.context.protect(
                pending.id, plaintext_of(data, options, end), own_number=own_number
            )
        except NumbersUsedUpError:
            return None  # the numbers asked for are on their way
        pending.nonce_unused = False
        if observe is None:
            association.answered(mid, token, mask=mask, piggybacked=piggybacked)
        else:
            association.observes(token, pending.id)
        sent = protected_datagram(
            data, observe=observe, fetched=pending.id.fetched, fields=Fields(piv), ciphertext=ciphertext
        )
        if data[0] >> 4 & 3 == CON:
            self._replies.put(association.inner, mid, data, sent, now_ms, ours=True)
        return sent


def _is_genuine(context: SecurityContext, data: bytes) -> bool:
    """Returns whether a request, which is read already, was protected with the keys of a context."""
    packet = decode(data)
    request = read_protected(packet)
    assert request.fields.kid is not None
    assert request.fields.piv is not None
    try:
        context.unprotect(RequestId(request.fields.kid, request.fields.piv, packet.code == FETCH), request.ciphertext)
    except ProtectionError:
        return False
    return True


def _inner_name(held: HeldContext, peer: Peer) -> Peer:
    """Returns the name that the endpoint of a context's user knows an address by."""
    assert held.opened is not None
    return (*peer, held.opened.name)


def _outer_of(inner: Peer) -> Peer:
    """Returns the address of a peer that `_inner_name` has named."""
    return inner[:-1]


def _has_echo(plaintext: bytes, echo: bytes) -> bool:
    """Returns whether a request has this Echo."""
    return (ECHO, echo) in read_options(plaintext, 1)[0]
