"""Content that comes in several reads: a message's header and body frames, until the message is published."""

from collections.abc import Iterable

from adapters.amqp.body_credit import Credit
from adapters.amqp.channel import Channel
from adapters.amqp.codec.wire import FRAME_HEADER, PRECONDITION_FAILED, RESOURCE_ERROR
from adapters.amqp.confirms import Publisher
from adapters.amqp.connection_output import ConnectionOutput
from adapters.amqp.publishing import Content, head_cost_bytes
from adapters.amqp.uploads import WINDOW_BYTES, Upload
from gateway.domain.errors import ProtocolError
from gateway.domain.principal import Principal


class Contents:
    """The contents that come on the channels of one connection. A body takes at most `bytes_max`."""

    def __init__(self, output: ConnectionOutput, publisher: Publisher, *, bytes_max: int) -> None:
        self._output = output
        self._publisher = publisher
        self._bytes_max = bytes_max
        self.whole_bytes_max = min(output.options.whole_bytes_max, bytes_max)  # a longer one is stored in parts

    def take(self, channel: Channel, kind: int, payload: bytes, principal: Principal, now_ms: int) -> bool:
        """Takes a frame of the content that a channel waits for; returns False when it has to wait.

        Raises `ProtocolError`.
        """
        content = channel.content
        assert content is not None
        if kind == FRAME_HEADER:
            content.take_header(payload)
            if not self._admit(channel, content, principal, now_ms):
                content.postpone_header()
                return False
            assert content.template is not None
            content.head_bytes = head_cost_bytes(len(payload), content.template)
            self._hold(content, content.head_bytes)
        elif content.upload is not None:
            if not content.upload.has_room:
                return False
            content.take_body(payload)
        else:
            content.take_body(payload)
            self._hold(content, len(payload))
        if content.complete:
            self._complete(channel, content, principal, now_ms)
        return True

    def _hold(self, content: Content, size_bytes: int) -> None:
        """Counts what has come of a message. Raises `ProtocolError` (RESOURCE_ERROR) where others have too much."""
        output = self._output
        output.assembling_bytes += size_bytes
        if content.held_bytes < output.assembling_bytes > output.options.assembling_bytes_max:
            raise ProtocolError(RESOURCE_ERROR, "too much of unfinished messages on all channels together")

    def _admit(self, channel: Channel, content: Content, principal: Principal, now_ms: int) -> bool:
        """Reserves a content header's announced size; returns False when it has to wait. Raises `ProtocolError`."""
        size, size_max = content.body_size, self._bytes_max
        in_parts = size > self.whole_bytes_max
        if in_parts and channel.transaction is not None:
            size_max = self.whole_bytes_max
        if size > size_max:
            raise ProtocolError(
                PRECONDITION_FAILED, f"message size {size} is larger than configured max size {size_max}"
            )
        if in_parts and (channel.outstanding or self._publisher.holds(channel)):
            return False  # the messages that the channel has published before come first
        held = WINDOW_BYTES if in_parts else size
        credit = self._output.share.reserve(held, now_ms=now_ms, body_bytes=size)
        if credit == Credit.REFUSED:
            raise ProtocolError(RESOURCE_ERROR, "too many large bodies arrive at once: send one after the other")
        if credit == Credit.LATER:
            return False
        content.reserved_bytes = held
        if in_parts:
            content.upload = Upload(channel, content, principal, now_ms)
        return True

    def _complete(self, channel: Channel, content: Content, principal: Principal, now_ms: int) -> None:
        if content.upload is not None:
            content.upload.finish(now_ms)
            return
        channel.drop_content()
        message = content.message(principal, now_ms)
        copied = content.template is not None and bool(content.template.copies)
        mandatory, head_bytes = content.target.mandatory, content.head_bytes
        self._publisher.add(channel, message, mandatory=mandatory, copied=copied, head_bytes=head_bytes)


def is_publishing(channels: Iterable[Channel]) -> bool:
    """Returns whether a body that has come whole is not answered yet."""
    return any(channel.content is not None and channel.content.complete for channel in channels)
