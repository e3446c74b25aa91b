"""An AMQP 0-9-1 connection: frames in, effects and frames out.

Frames are peeled here, one loop a read. Published content is turned into messages in that loop; every other method goes
to its channel, or, on channel 0, to the handshake. An error names its reply code, which decides whether the channel or
the connection ends (AMQP 0-9-1, 1.2).
"""

import struct
from collections.abc import Sequence
from typing import Final

from pamqp.commands import Basic
from pamqp.commands import Channel as ChannelMethods
from pamqp.commands import Connection as Methods

from adapters.amqp.blocking import Blocking
from adapters.amqp.body_credit import BodyCredit, ConnectionCredit
from adapters.amqp.channel import Channel, ChannelState, described
from adapters.amqp.codec.wire import (
    CHANNEL_CODES,
    CHANNEL_ERROR,
    CONNECTION_FORCED,
    FRAME_BODY,
    FRAME_END,
    FRAME_ERROR,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    HEAD,
    HEARTBEAT,
    NOT_ALLOWED,
    RESOURCE_ERROR,
    UNEXPECTED_FRAME,
    AmqpError,
    check_frame,
    method_frame,
    method_index,
    read_method,
    reply_text,
)
from adapters.amqp.confirms import Publisher
from adapters.amqp.connection_output import BEHIND_COUNT_MAX, ConnectionOutput
from adapters.amqp.contents import Contents, is_publishing
from adapters.amqp.handshake import ENDING, Handshake, Phase
from adapters.amqp.keepalive import Keepalive, earlier
from adapters.amqp.methods import handle
from adapters.amqp.options import AmqpOptions
from adapters.amqp.publishing import PUBLISH, TEMPLATES, Content, target_of, template_if_sound
from gateway.domain.errors import ProtocolError, Refusal
from gateway.port.adapter import (
    Adapter,
    Close,
    ConnectionInfo,
    ConsumerCancelled,
    Deliveries,
    Effect,
    Leased,
    Outcome,
    Random,
    Token,
)
from gateway.port.operated import Described
from store.api.message import Message

# A content header frame up to its properties: type, channel, size, class, weight, body size.
_HEADER = struct.Struct(">BHIHHQ")
_CONTENT_MIN: Final = _HEADER.size + 3  # with empty property flags and the frame's end
_BASIC: Final = 60
_ACK: Final = b"\x00\x3c\x00\x50"
_ACK_BYTES: Final = 13


class AmqpConnection(ConnectionOutput, Adapter):
    """The `Adapter` of one connection."""

    def __init__(self, info: ConnectionInfo, options: AmqpOptions, *, arriving: BodyCredit, random: Random) -> None:
        super().__init__(options, ConnectionCredit(arriving, options), random)
        self.channels: dict[int, Channel] = {}
        self._publisher = Publisher(self)
        bytes_max = min(options.message_bytes_max, info.message_bytes_max)
        self._contents = Contents(self, self._publisher, bytes_max=bytes_max)
        self._input = b""  # received, not yet parsed: at most one frame, or the input behind a method that waits
        self._stalled = False  # the input begins with a method that waits for something
        self._framing_lost = False  # where frames begin and end is not known any more
        self._just_closed: set[int] = set()  # channels whose peer has not read close-ok yet
        self._current = 0  # the index of the method being handled
        self._keepalive = Keepalive(options.handshake_timeout_s)
        self._blocking = Blocking(self, self._keepalive)
        self._handshake = Handshake(self, info, keepalive=self._keepalive, blocking=self._blocking)

    # ---- the port

    @property
    def wants_data(self) -> bool:
        """Returns whether there is room for more."""
        if self._stalled or len(self._behind) >= BEHIND_COUNT_MAX:
            return False
        return self._publisher.outstanding_count < self.options.outstanding_count_max

    def receive(self, data: bytes | memoryview, *, now_ms: int) -> Sequence[Effect]:
        """Takes bytes from the peer, cut anywhere."""
        if self._handshake.phase is Phase.CLOSED:
            return ()
        self._keepalive.start(now_ms)
        self._keepalive.received(now_ms)
        self._input = self._input + data if self._input else bytes(data)
        if self._framing_lost:
            self._listen_for_close_ok()
        elif not self._stalled:
            self._read(now_ms)
        return self._effects_at(now_ms)

    def completed(self, token: Token, outcome: Outcome, *, now_ms: int) -> Sequence[Effect]:
        """Takes the outcome of a `Publish`, a `Call` or a `Consume`."""
        waiting = self._expected.pop(token, None)
        if self._handshake.phase is Phase.CLOSED or waiting is None:
            return ()
        waiting(outcome, now_ms)
        if self._stalled:
            self._read(now_ms)
        return self._effects_at(now_ms)

    def deliver(self, deliveries: Deliveries | Leased | ConsumerCancelled, *, now_ms: int) -> int:
        """Sends messages up to the consumer's credit; returns how many."""
        assert not isinstance(deliveries, Deliveries), "nothing is subscribed here"
        consumer = self._consumers.get(deliveries.consumer)
        if consumer is None:
            return 0
        if isinstance(deliveries, ConsumerCancelled):
            del self._consumers[consumer.id]
            consumer.channel.cancelled(consumer)
            return 0
        if self._behind:
            consumer.blocked = True
            return 0
        taken = consumer.channel.deliver(consumer, deliveries, now_ms)
        if taken:
            self._keepalive.sent(now_ms)
        return taken

    def tick(self, *, now_ms: int) -> Sequence[Effect]:
        """Handles deadlines: a heartbeat, a timeout of the peer, or the end of connection.blocked."""
        keepalive = self._keepalive
        keepalive.start(now_ms)
        if self._out or self._behind or not self.wants_data:
            keepalive.received(now_ms)  # it is we who do not listen; nor does the shell while the peer takes no output
        if keepalive.gave_up(now_ms):
            self.end(f"the peer has taken too long to answer while {self._handshake.phase.value}")
        elif keepalive.expired(now_ms) and self._handshake.phase not in ENDING:
            self.fail(CONNECTION_FORCED, "the credentials have expired", now_ms, method=0)
        elif keepalive.silent(now_ms):
            self.end("no heartbeat from the peer")  # a peer that is gone gets no Close (AMQP 0-9-1, 4.2.7)
        elif keepalive.beat(now_ms):
            self.write(HEARTBEAT)
        self._blocking.tick(now_ms)
        self.held_too_long.tick(self.channels.values(), now_ms)
        if self.share.overdue(now_ms):
            why = "the body of a message has taken too long, and others wait"
            self.fail(RESOURCE_ERROR, why, now_ms, method=Basic.Publish.index)
        if self.waits_for_room or self.share.retry_ms is not None:
            self.waits_for_room = False
            if self._stalled:
                self._read(now_ms)
        self._fetch_part()
        return self._effects_at(now_ms)

    def deadline_ms(self) -> int | None:
        """Returns when `tick` is due next."""
        if self._wants_part or (self.waits_for_room and not self._out and not self._behind):
            return 0  # there is room now
        due_ms = earlier(self._keepalive.deadline_ms(), self.share.retry_ms)
        return earlier(due_ms, self.held_too_long.due_ms(self.channels.values()))

    def pressed(self, why: str, *, now_ms: int) -> Sequence[Effect]:
        """Tells publishers that the gateway is low on something, or, with "", not any more."""
        self._blocking.pressed(why)
        return self._effects_at(now_ms)

    def shutdown(self, *, now_ms: int, dismissed: bool = False) -> Sequence[Effect]:
        """Closes the connection: the gateway is going down, or this client is to go."""
        why = "its user has been removed, or changed" if dismissed else "the gateway is shutting down"
        return self.force_close(why, now_ms=now_ms)

    def force_close(self, reason: str, *, now_ms: int) -> Sequence[Effect]:
        """Says 320 and why, and ends."""
        self.drop_bodies()
        if self._handshake.phase is not Phase.HEADER and self._handshake.phase not in ENDING:
            self.write(method_frame(0, Methods.Close, CONNECTION_FORCED, reply_text(CONNECTION_FORCED, reason), 0, 0))
        self.end("")
        return self._effects_at(now_ms)

    def describe(self) -> Described | None:
        """See `OperatedAdapter`."""
        if self._handshake.phase is not Phase.OPEN:
            return None
        return described(self.vhost, self.channels.values(), len(self._consumers), blocked=self._blocking.told)

    def lost(self, *, now_ms: int) -> Sequence[Effect]:
        """Lets go of everything: the connection is gone. Its channels know it, and that ring keeps no bodies."""
        self._handshake.phase = Phase.CLOSED
        self._keepalive.closed()
        self._input = b""
        self._behind.clear()
        self._end_channels()
        return ()

    def take_output(self) -> bytes:
        """Returns the bytes to write now."""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def _effects_at(self, now_ms: int) -> Sequence[Effect]:
        if self._out:
            self._keepalive.sent(now_ms)
        return self.take_effects()

    # ---- reading

    def _read(self, now_ms: int) -> None:
        self._stalled = False
        try:
            if self._handshake.phase is Phase.HEADER and (taken := self._handshake.take_header(self._input)):
                self._input = self._input[taken:]
            if self._handshake.phase not in (Phase.HEADER, Phase.CLOSED):
                self._frames(now_ms)
        except ProtocolError as error:
            method = error.method if isinstance(error, AmqpError) else self._current
            self.fail(error.code, error.detail, now_ms, method=method)
        if not self._stalled:
            self._just_closed.clear()
        self._publisher.flush()

    def _frames(self, now_ms: int) -> None:  # noqa: PLR0915 - one loop on purpose, see below
        """Takes whole frames from the input, until a method has to wait or no whole frame is left."""
        # The codec finds by its bytes all that a publisher repeats, so a published message costs two look-ups, three
        # unpacked heads and the message itself, all in this loop: 1.5 us here with its confirm, against 8 us for
        # pamqp's decoding alone. Properties that no publisher has sent before cost 3 us more.
        data, at, end = self._input, 0, len(self._input)
        unpack, unpack_header = HEAD.unpack_from, _HEADER.unpack_from
        targets, templates, channels = self.targets, TEMPLATES, self.channels
        publisher = self._publisher
        messages, mandatory = publisher.messages, publisher.mandatory
        device = self._handshake.principal.device
        payload_max = self.payload_max
        body_max = min(payload_max, self._contents.whole_bytes_max)
        channel: Channel | None = None
        channel_number = -1
        publishing: Channel | None = None  # the channel whose messages come at present
        try:
            while end - at >= FRAME_OVERHEAD:
                kind, number, size = unpack(data, at)
                stop = at + 7 + size
                if size > payload_max + FRAME_OVERHEAD:  # as in RabbitMQ: many clients count payloads by frame_max
                    raise self._lost(f"a frame of {size + FRAME_OVERHEAD} bytes; {payload_max + 8} are agreed")
                if stop >= end:
                    break
                if data[stop] != FRAME_END:
                    raise self._lost("a frame does not end where it says")
                payload = data[at + 7 : stop]
                target = targets.get(payload) if kind == FRAME_METHOD else None
                if target is not None and end - stop > _CONTENT_MIN:
                    if number != channel_number:
                        channel, channel_number = channels.get(number), number
                    header = stop + 1
                    kind2, number2, size2, class_id, weight, body_size = unpack_header(data, header)
                    header_stop = header + 7 + size2
                    body_stop = header_stop + 8 + body_size
                    if (
                        channel is not None
                        and channel.publishable
                        and 0 < body_size <= body_max
                        and body_stop < end
                        and size2 <= payload_max
                        and (kind2, number2, class_id, weight) == (FRAME_HEADER, number, _BASIC, 0)
                        and unpack(data, header_stop + 1) == (FRAME_BODY, number, body_size)
                        and data[header_stop] == FRAME_END == data[body_stop]
                    ):
                        raw = data[header + 19 : header_stop]
                        template = templates.get(raw) or template_if_sound(raw)
                        if template is not None and template.plain:
                            if channel is not publishing:
                                publisher.turn(channel)
                                publishing = channel
                            if target.mandatory:
                                mandatory.append(len(messages))
                            time_ms = template.time_ms
                            messages.append(
                                Message(
                                    target.address,
                                    data[header_stop + 8 : body_stop],
                                    now_ms if time_ms is None else time_ms,
                                    "amqp",
                                    device,
                                    *template.tail,
                                )
                            )
                            at = body_stop + 1
                            continue
                start, at = at, stop + 1
                if not self._frame(kind, number, payload, now_ms):
                    self._stalled, at = True, start
                    break
                # The frame may have changed any of these.
                payload_max, device = self.payload_max, self._handshake.principal.device
                channel_number, publishing = -1, None
                body_max = min(payload_max, self._contents.whole_bytes_max)
        finally:
            self._input = data[at:]

    def _frame(self, kind: int, number: int, payload: bytes, now_ms: int) -> bool:
        """Takes one frame; returns False when it has to wait."""
        self._current = 0
        check_frame(kind, number, payload)
        if kind == FRAME_HEARTBEAT:
            return True
        if self._handshake.phase in ENDING or not number:
            if kind != FRAME_METHOD and self._handshake.phase is not Phase.CLOSING:
                raise ProtocolError(UNEXPECTED_FRAME, "content on channel 0")
            return kind != FRAME_METHOD or number > 0 or self._connection_method(payload)
        if self._handshake.phase is Phase.AUTHENTICATING:
            return False
        channel = self.channels.get(number)
        if channel is None:
            self._open_channel(number, kind, payload)
            return True
        try:
            if kind == FRAME_METHOD:
                return self._channel_method(channel, payload)
            return self._content(channel, kind, payload, now_ms)
        except ProtocolError as error:
            if error.code not in CHANNEL_CODES:
                raise
            channel.fail(error.code, error.detail, self._current)
        return True

    def _open_channel(self, number: int, kind: int, payload: bytes) -> None:
        self._current = method_index(payload) if kind == FRAME_METHOD else 0
        method = read_method(payload) if kind == FRAME_METHOD else None
        if self._handshake.phase is not Phase.OPEN:
            raise ProtocolError(UNEXPECTED_FRAME, "a channel on a connection that is not open")
        if number in self._just_closed and not isinstance(method, ChannelMethods.Open):
            if isinstance(method, ChannelMethods.Close):
                self.write(method_frame(number, ChannelMethods.CloseOk))
            return
        if not isinstance(method, ChannelMethods.Open):
            raise ProtocolError(CHANNEL_ERROR, "expected 'channel.open'")
        if number > self._handshake.limits.channel_max:
            why = f"channel {number} is above the negotiated channel_max ({self._handshake.limits.channel_max})"
            raise ProtocolError(NOT_ALLOWED, why)
        self._just_closed.discard(number)
        channel = self.channels[number] = Channel(self, number)
        channel.send(ChannelMethods.OpenOk, b"")

    def forget_channel(self, number: int) -> None:
        """See `ConnectionOutput`."""
        if self.channels.pop(number).state is ChannelState.CLOSED:  # by the peer
            self._just_closed.add(number)

    def _channel_method(self, channel: Channel, payload: bytes) -> bool:
        if channel.state is ChannelState.OPEN:
            if channel.waiting:
                return False
            if channel.content is not None:
                self._current = Basic.Publish.index
                raise channel.content.unexpected()
            if payload.startswith(PUBLISH):
                self._current = Basic.Publish.index
                channel.content = Content(target_of(payload, self.vhost, self.targets))
                return True
            if len(payload) == _ACK_BYTES and payload.startswith(_ACK):  # a consumer's every message
                self._current = Basic.Ack.index
                channel.settle(int.from_bytes(payload[4:12], "big"), "ack", multiple=payload[12] & 1 == 1)
                return True
        self._current = method_index(payload)
        method = read_method(payload)
        if isinstance(method, ChannelMethods.Open):
            raise ProtocolError(CHANNEL_ERROR, "second 'channel.open' seen")
        return handle(channel, method, unsent=self._publisher.holds(channel))

    def _content(self, channel: Channel, kind: int, payload: bytes, now_ms: int) -> bool:
        """Takes a content header or body frame that the loop did not take with its method; False: it has to wait."""
        if channel.state is not ChannelState.OPEN:
            return True
        if channel.content is None:
            raise ProtocolError(UNEXPECTED_FRAME, "expected method frame, got non method frame instead")
        self._current = Basic.Publish.index
        return self._contents.take(channel, kind, payload, self._handshake.principal, now_ms)

    def hold_back(self, refusal: Refusal, now_ms: int) -> None:
        """Asks the client not to publish for a while (RabbitMQ's connection.blocked)."""
        self._blocking.refused(refusal, now_ms)

    def has_published(self) -> None:
        """See `ConnectionOutput`."""
        self._blocking.published()

    def _connection_method(self, payload: bytes) -> bool:
        """Takes a method on channel 0; returns False when it has to wait."""
        self._current = method_index(payload)
        return self._handshake.take(read_method(payload))

    # ---- the end

    @property
    def unanswered(self) -> bool:
        """See `ConnectionOutput`."""
        return not self._publisher.idle or is_publishing(self.channels.values())

    def fail(self, code: int, text: str, now_ms: int, *, method: int) -> None:
        """Closes the connection for an error (AMQP 0-9-1, 1.4.2.9), and waits for the peer to say that it has heard."""
        if self._handshake.phase in ENDING:
            self.end(text)
            return
        self.drop_bodies()
        self.write(method_frame(0, Methods.Close, code, reply_text(code, text), method >> 16, method & 0xFFFF))
        self._handshake.phase = Phase.CLOSING
        self._keepalive.closing(now_ms)
        self._stalled = False
        self._end_channels()

    def _end_channels(self) -> None:
        """Closes all channels; leased messages go back when the connection is gone."""
        for channel in self.channels.values():
            channel.state = ChannelState.CLOSED
            channel.drop_content()
        self.share.close()

    def _lost(self, text: str) -> ProtocolError:
        """Returns the error of input of which it is not known where frames begin: close-ok is looked for in it."""
        self._framing_lost, self._current = True, 0
        return ProtocolError(FRAME_ERROR, text)

    def _listen_for_close_ok(self) -> None:
        if _CLOSE_OK in self._input:
            self.end("")
        self._input = self._input[-len(_CLOSE_OK) :]

    def end(self, reason: str) -> None:
        """See `ConnectionOutput`."""
        if self._handshake.phase is not Phase.CLOSED:
            self._handshake.phase = Phase.CLOSED
            self._input, self._stalled = b"", False
            self._keepalive.closed()
            self._end_channels()
            self.emit(Close(reason=reason))


_CLOSE_OK: Final = method_frame(0, Methods.CloseOk)
