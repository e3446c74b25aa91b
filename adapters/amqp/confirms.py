"""Published messages on their way to the log, and their confirms, in the order of the wire.

A group is the messages of one `Publish` effect, which may be of several channels. Groups are answered in their order,
so that basic.ack with `multiple` says nothing of a message that is still on its way. The outcome says which mandatory
messages were for no queue when they were stored: basic.return comes before basic.ack.
"""

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from adapters.amqp.codec.delivery import return_frames
from adapters.amqp.codec.direct_reply import asks_for_reply, with_reply_queue
from adapters.amqp.codec.wire import PRECONDITION_FAILED
from gateway.domain.errors import Cause, ProtocolError, Refusal
from gateway.domain.vhosts import local_name
from gateway.port.adapter import Outcome, Publish
from store.api.message import Message

if TYPE_CHECKING:
    from adapters.amqp.channel import Channel
    from adapters.amqp.connection_output import ConnectionOutput


class _Run(NamedTuple):
    """Messages of a group that one channel has published one after the other."""

    channel: "Channel"
    start: int  # the first one's index in the group
    size: int
    first_tag: int


FULL: Final = Refusal(Cause.OVERLOAD, "a queue is full")  # a publisher without confirms is not told


class _Group(NamedTuple):
    """Messages published together."""

    runs: list[_Run]
    size: int
    mandatory: dict[int, Message]  # by index


class Publisher:
    """The messages that the channels of one connection publish."""

    def __init__(self, output: "ConnectionOutput") -> None:
        self._output = output
        self.outstanding_count = 0  # messages whose outcome is unknown
        # Of this read; the connection's loop adds to them itself.
        self.messages: list[Message] = []
        self.starts: list[tuple[Channel, int]] = []  # where in `messages` each channel's turn begins
        self.mandatory: list[int] = []  # indexes in `messages`
        self._copied = False  # some of `messages` have more routing keys

    @property
    def idle(self) -> bool:
        """Returns whether everything published has been answered."""
        return not self.messages and not self.outstanding_count

    def holds(self, channel: "Channel") -> bool:
        """Returns whether this read has messages of a channel that the gateway does not know of yet."""
        return any(of is channel for of, _ in self.starts)

    def add(
        self, channel: "Channel", message: Message, *, mandatory: bool, copied: bool = False, head_bytes: int = 0
    ) -> None:
        """Publishes a message with those of this read, or with the commit of its channel's transaction.

        `copied` says that it has more routing keys, `head_bytes` what its properties are counted as.

        Raises `ProtocolError` (PRECONDITION_FAILED).
        """
        message = as_question(channel, message)
        if channel.transaction is not None:
            self._output.has_published()
            channel.transaction.add(message, mandatory=mandatory, copied=copied, head_bytes=head_bytes)
            return
        self.turn(channel)
        self._copied = self._copied or copied
        if mandatory:
            self.mandatory.append(len(self.messages))
        self.messages.append(message)

    def turn(self, channel: "Channel") -> None:
        """Counts the messages that come next as this channel's."""
        if not self.starts or self.starts[-1][0] is not channel:
            self.starts.append((channel, len(self.messages)))

    def flush(self) -> None:
        """Emits one `Publish` for all that was read."""
        messages = self.messages
        if not messages:
            return
        self._output.has_published()
        runs = []
        ends = [start for _, start in self.starts[1:]]
        for (channel, start), end in zip(self.starts, [*ends, len(messages)], strict=True):
            runs.append(_Run(channel, start, end - start, channel.published + 1))
            channel.published += end - start
            channel.outstanding += 1
        group = _Group(runs, len(messages), {index: messages[index] for index in self.mandatory})
        self.outstanding_count += group.size
        token = self._output.expect(partial(self._stored, group))
        self._output.emit(Publish(messages, token, copied=self._copied, mandatory=self.mandatory))
        self.messages, self.starts, self.mandatory, self._copied = [], [], [], False

    def _stored(self, group: _Group, outcome: Outcome, now_ms: int) -> None:
        """Confirms a group: outcomes come in the order of the publishes."""
        self.outstanding_count -= group.size
        for run in group.runs:
            run.channel.outstanding -= 1
            if run.channel.open:
                self._confirm(group, outcome, run, now_ms)
        for refusal in (outcome.error, *outcome.refused.values()):
            if refusal is not None and refusal.cause in {Cause.OVERLOAD, Cause.RATE}:
                self._output.hold_back(refusal, now_ms)

    def _confirm(self, group: _Group, outcome: Outcome, run: _Run, now_ms: int) -> None:
        channel, start, size, first_tag = run
        output = self._output
        for index in outcome.unrouted if outcome.error is None else ():
            if start <= index < start + size and index not in outcome.refused:
                message = group.mandatory[index]
                output.write(*return_frames(channel.number, message, payload_max=output.payload_max, now_ms=now_ms))
        if outcome.error is not None:
            channel.refuse(first_tag, size, outcome.error)
        else:
            refused = {
                index - start + first_tag: refusal
                for index, refusal in outcome.refused.items()
                if start <= index < start + size
            }
            for index in outcome.overflowed if channel.confirming else ():
                if start <= index < start + size:
                    refused[index - start + first_tag] = FULL
            channel.confirm(first_tag, size, refused)


def as_question(channel: "Channel", message: Message) -> Message:
    """Returns a message that names the queue for its answer, where it asks for one by direct reply-to.

    Raises `ProtocolError` (PRECONDITION_FAILED).
    """
    if not asks_for_reply(message):
        return message
    if not channel.reply_queue:
        raise ProtocolError(PRECONDITION_FAILED, "fast reply consumer does not exist")
    return with_reply_queue(message, local_name(channel.reply_queue))
