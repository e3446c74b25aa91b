"""One MQTT connection: bytes and time in, effects and bytes out (`gateway.port.adapter.Adapter`)."""

from collections.abc import Sequence

from msgspec.structs import replace

from adapters.mqtt.codec.decoder import decode, peek_version
from adapters.mqtt.codec.packet_type import PacketType
from adapters.mqtt.codec.packets import Auth, Connack, Connect, Disconnect
from adapters.mqtt.codec.reason import CONNACK_CODES, DISCONNECTING, SENT_AGAIN, ReasonCode
from adapters.mqtt.connecting import handshake
from adapters.mqtt.connecting.authentication import Authentication, AuthTurn, disproven
from adapters.mqtt.connecting.connection_context import ConnectionContext
from adapters.mqtt.connecting.handshake import ConnectTerms
from adapters.mqtt.connecting.phases import GATES, NEXT, UNPROVEN, Phase
from adapters.mqtt.messages.options import Options
from adapters.mqtt.receiving.keep_alive import KeepAlive
from adapters.mqtt.session.session import MqttSession
from adapters.mqtt.session.session_state import NO_EXCHANGES, NO_STATE, load
from adapters.mqtt.session.singles import singles
from gateway.domain.errors import Cause, ProtocolError, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import (
    Authenticate,
    Challenge,
    Close,
    ConnectionInfo,
    Deliverable,
    Effect,
    Outcome,
    Publish,
    Random,
    Token,
)
from gateway.port.sessions import DropWill, EndSession, OpenedSession, OpenSession
from gateway.port.single import Single

LAST_TURNS_COUNT = 16  # of a connection that is gone, at once; later input is lost with it
_GATED = 1 << 62  # more bytes than ever come: nothing is parsed


class MqttConnection:
    """A client of MQTT 3.1, 3.1.1 or 5.0, from its first byte to its last."""

    singles_max = 1  # `Receive Maximum` is for all messages in flight, and the session counts those it knows

    __slots__ = (
        "_anonymous",
        "_authentication",
        "_connect_by_ms",
        "_ends_ms",
        "_expires_ms",
        "_final",
        "_needed",
        "_options",
        "_random",
        "_terms",
        "context",
        "held",
        "info",
        "keep_alive",
        "phase",
        "session",
        "wants_data",
    )

    def __init__(self, info: ConnectionInfo, options: Options, random: Random) -> None:
        self.info = info
        self.phase = Phase.AWAITING_CONNECT
        self.wants_data = True
        self._options = options
        self._random = random
        self.context = ConnectionContext(options)
        self.session = MqttSession(self.context, self._control, self._not_saved)
        self._terms: ConnectTerms | None = None  # set by the CONNECT
        self._anonymous = True  # it offered no name and password
        self._authentication: Authentication | None = None  # set by a CONNECT with a method
        self._final = b""  # the method's last word, for the CONNACK
        self._expires_ms: int | None = None  # when the credentials expire
        self._ends_ms: int | None = None  # the earlier of that and the time-out of an AUTH
        self.held = bytearray()  # input that is not parsed yet
        self._needed = 0  # bytes of it that make parsing worth while
        self._connect_by_ms: int | None = None  # None: before the first input
        self.keep_alive = KeepAlive()  # no interval until the client is connected

    # ---- the port

    @property
    def closed(self) -> bool:
        """Returns whether the connection has ended, by whichever side."""
        return self.phase is Phase.CLOSED

    def receive(self, data: bytes | memoryview, *, now_ms: int) -> Sequence[Effect]:
        """Takes bytes from the client, cut anywhere."""
        if self.phase is Phase.CLOSED:
            return ()
        self._start(now_ms)
        self.keep_alive.received_ms = now_ms
        held = self.held
        if held or self.phase in GATES:
            if len(held) + len(data) < self._needed:
                held += data
                return ()
            data = b"".join((held, data))
            held.clear()
        elif not isinstance(data, bytes):
            data = bytes(data)
        self._parse(data, now_ms)
        return self._finish(now_ms)

    @staticmethod
    def singles(reads: Sequence[tuple["MqttConnection", bytes]], now_ms: int) -> Sequence[Sequence[Single]]:
        """Returns the message of each read that is one plain PUBLISH of QoS 1."""
        return singles(reads, now_ms, connected=Phase.CONNECTED)

    def publish_of(self, single: Single) -> Publish:
        """Returns the request that `receive` would have made of the gateway."""
        return self.session.intake.publish_of(single)

    def completed(self, token: Token, outcome: Outcome, *, now_ms: int) -> Sequence[Effect]:
        """Takes the outcome of an effect, done or refused."""
        try:
            if not self.session.intake.stored(token, outcome) and self.phase is not Phase.CLOSED:
                self.context.answered(token, outcome, now_ms)
        except ProtocolError as error:
            self._fail(error.code, error.detail)
        return self._finish(now_ms)

    def deliver(self, deliveries: Deliverable, *, now_ms: int) -> int:
        """Takes messages for this client. Those that it has no room for are offered again after `Settled`."""
        return self.session.deliver(deliveries, now_ms) if self.phase is Phase.CONNECTED else 0

    def tick(self, *, now_ms: int) -> Sequence[Effect]:
        """Handles the timers due, as a deadline has come."""
        self._start(now_ms)
        if self.phase in UNPROVEN and self._connect_by_ms is not None and now_ms >= self._connect_by_ms:
            self._close(f"no {'CONNECT' if self.phase is Phase.AWAITING_CONNECT else 'AUTH'} in time")
        if self._ends_ms is not None and now_ms >= self._ends_ms and self.phase is Phase.CONNECTED:
            expired = self._ends_ms == self._expires_ms
            self._fail(ReasonCode.NOT_AUTHORIZED, "the credentials have expired" if expired else "no AUTH in time")
        if self.session.revoked and self.phase is Phase.CONNECTED:
            self._fail(ReasonCode.NOT_AUTHORIZED, "the right to read a shared subscription was revoked")
        if self.keep_alive.is_over(now_ms, reading=self.wants_data):
            self._fail(ReasonCode.KEEP_ALIVE_TIMEOUT, "no packet within the keep alive")
        return self._finish(now_ms)

    def deadline_ms(self) -> int | None:
        """Returns when `tick` is due next; 0: at once."""
        if self.phase in UNPROVEN:
            return self._connect_by_ms or 0
        if self.phase is not Phase.CONNECTED:
            return None
        due_ms, silence_ms = self.session.deadline_ms(), self.keep_alive.limit_ms()
        if due_ms is None or (silence_ms is not None and silence_ms < due_ms):
            due_ms = silence_ms
        if self._ends_ms is not None:
            return self._ends_ms if due_ms is None else min(due_ms, self._ends_ms)
        return due_ms

    def superseded(self, *, now_ms: int) -> Sequence[Effect]:
        """Closes, as the client has connected again, here or elsewhere (MQTT-3.1.4-3)."""
        self._parse_last(now_ms)
        code = ReasonCode.SESSION_TAKEN_OVER if self.phase is Phase.CONNECTED else ReasonCode.SERVER_BUSY  # in CONNACK
        self._fail(code, "the session was taken over")
        self.session.last_words()  # from then on the session is no longer ours to save
        return self._finish(now_ms)

    def shutdown(self, *, now_ms: int, dismissed: bool = False) -> Sequence[Effect]:
        """Closes: the gateway is going down, or this client is to go."""
        self._fail(*handshake.leaving(self._options, connected=self.phase is Phase.CONNECTED, dismissed=dismissed))
        return self._finish(now_ms)

    def lost(self, *, now_ms: int) -> Sequence[Effect]:
        """Ends, as the connection is gone. Work that a later connection relies on is done now."""
        self._parse_last(now_ms)
        if self.phase is not Phase.CLOSED:
            self._end()
        self.session.end()
        return self.context.take_effects()

    def take_output(self) -> bytes:
        """Returns the bytes to write to the client now."""
        return self.context.take_output()

    # ---- input

    def _parse(self, data: bytes, now_ms: int) -> None:
        """Parses whole packets and keeps the rest."""
        intake = self.session.intake
        at = 0
        try:
            if self.phase is Phase.AWAITING_CONNECT:
                at = self._read_connect(data)
            elif self.phase is Phase.CHALLENGED:
                at = self._read_answer(data)
            if self.phase is Phase.CONNECTED:
                at = intake.read(data, now_ms)
                self._needed = intake.needed
        except ProtocolError as error:
            self._fail(error.code, error.detail)
        if self.phase is not Phase.CLOSED and at < len(data):
            self.held += data[at:]

    def _parse_held(self, now_ms: int) -> None:
        data = bytes(self.held)
        self.held.clear()
        self._parse(data, now_ms)

    def _parse_last(self, now_ms: int) -> None:
        """Parses input that waited for its turn, which does not come any more: the DISCONNECT may be in it."""
        for _ in range(LAST_TURNS_COUNT):
            if self.phase is Phase.CONNECTED and self.session.intake.has_more:
                self._parse_held(now_ms)

    def _control(self, first: int, body: bytes) -> bool:
        """Acts on any packet but PUBLISH once connected; returns whether to read on. Raises `ProtocolError`."""
        packet = decode(first, body, self.context.version)
        if isinstance(packet, Disconnect):
            self._disconnected(packet)
            return False
        if isinstance(packet, Auth):
            self._reauthenticate(packet)
        else:
            self.session.handle(packet)
        return True

    def _finish(self, now_ms: int) -> Sequence[Effect]:
        """Ends every input: makes progress, saves, sets back-pressure, and returns the effects of it all."""
        session = self.session
        if self.phase is Phase.CONNECTED:
            if session.intake.held_up and not session.exact.waits:
                self._parse_held(now_ms)
            session.advance(now_ms)
        stored = session.intake.unstored_bytes < self._options.unstored_bytes_max
        waits = session.exact.waits or session.intake.has_more or session.keeper.full
        self.wants_data = stored and self.phase not in GATES and not waits
        return self.context.take_effects()

    def _start(self, now_ms: int) -> None:
        """Starts the clock with the first time that is given."""
        if self._connect_by_ms is None:
            self._connect_by_ms = now_ms + self._options.connect_timeout_s * 1_000

    # ---- the way in

    def _read_connect(self, data: bytes) -> int:
        """Reads the CONNECT, once it is all there; returns how many bytes it took. Raises `ProtocolError`."""
        if data and data[0] != PacketType.CONNECT << 4:
            self._close("the first packet is no CONNECT")
            return 0
        frame, self._needed = handshake.whole(data, self._options)
        if frame is None:
            return 0
        body = data[frame.start : frame.end]
        self.context.speak(peek_version(body) or 0)  # the words for whatever is wrong with the rest
        packet = decode(frame.first, body, self.context.version)
        assert isinstance(packet, Connect)
        self._connected(packet)
        return frame.end

    def _connected(self, connect: Connect) -> None:
        """Asks who the client of a CONNECT is. Nothing more is parsed until the gateway has answered."""
        terms = self._terms = handshake.agree(connect, self._options, self._random, self.info.gateway)
        self.context.client_id = terms.client_id
        self.context.packet_bytes_max = terms.packet_bytes_max
        self._anonymous = terms.method is not None or (connect.username is None and connect.password is None)
        if terms.method is None:
            self._ask_who(handshake.authentication(connect, terms))
            return
        self._authentication = Authentication(terms.method, self.context, username=connect.username or "")
        self._ask_who(self._authentication.begin(connect.properties.authentication_data))

    def _ask_who(self, request: Authenticate) -> None:
        self._needed = _GATED
        self.phase = NEXT[self.phase]
        self.context.call(request, self._authenticated)

    def _authenticated(self, outcome: Outcome, now_ms: int) -> None:
        """Asks for the session, as the client is known; or for more proof."""
        terms = self._terms
        assert terms is not None
        if outcome.error is not None:
            self._refuse(outcome.error)
            return
        if isinstance(outcome.value, Challenge):
            self._challenged(outcome.value, now_ms)
            return
        if self._authentication is not None:
            self._authentication.check_patience(self.held)
        principal: Principal = outcome.value
        self.context.principal = "" if principal.anonymous else None
        self.context.device = terms.client_id if principal.anonymous else principal.device
        self.context.permissions = principal.permissions
        self._final, self._expires_ms = principal.final, principal.expires_at_ms
        self.phase = NEXT[self.phase]
        request = OpenSession(
            session_id=terms.client_id,
            clean=terms.clean,
            expiry_s=terms.expiry_s,
            will=handshake.will_of(terms, self.context),
        )
        self.context.call(request, self._opened)

    def _opened(self, outcome: Outcome, now_ms: int) -> None:
        """Begins the session: sends CONNACK, restores the saved state, and reads the input received meanwhile."""
        terms = self._terms
        assert terms is not None
        if outcome.error is not None:
            self._refuse(outcome.error)
            return
        opened: OpenedSession = outcome.value
        # A state that cannot be read is no session: the CONNACK says so, and the client subscribes anew.
        state, exchanges = load(opened.state, NO_STATE), load(opened.exchanges, NO_EXCHANGES)
        present = opened.present and not terms.clean and state is not None and exchanges is not None
        if self._authentication is not None:
            self._authentication.check_patience(self.held)
            self._authentication.end()
        if not self.context.send(handshake.welcome(terms, self._options, session_present=present, final=self._final)):
            self._drop_will()
            self._close("the client takes no packet as large as a CONNACK")
            return
        self.phase = NEXT[self.phase]
        self.keep_alive.received_ms, self.keep_alive.interval_ms = now_ms, terms.keep_alive_s * 1_000
        self._ends_ms, self._final = self._expires_ms, b""
        self.session.begin(opened, terms)
        if present and state is not None and exchanges is not None:
            self.session.resume(state, exchanges, opened)
        if self.held:
            self._parse_held(now_ms)

    def _refuse(self, why: Refusal) -> None:
        code = CONNACK_CODES[why.cause]
        if why.cause is Cause.UNAUTHENTICATED and self._anonymous:
            code = ReasonCode.NOT_AUTHORIZED
        self._fail(code, why.detail)

    # ---- proving it in several steps (4.12)

    def _challenged(self, challenge: Challenge, now_ms: int) -> None:
        """Answers the gateway's challenge, and reads the input received meanwhile. Raises `ProtocolError`."""
        assert self._authentication is not None, "only methods have challenges"
        self._authentication.challenge(challenge)
        if self.phase is Phase.AUTHENTICATING:
            self.phase = Phase.CHALLENGED
            self._needed = 0
            self._parse_held(now_ms)

    def _read_answer(self, data: bytes) -> int:
        """Reads a client's answer to a challenge, AUTH or DISCONNECT; returns its length. Raises `ProtocolError`."""
        frame, self._needed = handshake.whole(data, self._options)
        if frame is None:
            return 0
        packet = decode(frame.first, data[frame.start : frame.end], self.context.version)
        if isinstance(packet, Auth):
            assert self._authentication is not None
            self._ask_who(self._authentication.receive(packet))
        elif isinstance(packet, Disconnect):
            self._close("")
        else:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "only AUTH and DISCONNECT may come before CONNACK")
        return frame.end

    def _reauthenticate(self, packet: Auth) -> None:
        """Takes an AUTH of a connected client, which keeps its identity meanwhile (4.12.1). Raises `ProtocolError`."""
        if self._authentication is None:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH without an authentication method in CONNECT")
        begins = self._authentication.turn is AuthTurn.NOBODY
        self.context.call(self._authentication.receive(packet), self._proven)
        if begins:
            by_ms = self.keep_alive.received_ms + self._options.connect_timeout_s * 1_000
            self._ends_ms = by_ms if self._expires_ms is None else min(by_ms, self._expires_ms)

    def _proven(self, outcome: Outcome, now_ms: int) -> None:
        """Acts on the gateway's answer to an AUTH of a connected client. Raises `ProtocolError`."""
        if outcome.error is not None:
            raise disproven(outcome.error)
        if isinstance(outcome.value, Challenge):
            self._challenged(outcome.value, now_ms)
            return
        assert self._authentication is not None
        self._authentication.proven(outcome.value)
        self._ends_ms = self._expires_ms = outcome.value.expires_at_ms

    # ---- the way out

    def _disconnected(self, packet: Disconnect) -> None:
        """Takes a DISCONNECT, which may change will and session expiry (3.14). Raises `ProtocolError`."""
        asked_s, context = packet.properties.session_expiry_s, self.context
        if asked_s and not context.durable:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "a session without expiry cannot be given one")
        if packet.code == ReasonCode.SUCCESS:
            self._drop_will()
        if asked_s == 0 and context.durable:
            context.durable = False
            context.call(EndSession())
        elif asked_s:
            assert self._terms is not None
            self._terms = replace(self._terms, expiry_s=handshake.granted_expiry(asked_s, self._options))
            self.session.keeper.save_now(self._terms.expiry_s)
        self._close("")

    def _drop_will(self) -> None:
        if self._terms is not None and self._terms.will is not None:
            self.context.call(DropWill())

    def _not_saved(self, why: Refusal) -> None:
        """Fails the connection: packets that waited for the save can never be sent, so the client has to reconnect."""
        self._fail(DISCONNECTING.get(why.cause, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR), why.detail)

    def _fail(self, code: int, detail: str) -> None:
        """Ends the connection and says why, as far as the client's version has a word for it."""
        context, again = self.context, False
        if self.phase is Phase.CONNECTED:
            again = code in SENT_AGAIN
            if context.version == 5:
                explained = Disconnect(code=code, properties=handshake.explanation(code, detail, self._options))
                context.send_or(explained, Disconnect(code=code))
        elif self.phase is not Phase.CLOSED and context.version:
            connack = handshake.refusal(context.version, code, detail, self._options)
            if connack is not None:
                context.send_or(connack, Connack(code=connack.code))
        self._close(detail, again=again)

    def _close(self, reason: str, *, again: bool = False) -> None:
        if self.phase is not Phase.CLOSED:
            self.held.clear()
            self.context.close()
            self._end()
            self.context.effects.append(Close(reason=reason, again=again))

    def _end(self) -> None:
        if self.phase is Phase.OPENING:
            self._drop_will()  # it was never told that it is connected
        self.phase = Phase.CLOSED
        self.session.last_report()
