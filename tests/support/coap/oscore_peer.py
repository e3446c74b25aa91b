"""A client's side of OSCORE for tests: aiocoap's protection, put into datagrams; and a gateway that has contexts."""

from random import Random
from typing import Any

from aiocoap import Message as CoapMessage
from aiocoap import oscore
from aiocoap.message import Direction

from adapters.coap import FACTORY
from adapters.coap.codec.wire import Packet, decode
from adapters.coap.messages.settings import CoapOptions
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Call, Outcome
from gateway.port.oscore import ContextKeys, FindKeys, NextLostContexts, OpenContext, OpenedContext
from store.api.message import Message
from tests.support.coap.coap_driver import PEER, Driver, request

SECRET = bytes(range(1, 17))
SALT = bytes.fromhex("9e7ca92223786340")


class ClientContext(oscore.CanProtect, oscore.CanUnprotect, oscore.SecurityContextUtils):
    """aiocoap's side of a context, whose state is in memory."""

    echo_recovery = None

    def __init__(self, sender_id=b"\x01", recipient_id=b"", *, secret=SECRET, salt=SALT, id_context=None, algorithm=10):
        (self.alg_aead,) = [one for one in oscore.algorithms.values() if one.value == algorithm]
        self.hashfun = oscore.hashfunctions[oscore.DEFAULT_HASHFUNCTION]
        self.id_context = id_context
        self.sender_id, self.recipient_id = sender_id, recipient_id
        self.sender_sequence_number = 0
        self.derive_keys(salt, secret)
        self.recipient_replay_window = oscore.ReplayWindow(32, lambda: None)
        self.recipient_replay_window.initialize_empty()
        self.ids: dict[bytes, Any] = {}  # of requests, by token
        self.mid = 0

    def post_seqnoincrease(self):
        pass

    def keys(self) -> ContextKeys:
        """Returns the server's keys."""
        return ContextKeys(
            secret=SECRET,
            salt=SALT,
            sender_id=self.recipient_id,
            recipient_id=self.sender_id,
            id_context=self.id_context,
            algorithm=self.alg_aead.value,
        )

    def protect_request(self, path, code=2, *, token=b"tk", type=0, **parts):
        """Returns the datagram of a protected request."""
        self.mid += 1
        plain = CoapMessage.decode(request(path, code, mid=self.mid, token=token, type=type, **parts))
        plain.direction = Direction.OUTGOING
        outer, self.ids[token] = self.protect(plain)
        outer.mid, outer.token, outer.mtype = self.mid, token, type
        return outer.encode()

    def open_response(self, datagram: bytes) -> CoapMessage:
        """Returns the response in a protected datagram."""
        outer = CoapMessage.decode(datagram)
        outer.direction = Direction.INCOMING
        return self.unprotect(outer, self.ids[outer.token])[0]


class OscoreDriver(Driver):
    """A socket with OSCORE, and its gateway, which has these contexts."""

    def __post_init__(self) -> None:
        self.socket = FACTORY.bind(CoapOptions(oscore=True, **self.settings), random=Random(7))
        self.endpoint = self.socket.inner
        self.contexts: dict[Any, tuple[str, ContextKeys]] = {}  # by kid and kid context: the user
        self.numbers: dict[str, int] = {}  # next sender sequence number, by name
        self.taken: set[str] = set()  # names that the socket holds
        self.elsewhere: set[str] = set()  # names that another socket holds
        self.watching: list[Any] = []
        self.who: list[Any] = []  # behind the effects, in their order
        (asked,) = self.receive()
        if self.admit:
            self.endpoint.completed(asked.token, Outcome(value=Principal(name="")), now_ms=self.now_ms)
        self.asked = asked.token

    def provision(self, user: str, client: ClientContext) -> None:
        self.contexts[client.sender_id, client.id_context] = user, client.keys()

    def lose(self, *names: str) -> None:
        """Tells the endpoint that another process owns these contexts now."""
        self.taken -= set(names)
        token = self.watching.pop()
        self.complete(list(self.endpoint.completed(token, Outcome(value=names), now_ms=self.now_ms)))

    def restart(self) -> None:
        """Ends the process and begins it again with what is durable."""
        kept = self.contexts, self.numbers, self.stored
        self.subscriptions.clear()
        self.__post_init__()
        self.contexts, self.numbers, self.stored = kept

    def complete(self, effects: list[Any], outcome: Outcome | None = None) -> None:
        for effect in effects:
            if hasattr(effect, "who"):
                self.who.append(effect.who)
            if isinstance(effect, Call) and isinstance(effect.request, FindKeys):
                found = self._find(effect.request)
                self.complete(list(self.endpoint.completed(effect.token, found, now_ms=self.now_ms)))
            elif isinstance(effect, Call) and isinstance(effect.request, OpenContext):
                self.complete(
                    list(self.endpoint.completed(effect.token, self._open(effect.request), now_ms=self.now_ms))
                )
            elif isinstance(effect, Call) and isinstance(effect.request, NextLostContexts):
                self.watching.append(effect.token)
            else:
                super().complete([effect], outcome)

    def _find(self, asked: FindKeys) -> Outcome:
        found = self.contexts.get((asked.kid, asked.id_context))
        return Outcome(error=Refusal(Cause.UNAUTHENTICATED, "none")) if found is None else Outcome(value=found[1])

    def _open(self, asked: OpenContext) -> Outcome:
        found = self.contexts.get((asked.kid, asked.id_context))
        if found is None:
            return Outcome(error=Refusal(Cause.UNAUTHENTICATED, "none"))
        user, keys = found
        name = f"{user}/{keys.recipient_id.hex()}"
        first, unused, taken = self.numbers.get(name, 0), name not in self.numbers, name not in self.taken
        self.numbers[name] = first + asked.numbers
        elsewhere = name in self.elsewhere and not asked.proven
        if elsewhere:
            taken = False
        else:
            self.elsewhere.discard(name)
            self.taken.add(name)
        return Outcome(
            value=OpenedContext(
                name=name,
                keys=keys,
                principal=Principal(name=user),
                first=first,
                taken=taken,
                unused=unused,
                elsewhere=elsewhere,
            )
        )

    def raw(self, *datagrams: bytes, peer: Any = PEER) -> list[bytes]:
        """Hands over datagrams, carries out what they ask for, and returns the datagrams that come back."""
        self.complete(self.receive(*datagrams, peer=peer))
        return [data for data, _ in self.endpoint.take_output()]

    def protected(
        self, client: ClientContext, path: str, code: int = 2, *, peer: Any = PEER, **parts: Any
    ) -> CoapMessage:
        """Sends one protected request, and returns the one protected response."""
        (data,) = self.raw(client.protect_request(path, code, **parts), peer=peer)
        return client.open_response(data)

    def code(self, *datagrams: bytes, peer: Any = PEER) -> str:
        """Returns the outer code of the one response to some datagrams."""
        (packet,) = [decode(data) for data in self.raw(*datagrams, peer=peer)]
        assert isinstance(packet, Packet)
        return f"{packet.code >> 5}.{packet.code & 31:02d} {packet.payload.decode(errors='replace')}".strip()


def served(**settings: object) -> tuple[OscoreDriver, ClientContext]:
    """Returns a socket, and a client of it that is provisioned."""
    driver = OscoreDriver(dict(settings), last=Message(address="a/b", body=b"hello", id="1", content_type="text/plain"))
    client = ClientContext()
    driver.provision("dev42", client)
    return driver, client
