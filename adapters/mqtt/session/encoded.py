"""PUBLISH packets of a batch, encoded once for all subscribers of a kind."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from adapters.mqtt.codec.primitives import encode_varint, read_varint
from adapters.mqtt.messages.messages import PROTOCOL, Dialect, has_visible, publish_pieces
from adapters.mqtt.session.subscriptions import DeliveryPlan
from gateway.domain.batch import Batch
from store.api.message import Message

Piece: TypeAlias = tuple[int, bytes, bytes]  # QoS, then the bytes before and behind the packet identifier
_NOTHING: Piece = (0, b"", b"")
IDENTIFIED_COUNT_MAX = 32  # kinds of subscribers with subscription identifiers, which are unlimited in number
UNASKED_BYTES_MAX = 2_048  # of a body that is encoded although it was not asked for yet
_IDENTIFIED = (PROTOCOL, "identified")  # in `Batch.memo`: how many of them there are
_ALIAS_BYTES = 3  # a topic alias and its property identifier


class WithoutTopic(NamedTuple):
    """A PUBLISH of 5.0 with a topic alias alone: the bytes around the topic, the packet identifier and the alias."""

    length: int  # the Remaining Length
    head: bytes  # the fixed header
    properties: bytes  # their length, and the property identifier of an alias
    rest: bytes

    @classmethod
    def of(cls, piece: Piece) -> "WithoutTopic":
        """Makes an encoded packet of the same packet with its topic."""
        qos, head, tail = piece
        at = 2
        while head[at - 1] & 0x80:
            at += 1
        topic_end = at + 2 + int.from_bytes(head[at : at + 2], "big")
        behind = head[topic_end:] + tail
        found = read_varint(behind, 0, len(behind), minimal=True)
        assert found is not None, "properties have a length"
        size, start = found
        properties = encode_varint(size + _ALIAS_BYTES) + b"\x23"
        length = 2 + (2 if qos else 0) + len(properties) + 2 + len(behind) - start
        return cls(length, head[:1] + encode_varint(length), properties, behind[start:])


def encode_message(message: Message, plan: DeliveryPlan, dialect: Dialect, now_ms: int, *, retained: bool) -> Piece:
    """Returns a message as its subscriber gets it; at QoS 0 all is before. Nothing: it has expired (MQTT-3.3.2-5)."""
    if message.expired(now_ms):
        return _NOTHING
    qos = min(message.qos, plan.qos)
    # 3.3.1.3: set on messages that are sent because of a new subscription; on live messages only with Retain As
    # Published.
    retain = retained or (plan.retain_as_published and message.retain)
    head, tail = publish_pieces(
        message, dialect, qos=qos, retain=retain, now_ms=now_ms, subscription_ids=plan.identifiers
    )
    return (qos, head, tail) if qos else (0, head + tail, b"")


def size_bytes(piece: Piece) -> int:
    """Returns the whole packet's size."""
    qos, head, tail = piece
    return len(head) + len(tail) + (2 if qos else 0)


class Encoded:
    """The packets of some messages for one kind of subscriber, each made when it is first wanted.

    Those of a batch live in `Batch.memo`, so that a hundred subscribers of a kind cost one encoding and a hundred
    appends.
    """

    __slots__ = (
        "_dialect",
        "_made",
        "_messages",
        "_plain_made",
        "_plan",
        "_without",
        "largest",
        "now_ms",
        "pieces",
        "timed",
        "whole",
    )

    def __init__(self, messages: Sequence[Message], plan: DeliveryPlan, dialect: Dialect, now_ms: int) -> None:
        self._messages = messages
        self._plan = plan
        self._dialect = dialect
        self.now_ms = now_ms
        self.timed = False  # some message encoded expires: the encoding is right for `now_ms` only
        self.largest = 0  # no packet encoded is larger, in bytes
        self._made = 0  # how often a message was wanted by itself that was not encoded
        self._plain_made = False
        self.pieces: list[Piece | None] = [None] * len(messages)
        self.whole: bytes | None = None  # at QoS 0: all packets of the batch
        self._without: dict[int, WithoutTopic] = {}  # of pieces that were wanted so, by index

    @classmethod
    def of(cls, batch: Batch, plan: DeliveryPlan, dialect: Dialect, now_ms: int) -> "Encoded | None":
        """Returns the encoding for subscribers of this kind; None where there are too many kinds: see `Passing`."""
        memo = batch.memo
        key = (PROTOCOL, dialect, plan.qos, plan.retain_as_published, plan.identifiers)
        found = memo.get(key)
        if not isinstance(found, cls) or (found.timed and found.now_ms != now_ms):
            if found is None and plan.identifiers:
                identified = memo.get(_IDENTIFIED, 0)
                if identified >= IDENTIFIED_COUNT_MAX:
                    return None
                memo[_IDENTIFIED] = identified + 1
            found = memo[key] = cls(batch.messages, plan, dialect, now_ms)
        found.now_ms = now_ms  # of messages that are encoded from now on: no other one depends on the time
        return found

    def make(self, index: int) -> Piece:
        """Encodes one message, and once a quarter of the batch was wanted one by one, every small plain one of it.

        So a batch with a subscriber for each of its messages takes little more than one of which a subscriber gets all.
        """
        self._made += 1
        if not self._plain_made and self._made * 4 > len(self._messages):
            self._make_plain(UNASKED_BYTES_MAX)
        return self.pieces[index] or self._make(index)

    def _make(self, index: int) -> Piece:
        message = self._messages[index]
        piece = encode_message(message, self._plan, self._dialect, self.now_ms, retained=False)
        if message.expires_at_ms is not None:
            self.timed = True
        self.pieces[index] = piece
        self.largest = max(self.largest, size_bytes(piece))
        return piece

    def address(self, index: int) -> str:
        """Returns the address of a message."""
        return self._messages[index].address

    def without_topic(self, index: int) -> WithoutTopic:
        """Returns a piece that has been made, for clients that know its topic by an alias."""
        found = self._without.get(index)
        if found is None:
            piece = self.pieces[index]
            assert piece is not None
            found = self._without[index] = WithoutTopic.of(piece)
        return found

    def make_all(self) -> None:
        """Encodes every message that is not yet."""
        if None in self.pieces:
            self._make_plain(None)
            for index in [index for index, piece in enumerate(self.pieces) if piece is None]:
                self._make(index)

    def _make_plain(self, body_bytes_max: int | None) -> None:
        """Encodes the messages that say nothing but topic and body, and do not expire; None: of any size.

        Hot: one loop, in 0.4 us for each; `_make` takes 1.2 us, and with properties more.
        """
        self._plain_made = True
        plan, pieces = self._plan, self.pieces
        v5, granted, retains = self._dialect.version == 5, plan.qos, plan.retain_as_published
        ids = b"".join(b"\x0b" + encode_varint(number) for number in plan.identifiers) if v5 else b""
        before_body = encode_varint(len(ids)) + ids if v5 else b""
        heads: dict[int, bytes] = {}  # fixed header and topic length, by the values they follow from
        overhead, largest = 2 + len(before_body), self.largest
        for index, m in enumerate(self._messages):
            address, body, qos = m.address, m.body, m.qos
            if (
                (m.native is not None and (has_visible(m.native) if v5 else "cloudevents" in m.native))
                or m.expires_at_ms is not None
                or (retains and m.retain)
                or not address.isascii()
                or (body_bytes_max is not None and len(body) > body_bytes_max)
                or (v5 and _has_properties(m))
            ):
                continue
            qos = min(qos, granted)
            topic = address.encode()
            key = len(body) << 20 | len(topic) << 2 | qos
            head = heads.get(key)
            if head is None:
                length = overhead + len(topic) + len(body) + (2 if qos else 0)
                head = bytes((0x30 | qos << 1,)) + encode_varint(length) + len(topic).to_bytes(2, "big")
                heads[key] = head
                largest = max(largest, length + 5)
            if qos:
                pieces[index] = (qos, head + topic, before_body + body if v5 else body)
            else:
                pieces[index] = (0, head + topic + before_body + body, b"")
        self.largest = max(largest, self.largest)

    def join(self) -> bytes:
        """Returns the packets of the whole batch at QoS 0."""
        if self.whole is None:
            self.make_all()
            self.whole = b"".join([piece[1] for piece in self.pieces if piece is not None])
        return self.whole


class _NoPieces:
    """An empty table of pieces, which keeps none."""

    __slots__ = ()

    def __getitem__(self, index: int) -> None:
        return None


class Passing:
    """The packets of a batch for one subscriber, in place of `Encoded`: each is made when it is sent, and not kept."""

    __slots__ = ("_dialect", "_messages", "_now_ms", "_plan", "largest", "pieces")

    def __init__(self, messages: Sequence[Message], plan: DeliveryPlan, dialect: Dialect, now_ms: int) -> None:
        self._messages = messages
        self._plan = plan
        self._dialect = dialect
        self._now_ms = now_ms
        self.largest = 0
        self.pieces = _NoPieces()

    def make(self, index: int) -> Piece:
        """Encodes one message."""
        piece = encode_message(self._messages[index], self._plan, self._dialect, self._now_ms, retained=False)
        self.largest = max(self.largest, size_bytes(piece))
        return piece


def _has_properties(m: Message) -> bool:
    """Returns whether a PUBLISH of 5.0 says more of a message than its topic and its body."""
    return (
        m.protocol != PROTOCOL  # its time
        or m.content_type is not None
        or bool(m.properties)
        or m.key is not None
        or m.type is not None
        or m.reply_to is not None
        or m.correlation is not None
        or m.traceparent is not None
        or m.content_encoding is not None
    )
