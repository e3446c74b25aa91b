"""A connection under fuzzing, and a gateway behind it that does what it may do, by chance."""

from collections.abc import Sequence
from random import Random
from typing import Any

from adapters.mqtt import FACTORY
from adapters.mqtt.codec import Properties, decode, encode, read_fixed_header
from adapters.mqtt.codec.packets import Auth, Connack, Connect, Disconnect, Will
from adapters.mqtt.codec.packets import Publish as Delivered
from adapters.mqtt.codec.reason import ReasonCode
from adapters.mqtt.connecting.phases import Phase
from adapters.mqtt.messages.options import Options
from gateway.domain.batch import Batch
from gateway.domain.errors import Cause, ProtocolError, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import (
    DONE,
    Authenticate,
    Call,
    Challenge,
    Close,
    ConnectionInfo,
    Consume,
    ConsumerCancelled,
    Deliveries,
    Effect,
    Leased,
    Outcome,
    Publish,
    SettleLeased,
    Subscribe,
    Unsubscribe,
)
from gateway.port.marks import Mark, OpenedMarks
from gateway.port.reads import Retained, RetainedPage
from gateway.port.sessions import OpenedSession, OpenSession, SaveSession
from gateway.port.shared import JoinShared
from store.api.message import Message
from store.format.frame import LogOffset, Position

NOW_MS = 1_700_000_000_000
_INFO = ConnectionInfo(peer=("127.0.0.1", 40_000), local=("127.0.0.1", 1883), loopback=True)
_OPTIONS = Options(
    receive_maximum=20,
    inflight_max=4,
    subscriptions_max=6,
    max_packet_bytes=1_024,
    topic_alias_maximum=2,
    topic_levels_max=4,
    user_properties_max=8,
    authentication_methods=("SCRAM-SHA-256",),
)
_CAUSES = tuple(Cause)
_MESSAGES = tuple(
    Message(address, body, NOW_MS, "mqtt", device, qos, retain, expires_at_ms=expires)
    for address, body, device, qos, retain, expires in (
        ("t/a", b"x", "c", 0, False, None),
        ("t/b", b"x" * 300, "d", 1, True, None),
        ("t/c", b"", "d", 2, False, NOW_MS + 5_000),
        ("t/d", b"x", "c", 1, True, NOW_MS - 1),
    )
)
_ALIASES_MAX = 2  # that the client takes, if any
_GREETINGS = {
    version: tuple(
        encode(Connect(version=version, client_id="c", clean=clean, will=will, properties=said), version)
        for clean in (True, False)
        for will in (None, Will(topic="w", payload=b"x"))
        for said in (
            (
                Properties(),
                Properties(session_expiry_s=60),
                Properties(receive_maximum=2, maximum_packet_bytes=90),
                Properties(session_expiry_s=60, topic_alias_maximum=_ALIASES_MAX),
            )
            if version == 5
            else (Properties(),)
        )
    )
    for version in (3, 4, 5)
}
_ASKED = encode(
    Connect(version=5, client_id="c", properties=Properties(authentication_method="SCRAM-SHA-256")),
    5,
)


class FuzzedConnection:
    """One connection. Whatever it is sent, it keeps to what is asserted here.

    It never raises. What it sends are packets: CONNACK first, once, behind nothing but AUTH; DISCONNECT last and only
    behind a CONNACK that lets in; nothing once it is closed, of which it says so once.
    """

    def __init__(self, version: int, random: Random, before: "FuzzedConnection | None" = None) -> None:
        self.version = version
        self.random = random
        self.now_ms = NOW_MS
        self.adapter: Any = FACTORY.connect(_INFO, _OPTIONS, random=random)
        self.closed = False
        self.welcomed = False  # a CONNACK that lets in
        self.answered = False  # any CONNACK
        self.over = False  # the last packet has been sent
        self.said = 0  # the code of a DISCONNECT
        self.resumed = False  # the session is one that was saved
        self.aliases: dict[int, str] = {}
        self.waiting: list[tuple[Any, Outcome]] = []  # effects that are answered later
        self.subs: list[Any] = []
        self.consumers: list[Any] = []
        # The session's saved state, from which the next connection goes on.
        self.state, self.exchanges = (b"", b"") if before is None else (before.state, before.exchanges)
        self.marks: dict[int, dict[int, bytes]] = {} if before is None else before.marks  # by slot, as the log has them
        self.frame = 4_096

    def greeting(self) -> bytes:
        """Returns the bytes of a CONNECT."""
        chance = self.random.getrandbits(8)
        if self.version == 5 and chance < 32:
            return _ASKED
        ways = _GREETINGS[self.version]
        return ways[chance % len(ways)]

    def feed(self, data: bytes, cut: int = 0) -> None:
        """Feeds bytes from the client, in one read or in two."""
        for piece in (data[:cut], data[cut:]) if cut < len(data) else (data,):
            if piece and not self.closed:
                self.act(self.adapter.receive(piece, now_ms=self.now_ms))
                self._check()

    def judged(self, data: bytes) -> None:
        """Feeds the same, one packet in each read, and checks that exactly the packets are refused that the decoder
        calls malformed.
        """
        fresh = self.adapter.phase is Phase.CONNECTED and not self.adapter.held
        self.feed(data)
        if not fresh:
            return
        whole, code = False, 0
        try:
            frame = read_fixed_header(data, 0, minimal=self.version == 5)
            whole = frame is not None and frame.end == len(data)
            if whole and frame is not None:
                decode(frame.first, data[frame.start : frame.end], self.version)
        except ProtocolError as error:
            whole, code = True, error.code
        if whole and code:  # it may wait unread while the first message of QoS 2 does
            assert self.closed or self.adapter.held, f"taken, though it is {code:#x}"
        elif whole:
            assert self.said != ReasonCode.MALFORMED_PACKET, "refused, though nothing is wrong with it"

    def happen(self, chance: int) -> None:
        """Makes something happen by chance that is no input, or nothing."""
        if chance < 8:
            return
        if chance < 11:
            self._deliver()
        elif chance == 11 and self.waiting:
            effect, outcome = self.waiting.pop(0)
            self.act(self.adapter.completed(effect.token, outcome, now_ms=self.now_ms))
        elif chance == 12:
            self.now_ms += self.random.getrandbits(12)
            self.act(self.adapter.tick(now_ms=self.now_ms))
        elif chance == 13 and self.consumers:
            self.adapter.deliver(ConsumerCancelled(self.consumers.pop()), now_ms=self.now_ms)
        elif chance == 14 and not self.random.getrandbits(4):
            self.act(self.adapter.superseded(now_ms=self.now_ms))
        elif chance == 15 and not self.random.getrandbits(4):
            self.act(self.adapter.shutdown(now_ms=self.now_ms))
        due_ms = self.adapter.deadline_ms()
        if due_ms is not None and due_ms <= self.now_ms:
            self.act(self.adapter.tick(now_ms=self.now_ms))
        self._check()

    def end(self) -> None:
        """Ends the connection, and checks that nothing that comes too late does harm."""
        self.act(self.adapter.lost(now_ms=self.now_ms), over=True)
        for effect, outcome in self.waiting:
            self.act(self.adapter.completed(effect.token, outcome, now_ms=self.now_ms), over=True)
        assert not self.adapter.receive(b"\xc0\x00", now_ms=self.now_ms)
        assert self.adapter.deliver(self._batch([1]), now_ms=self.now_ms) == 0
        self._check()

    # ---- the gateway

    def _batch(self, subs: list[Any]) -> Deliveries:
        count = 1 + self.random.getrandbits(2)
        messages = [_MESSAGES[self.random.getrandbits(2)] for _ in range(count)]
        self.frame += 4_096
        batch = Batch(LogOffset(self.frame), LogOffset(self.frame + 1_000), messages, list(range(count)), [16] * count)
        return Deliveries(batch, range(count), [tuple(subs)] * count)

    def _deliver(self) -> None:
        if self.consumers and self.random.getrandbits(1):
            offsets: list[Any] = [self.frame, self.frame + 1]
            self.frame += 4_096
            leased = Leased(self.consumers[-1], _MESSAGES[:2], offsets, [0, 1], 7)
            assert 0 <= self.adapter.deliver(leased, now_ms=self.now_ms) <= 2
        elif self.subs:
            deliveries = self._batch(self.subs[: 1 + self.random.getrandbits(1)])
            assert 0 <= self.adapter.deliver(deliveries, now_ms=self.now_ms) <= len(deliveries.picks)

    def act(self, effects: Sequence[Effect], *, over: bool = False) -> None:
        for effect in effects:
            if isinstance(effect, Close):
                assert not self.closed, "closed twice"
                self.closed = True
            elif isinstance(effect, Subscribe):
                self.subs.append(effect.sub)
                if effect.token is not None:
                    begun = Outcome(value=(Position(LogOffset(4_096), 0),))
                    self.act(self.adapter.completed(effect.token, begun, now_ms=self.now_ms), over=over)
            elif isinstance(effect, Unsubscribe):
                self.subs.remove(effect.sub)
            elif isinstance(effect, Publish | Call | Consume | SettleLeased) and effect.token is not None:
                outcome = self._outcome(effect)
                if self.random.getrandbits(3) and not over:
                    self.act(self.adapter.completed(effect.token, outcome, now_ms=self.now_ms))
                elif len(self.waiting) < 64:
                    self.waiting.append((effect, outcome))

    def _refusal(self) -> Refusal:
        return Refusal(_CAUSES[self.random.getrandbits(8) % len(_CAUSES)])

    def _outcome(self, effect: Publish | Call | Consume | SettleLeased) -> Outcome:
        chance = self.random.getrandbits(8)
        if isinstance(effect, Call):
            return Outcome(error=self._refusal()) if chance < 6 else self.answer_effect(effect.request, chance)
        if isinstance(effect, Publish):
            if chance >= 20 and effect.marks is not None:
                self.marks[effect.marks.slot] = dict(effect.marks.of)
            if chance < 16:
                return Outcome(refused={chance % len(effect.messages): self._refusal()})
            return Outcome(error=self._refusal()) if chance < 20 else DONE
        if isinstance(effect, Consume):
            if chance < 32:
                return Outcome(error=self._refusal())
            self.consumers.append(effect.consumer)
        return DONE

    def answer_effect(self, request: Any, chance: int) -> Outcome:
        match request:
            case Authenticate():
                if request.mechanism == "SCRAM-SHA-256" and chance & 1:
                    return Outcome(value=Challenge(data=b"r=x,s=x,i=4096", exchange=chance))
                expires_at_ms = self.now_ms + 2_000 if chance & 6 == 6 else None
                return Outcome(value=Principal(name="u" if chance & 2 else "", expires_at_ms=expires_at_ms))
            case OpenSession():
                present = bool(self.state) and not request.clean
                if not present:
                    self.marks.clear()
                self.resumed = present
                found = [Mark(slot, 0, raw, 1) for slot, of in self.marks.items() for raw in of.values()]
                return Outcome(
                    value=OpenedSession(
                        present=present,
                        state=self.state if present else b"",
                        exchanges=self.exchanges if present else b"",
                        cursor=() if present else None,
                        marks=OpenedMarks(key="k/" if chance < 230 else "", used=bool(found), found=found),
                    )
                )
            case SaveSession():
                self.state = self.state if request.state is None else request.state
                self.exchanges = self.exchanges if request.exchanges is None else request.exchanges
            case Retained():
                return Outcome(
                    value=RetainedPage(messages=list(_MESSAGES[: chance & 3]), after="t" if chance < 40 else None)
                )
            case JoinShared():
                return Outcome(value=[f"q{n}" if chance < 200 else self._refusal() for n in range(len(request.names))])
        return DONE

    # ---- what it sends

    def _check(self) -> None:
        data = self.adapter.take_output()
        at = 0
        while at < len(data):
            assert not self.over, "something behind the last packet"
            frame = read_fixed_header(data, at, minimal=True)
            assert frame is not None
            assert frame.end <= len(data), "a packet in pieces"
            version = self.adapter.context.version
            kind = frame.first >> 4
            if kind in {2, 3, 14, 15} or not self.random.getrandbits(3):
                self._heed(decode(frame.first, data[frame.start : frame.end], version))
            assert self.welcomed or kind in {2, 15}, f"packet type {kind} before CONNACK"
            at = frame.end
        if self.closed:
            self.over = True

    def _heed(self, packet: Any) -> None:
        if isinstance(packet, Connack):
            assert not self.answered, "a second CONNACK"
            self.answered = True
            self.welcomed = packet.code == 0
            self.over = not self.welcomed
            assert self.welcomed or self.closed
            assert self.welcomed or not packet.session_present
        elif isinstance(packet, Disconnect):
            assert self.welcomed, "DISCONNECT before CONNACK"
            assert packet.code in set(ReasonCode)
            assert self.closed, "DISCONNECT without closing"
            self.over, self.said = True, packet.code
        elif isinstance(packet, Delivered):
            self._heed_delivery(packet)
        elif isinstance(packet, Auth):
            assert packet.properties.authentication_method == "SCRAM-SHA-256"

    def _heed_delivery(self, packet: Delivered) -> None:
        """Checks that a message has a topic that the client knows, and is sent again only by a resumed session."""
        alias = packet.properties.topic_alias
        if alias is not None:
            assert 0 < alias <= _ALIASES_MAX
            if packet.topic:
                self.aliases[alias] = packet.topic
        assert packet.topic or self.aliases[alias or 0], "an alias that stands for nothing"
        assert (packet.topic or self.aliases[alias or 0]) in {one.address for one in _MESSAGES}
        assert self.resumed or not packet.dup, "sent again in a new session"
