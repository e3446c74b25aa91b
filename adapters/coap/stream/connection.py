"""One connection of CoAP over TCP or TLS (RFC 8323), without the socket.

Each request is handed to an endpoint of CoAP over UDP as a Confirmable message, so all methods, blocks and observations
are the same. The endpoint forgets each Message ID at once, for TCP repeats nothing, and never sends a Confirmable one.
"""

from collections import deque
from collections.abc import Sequence

import msgspec

from adapters.coap.codec.registry import ACK, CON, EMPTY, RST, is_critical
from adapters.coap.codec.wire import HEADER_BYTES, MessageFormatError, Option, read_options
from adapters.coap.endpoint.endpoint import CoapEndpoint
from adapters.coap.messages.blocks import SharedTransfers
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.stream.frames import FrameError, Head, encode_frame, read_head
from adapters.coap.stream.signals import (
    ABORT,
    CSM,
    CUSTODY,
    PING,
    PONG,
    RELEASE,
    Capabilities,
    SignalError,
    abort,
    csm,
    pong,
)
from gateway.port.adapter import (
    Adapter,
    Close,
    ConnectionInfo,
    Deliverable,
    Effect,
    Outcome,
    Peer,
    Random,
    Settled,
    Token,
)

OPTION_BYTES_MAX = 16_384  # of a message's token and options, besides its body
OVERHEAD_BYTES = 128  # of a response, besides its block
FREE_BYTES = 65_536  # of a message that is not whole, which do not count: about a read
FRAME_TIME_MS = 30_000  # that a longer frame may take, and
FRAME_BYTES_PER_MS = 64  # of its bytes within each ms more
CSM_TIME_MS = 10_000  # until the peer's first message
PING_WAIT_MS = 93_000  # for the answer to a Ping, as long as over UDP (MAX_TRANSMIT_WAIT)
REQUESTS_MAX = 1_024  # of one connection, taken in and not answered yet
OUTPUT_BYTES_MAX = 262_144  # of a connection whose peer does not read: no notifications are made beyond
IDLE_FRAMES_MAX = 256  # of one read that ask for nothing, as pings: 256 KiB of them are 0.4 s in which others wait
NEVER_MS = 1 << 62


class StreamsContext:
    """The state that all connections of a process share: transfers in blocks, and the bytes of large messages.

    The received bytes of a message count, not its announced length. Peers that are not let in yet have half of the
    room, or one largest message, so that they leave some to others.
    """

    def __init__(self, settings: CoapOptions) -> None:
        self.settings = settings
        self.transfers = SharedTransfers(settings)
        self.message_bytes_max = settings.max_body_bytes + OPTION_BYTES_MAX
        self.arriving_bytes = 0  # of messages that are not whole
        self.arriving_bytes_max = max(settings.block_bytes_max, self.message_bytes_max)
        self.strangers_bytes_max = max(self.arriving_bytes_max // 2, self.message_bytes_max)

    def hold(self, before_bytes: int, held_bytes: int, *, known: bool) -> bool:
        """Counts the bytes that a connection holds of a message; returns whether there is room for more."""
        self.arriving_bytes += held_bytes - before_bytes
        room = self.arriving_bytes_max if known else self.strangers_bytes_max
        return held_bytes <= before_bytes or self.arriving_bytes <= room


class CoapConnection(Adapter):
    """The `Adapter` of CoAP over TCP."""

    def __init__(self, info: ConnectionInfo, context: StreamsContext, *, random: Random) -> None:
        self._peer: Peer = info.peer
        self._context = context
        self._random = random
        self._endpoint: CoapEndpoint | None = None  # from the peer's CSM on
        self._capabilities = Capabilities()
        self._message_bytes_max = context.message_bytes_max
        self._input = bytearray()
        self._arriving_bytes = 0  # of a large frame that is not whole, which count
        self._frame_until_ms = NEVER_MS  # when it should be whole
        self._output = bytearray(csm(self._message_bytes_max))
        self._pings: deque[bytes] = deque()  # tokens of Pings that wait for custody
        self._outstanding = 0  # requests not answered yet
        self._next_mid = 0
        self._received_ms: int | None = None  # when the peer sent something last, or the connection was first looked at
        self._csm_until_ms = NEVER_MS  # when the peer's first CSM must have come
        self._pinged = False
        self._starved = False  # fewer deliveries were taken than offered
        self._releasing = False  # the peer sends no more requests
        self._closed = False
        self._effects: list[Effect] = []

    # ---- the port

    @property
    def wants_data(self) -> bool:
        """Returns False while enough requests are in flight, or it is not known whether the peer is let in."""
        return not self._closed and self._outstanding < REQUESTS_MAX and not self._waits_for_admission

    @property
    def closed(self) -> bool:
        """Returns whether the connection has ended, by whichever side."""
        return self._closed

    @property
    def known(self) -> bool:
        """Returns whether the peer was let in."""
        return self._endpoint is not None and self._endpoint.admission.granted

    @property
    def _waits_for_admission(self) -> bool:
        return self._endpoint is not None and self._endpoint.admission.token is not None

    def receive(self, data: bytes | memoryview, *, now_ms: int) -> Sequence[Effect]:
        """Takes frames, cut anywhere."""
        if self._closed:
            return ()
        self._hear(now_ms)
        self._pinged = False
        self._input += data
        self._context.transfers.expire(now_ms)
        return self._turn(now_ms)

    def completed(self, token: Token, outcome: Outcome, *, now_ms: int) -> Sequence[Effect]:
        """Takes the outcome of an effect; frames that had to wait for it are read on."""
        assert self._endpoint is not None
        self._effects += self._endpoint.completed(token, outcome, now_ms=now_ms)
        self._collect()
        return self._turn(now_ms)

    def deliver(self, deliveries: Deliverable, *, now_ms: int) -> int:
        """Notifies observers, unless too much waits for the peer to read it."""
        if self._endpoint is None or self._closed:
            return 0
        if len(self._output) > OUTPUT_BYTES_MAX:
            self._starved = True
            return 0
        taken = self._endpoint.deliver(deliveries, now_ms=now_ms)
        self._collect()
        return taken

    def tick(self, *, now_ms: int) -> Sequence[Effect]:
        """Runs the endpoint's timers that are due; checks that the peer is there, and that its frame arrives."""
        if self._closed:
            return ()
        if self._received_ms is None:
            self._hear(now_ms)
        if self._starved and len(self._output) <= OUTPUT_BYTES_MAX:
            self._starved = False
            self._effects.append(Settled())
        if self._endpoint is not None:
            self._effects += self._endpoint.tick(now_ms=now_ms)
            self._collect()
        if now_ms >= self._frame_until_ms:
            self._abort(SignalError("the message takes too long to arrive"))
        elif now_ms >= self._silent_until_ms():
            self._find_silence()
        return self._turn(now_ms)

    def deadline_ms(self) -> int | None:
        """Returns the earliest of all that waits."""
        if self._closed:
            return None
        if self._received_ms is None or (self._starved and len(self._output) <= OUTPUT_BYTES_MAX):
            return 0
        deadline = min(self._frame_until_ms, self._silent_until_ms())
        inner = None if self._endpoint is None else self._endpoint.deadline_ms()
        return deadline if inner is None else min(deadline, inner)

    def shutdown(self, *, now_ms: int, dismissed: bool = False) -> Sequence[Effect]:
        """Releases the connection (RFC 8323, 5.5)."""
        if self._closed:
            return ()
        self._output += encode_frame(RELEASE)
        self._close("")
        return self._take_effects()

    def lost(self, *, now_ms: int) -> Sequence[Effect]:
        """Releases the bytes that the connection held."""
        self._closed = True
        self._release_frame()
        self._context.transfers.drop_all(self._peer)
        return ()

    def take_output(self) -> bytes:
        """Returns the bytes to write to the peer now."""
        output, self._output = bytes(self._output), bytearray()
        return output

    # ---- input

    def _turn(self, now_ms: int) -> Sequence[Effect]:
        """Reads the frames that are there and may be read; returns all effects since the last turn."""
        try:
            self._read(now_ms)
        except FrameError as error:
            self._abort(SignalError(str(error)))
        except SignalError as error:
            self._abort(error)
        if self._pings and not self._outstanding:
            for token in self._pings:
                self._output += pong(token, custody=True)
            self._pings.clear()
        if self._releasing and not self._outstanding:
            self._close("")
        return self._take_effects()

    def _read(self, now_ms: int) -> None:
        """Takes the frames in the input, as long as requests may be taken. Raises `FrameError` and `SignalError`."""
        data = self._input
        at = idle = 0
        requests: list[tuple[bytes, Peer]] = []
        try:
            while self.wants_data and not self._releasing:
                head = read_head(data, at)
                if head is None:
                    break
                if head.end > self._message_bytes_max:
                    raise FrameError(f"a message is at most {self._message_bytes_max} bytes")
                if len(data) - at < head.end:
                    self._hold_frame(head.end, len(data) - at, now_ms)
                    break
                self._release_frame()
                if head.code >> 5 == 0 and head.code != EMPTY and self._endpoint is not None:
                    requests.append((self._datagram(head, at), self._peer))
                    self._outstanding += 1
                    if not self._endpoint.admission.granted:
                        self._ask(requests, now_ms)
                        requests = []
                else:
                    self._ask(requests, now_ms)
                    requests = []
                    idle += 1
                    if idle > IDLE_FRAMES_MAX:
                        raise SignalError("too many messages that ask for nothing come at once")
                    if head.code != EMPTY:  # which can be sent at any time, so also before the CSM (RFC 8323, 3.4)
                        self._take_other(head, at)
                at += head.end
        finally:
            self._ask(requests, now_ms)
            del data[:at]

    def _datagram(self, head: Head, at: int) -> bytes:
        """Returns the Confirmable message that a request is handed on in."""
        self._next_mid = self._next_mid + 1 & 0xFFFF
        token_bytes = head.options_at - head.token_at
        first = bytes((0x40 | CON << 4 | token_bytes, head.code, self._next_mid >> 8, self._next_mid & 0xFF))
        return first + self._input[at + head.token_at : at + head.end]

    def _ask(self, requests: list[tuple[bytes, Peer]], now_ms: int) -> None:
        """Hands requests to the endpoint."""
        if requests and self._endpoint is not None:
            self._effects += self._endpoint.receive(requests, now_ms=now_ms)
            self._collect()

    def _take_other(self, head: Head, at: int) -> None:
        """Takes a frame that is no request: a signal; all others are skipped (RFC 8323, 3.4 and 5)."""
        if head.code == CSM:
            self._capabilities = self._capabilities.updated(self._signal_options(head, at))
            if self._endpoint is None:
                self._endpoint = self._new_endpoint()
            self._endpoint.reads.block_size = self._block_size
            return
        if self._endpoint is None:
            raise SignalError("the first message must be a CSM")
        if head.code >> 5 != 7:
            return
        options = self._signal_options(head, at)
        if head.code != ABORT and any(is_critical(number) for number, _ in options):  # none of these has one
            raise SignalError("an option of the signaling message is not understood")
        if head.code == PING:
            token = bytes(self._input[at + head.token_at : at + head.options_at])
            if any(number == CUSTODY for number, _ in options):
                self._pings.append(token)
                if len(self._pings) > REQUESTS_MAX:
                    raise SignalError("too many Pings")
            else:
                self._output += pong(token, custody=False)
        elif head.code == RELEASE:
            self._releasing = True
        elif head.code == ABORT:
            self._close("the peer has aborted")
        elif head.code != PONG:
            raise SignalError("the signaling code is not understood")

    def _signal_options(self, head: Head, at: int) -> Sequence[Option]:
        """Reads the options of a signaling message."""
        try:
            return read_options(bytes(self._input[at + head.options_at : at + head.end]), 0)[0]
        except MessageFormatError as error:
            raise SignalError(error.detail) from error

    @property
    def _block_size(self) -> int:
        """Returns the bytes of the largest block that the peer can take."""
        room = max(16, self._capabilities.message_bytes_max - OVERHEAD_BYTES)
        return min(self._context.settings.block_size, 1 << room.bit_length() - 1)

    def _new_endpoint(self) -> CoapEndpoint:
        changed = msgspec.structs.replace(self._context.settings, exchange_lifetime_ms=0, ack_delay_ms=NEVER_MS)
        return CoapEndpoint(changed, random=self._random, transfers=self._context.transfers, reliable=True)

    # ---- limits

    def _hold_frame(self, size_bytes: int, held_bytes: int, now_ms: int) -> None:
        """Counts the received bytes of a large frame. Raises `SignalError` where there is no room for it."""
        if size_bytes <= FREE_BYTES:
            return
        if self._frame_until_ms == NEVER_MS:
            self._frame_until_ms = now_ms + FRAME_TIME_MS + size_bytes // FRAME_BYTES_PER_MS
        held_bytes = held_bytes if held_bytes > FREE_BYTES else 0
        before_bytes, self._arriving_bytes = self._arriving_bytes, held_bytes
        if not self._context.hold(before_bytes, held_bytes, known=self.known):
            raise SignalError("too many large messages arrive at once: connect again later")

    def _release_frame(self) -> None:
        """Releases the bytes of a frame that is whole, or given up."""
        self._context.hold(self._arriving_bytes, 0, known=True)
        self._arriving_bytes = 0
        self._frame_until_ms = NEVER_MS

    def _hear(self, now_ms: int) -> None:
        if self._received_ms is None:
            self._csm_until_ms = now_ms + CSM_TIME_MS
        self._received_ms = now_ms

    def _silent_until_ms(self) -> int:
        """Returns when a peer that has sent nothing since is asked, or given up."""
        assert self._received_ms is not None
        if self._endpoint is None:
            return self._csm_until_ms
        return self._received_ms + self._context.settings.observe_confirm_ms + self._pinged * PING_WAIT_MS

    def _find_silence(self) -> None:
        if self._endpoint is None:
            self._abort(SignalError("no CSM came in time"))
        elif self._pinged:
            self._close("the peer is silent")
        else:
            self._pinged = True
            self._output += encode_frame(PING)

    # ---- output

    def _collect(self) -> None:
        """Turns the endpoint's messages into frames."""
        assert self._endpoint is not None
        for data, _ in self._endpoint.take_output():
            kind, code = data[0] >> 4 & 3, data[1]
            token_end = HEADER_BYTES + (data[0] & 15)
            if kind == RST:
                self._outstanding -= 1
                self._abort(SignalError("the message is malformed"))
                return
            if kind == ACK:
                self._outstanding -= 1
            if code != EMPTY:
                self._output += encode_frame(code, data[HEADER_BYTES:token_end], data[token_end:])

    def _abort(self, error: SignalError) -> None:
        if not self._closed:
            self._output += abort(error)
            self._close(str(error))

    def _close(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._release_frame()
            self._effects.append(Close(reason=reason))

    def _take_effects(self) -> Sequence[Effect]:
        effects, self._effects = self._effects, []
        return effects
