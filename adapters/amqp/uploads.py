"""A body that is stored in parts while it comes: a window of it is held, and never all of it.

`BeginBody` asks where its parts belong. Each `PART_BYTES` that have come are a part, stored while the next one comes;
while `PARTS_IN_FLIGHT_MAX` are not durable, no more of the body is taken. When all parts are, `PublishBody` publishes
the message that names them; the channel waits for that.

A refusal that closes the channel does so at once. Any other is a basic.nack behind the body, whose frames come anyway.
"""

from functools import partial
from typing import Final

from adapters.amqp.channel import Channel
from adapters.amqp.codec.delivery import return_frames
from adapters.amqp.confirms import FULL, as_question
from adapters.amqp.downloads import Download
from adapters.amqp.publishing import Content
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Outcome
from gateway.port.bodies import BeginBody, BodyParts, PublishBody, StoredBody, StorePart, with_parts
from store.format.body_parts import PART_BYTES
from store.format.frame import LogOffset

PARTS_IN_FLIGHT_MAX: Final = 2  # on their way to the log
WINDOW_BYTES: Final = (PARTS_IN_FLIGHT_MAX + 2) * PART_BYTES  # held of one body at most, the part that comes included


class Upload:
    """The body of the message that comes on a channel, until it is published."""

    def __init__(self, channel: Channel, content: Content, principal: Principal, now_ms: int) -> None:
        """Begins the upload. Raises `ProtocolError` for a question that cannot be asked."""
        self._channel = channel
        self._content = content
        self._message = as_question(channel, content.message(principal, now_ms))
        self._began_ms = now_ms
        self._frames: dict[int, list[LogOffset]] = {}  # of the parts, by store group; empty until these are known
        self._part = bytearray()  # that comes
        self._count = 0  # of parts
        self._in_flight = 0  # <= PARTS_IN_FLIGHT_MAX
        self._whole = False  # all of the body has come
        self._refusal: Refusal | None = None
        channel.output.has_published()
        channel.output.call(BeginBody(message=self._message, size_bytes=content.body_size), self._begun)

    @property
    def has_room(self) -> bool:
        """Returns whether more of the body can be taken."""
        return self._refusal is not None or (bool(self._frames) and self._in_flight < PARTS_IN_FLIGHT_MAX)

    def take(self, data: bytes) -> None:
        """Takes more of the body."""
        if self._refusal is not None:
            return
        self._part += data
        while len(self._part) >= PART_BYTES:
            self._store(bytes(self._part[:PART_BYTES]))
            del self._part[:PART_BYTES]

    def finish(self, now_ms: int) -> None:
        """Notes that the whole body has come; the channel waits until its message is published."""
        self._channel.waiting = self._whole = True
        if self._part:
            self._store(bytes(self._part))
            self._part.clear()
        self._go_on(now_ms)

    def _begun(self, outcome: Outcome, now_ms: int) -> None:
        if outcome.error is not None:
            self._refuse(outcome.error, now_ms)
        else:
            self._frames = {group: [] for group in outcome.value}
        self._go_on(now_ms)

    def _store(self, data: bytes) -> None:
        index, self._count = self._count, self._count + 1
        for frames in self._frames.values():
            frames.append(LogOffset(0))  # until it is known
        self._in_flight += 1
        self._channel.output.call(StorePart(groups=list(self._frames), data=data), partial(self._stored, index))

    def _stored(self, index: int, outcome: Outcome, now_ms: int) -> None:
        self._in_flight -= 1
        if outcome.error is not None:
            self._refuse(outcome.error, now_ms)
        else:
            for group, frame in outcome.value.items():
                self._frames[group][index] = frame
        self._go_on(now_ms)

    def _refuse(self, refusal: Refusal, now_ms: int) -> None:
        """Stores no more of the body, and drops the rest as it comes."""
        if self._refusal is None:
            self._refusal = refusal
            self._part.clear()
            if not (refusal.retriable and self._channel.confirming) and self._is_current:
                self._end(Outcome(error=refusal), now_ms)

    def _go_on(self, now_ms: int) -> None:
        """Publishes the message once all of its body is durable."""
        if not self._whole or self._in_flight or not self._is_current:
            return
        if self._refusal is not None:
            self._end(Outcome(error=self._refusal), now_ms)
        else:
            self._message = with_parts(self._message, BodyParts(self._content.body_size, self._frames))
            self._channel.output.call(PublishBody(message=self._message, began_ms=self._began_ms), self._end)

    @property
    def _is_current(self) -> bool:
        """Returns whether the channel has not been closed since."""
        return self._channel.content is self._content

    def _end(self, outcome: Outcome, now_ms: int) -> None:
        """Answers the publisher."""
        channel = self._channel
        channel.waiting = False
        if not self._is_current:
            return
        channel.drop_content()
        channel.published += 1
        tag, output = channel.published, channel.output
        if outcome.error is not None:
            if outcome.error.cause in {Cause.OVERLOAD, Cause.RATE}:
                output.hold_back(outcome.error, now_ms)
            channel.refuse(tag, 1, outcome.error)
            return
        stored: StoredBody = outcome.value
        if self._content.target.mandatory and not stored.queues:
            parts = BodyParts(self._content.body_size, self._frames)
            frames = return_frames(channel.number, self._message, payload_max=output.payload_max, now_ms=now_ms)
            output.write_body(frames, Download(channel.number, parts))
        channel.confirm(tag, 1, {tag: FULL} if stored.overflowed and channel.confirming else {})
