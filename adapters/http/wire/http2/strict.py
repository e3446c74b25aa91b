"""h2's connection, with the errors of RFC 9113 where h2 has others.

h2 answers a header block that cannot be decoded with PROTOCOL_ERROR, ends the connection for a malformed request and
for a stream beyond the limit, takes `:protocol` although our settings do not allow it, resets a stream again for each
frame that comes after we have reset it, and sends nothing more once the peer has sent GOAWAY, although the peer may
still wait for responses.

Requests that are all there, and like one that h2 has found sound, pass it by: h2 makes a stream of one only where
something else happens to it than a short response.
"""

from typing import Final

from h2.config import H2Configuration
from h2.connection import AllowedStreamIDs, H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, Event, RequestReceived, StreamReset, UnknownFrameReceived
from h2.exceptions import (
    DenialOfServiceError,
    InvalidBodyLengthError,
    ProtocolError,
    StreamClosedError,
    StreamIDTooLowError,
    TooManyStreamsError,
)
from h2.settings import Settings
from h2.stream import H2Stream, StreamClosedBy, StreamInputs
from hpack.exceptions import OversizedHeaderListError
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, RstStreamFrame, WindowUpdateFrame

from adapters.http.wire.abuse import DATA_BYTES_MIN
from adapters.http.wire.http2.guard import FLAG_END_HEADERS, FLAG_END_STREAM, frame_header
from adapters.http.wire.http2.hpack_blocks import BlockDecoder, BlockEncoder, Fields

_DATA: Final = DataFrame.type
_HEADERS: Final = HeadersFrame.type
_PROTOCOL: Final = b":protocol"  # of RFC 8441, which our settings do not allow: undefined here (8.3)


class StrictConnection(H2Connection):
    """The server's side of a connection with these settings.

    A header list may be as large as `header_list_bytes_max` before the connection ends: that is more than the settings
    say, so that a request whose head is too large can be answered (RFC 9113, 10.5.1).
    """

    MAX_CLOSED_STREAMS = 1_000  # of 120 bytes each that h2 remembers how they ended, the latest; it has 65,536

    decoder: BlockDecoder
    encoder: BlockEncoder

    def __init__(self, settings: Settings, *, header_list_bytes_max: int) -> None:
        super().__init__(H2Configuration(client_side=False, header_encoding=None))
        self.local_settings = settings
        self.decoder = BlockDecoder(header_list_bytes_max)
        self.decoder.max_allowed_table_size = settings.header_table_size
        self.encoder = BlockEncoder()
        self._whole: set[int] = set()  # streams whose request is all there, and that h2 has not been told of

    # ---- whole requests

    def take(self, stream_id: int, size_bytes: int) -> bool:
        """Opens the stream of a whole request with this many bytes of DATA.

        Returns False where that is not allowed, or may be not: h2 has to say then what is wrong.
        """
        window = self._inbound_flow_control_window_manager
        if (
            stream_id <= self.highest_inbound_stream_id
            or not stream_id & 1
            or size_bytes > min(window.current_window_size, self.local_settings.initial_window_size)
            or self.open_inbound_streams >= self.local_settings.max_concurrent_streams
        ):
            return False
        window.window_consumed(size_bytes)
        if freed_bytes := window.process_bytes(size_bytes):
            self._prepare_for_sending([WindowUpdateFrame(0, window_increment=freed_bytes)])
        self.highest_inbound_stream_id = stream_id
        self._whole.add(stream_id)
        return True

    def answer(self, stream_id: int, fields: Fields, body: bytes) -> bool:
        """Sends the whole response to a whole request; returns False where it has to take the way of all others."""
        if stream_id not in self._whole:
            return False
        size_bytes = len(body)
        stream_bytes = min(self.remote_settings.initial_window_size, self.max_outbound_frame_size)
        if size_bytes > min(self.outbound_flow_control_window, stream_bytes):
            return False
        block = self.encoder.block(fields)
        if block is None:
            return False
        self._whole.remove(stream_id)
        self._closed_streams[stream_id] = StreamClosedBy.SEND_END_STREAM
        self.outbound_flow_control_window -= size_bytes
        if body:
            self._data_to_send += b"%b%b%b%b" % (
                frame_header(len(block), _HEADERS, FLAG_END_HEADERS, stream_id),
                block,
                frame_header(size_bytes, _DATA, FLAG_END_STREAM, stream_id),
                body,
            )
        else:
            self._data_to_send += frame_header(len(block), _HEADERS, FLAG_END_HEADERS | FLAG_END_STREAM, stream_id)
            self._data_to_send += block
        return True

    @property
    def open_inbound_streams(self) -> int:
        """Returns how many streams of the peer are open."""
        return super().open_inbound_streams + len(self._whole)

    def _get_or_create_stream(self, stream_id: int, allowed_ids: AllowedStreamIDs) -> H2Stream:
        self._adopt(stream_id)
        return super()._get_or_create_stream(stream_id, allowed_ids)

    def _get_stream_by_id(self, stream_id: int | None) -> H2Stream:
        self._adopt(stream_id)
        return super()._get_stream_by_id(stream_id)

    def _adopt(self, stream_id: int | None) -> None:
        """Makes the stream of a whole request one of h2's, half-closed by its peer (RFC 9113, 5.1)."""
        if stream_id not in self._whole:
            return
        self._whole.remove(stream_id)
        stream = self.streams[stream_id] = H2Stream(
            stream_id,
            config=self.config,
            inbound_window_size=self.local_settings.initial_window_size,
            outbound_window_size=self.remote_settings.initial_window_size,
        )
        stream.max_outbound_frame_size = self.max_outbound_frame_size
        stream.state_machine.process_input(StreamInputs.RECV_HEADERS)
        stream.state_machine.process_input(StreamInputs.RECV_END_STREAM)

    # ---- frames

    def _receive_headers_frame(self, frame: HeadersFrame) -> tuple[list[Frame], list[Event]]:
        """Resets the stream of a malformed request alone (RFC 9113, 8.1.1).

        Errors with a type of their own in h2 are no fault of the request: a stream that has ended, a block of headers
        that is too large or cannot be decoded.
        """
        self._adopt(frame.stream_id)  # else it would count as one more stream
        late = self._reset_by_us(frame.stream_id)
        try:
            frames, events = super()._receive_headers_frame(frame)
        except (StreamClosedError, StreamIDTooLowError):
            if not late:
                raise
            return [], [UnknownFrameReceived(frame=frame)]  # it counts as a frame that brings nothing
        except TooManyStreamsError:
            return self._refused(frame)
        except ProtocolError as error:
            if type(error) is not ProtocolError or frame.stream_id not in self.streams:
                raise
            return self._malformed(frame.stream_id)
        if events and isinstance(events[0], RequestReceived) and _PROTOCOL in dict(events[0].headers):
            return self._malformed(frame.stream_id)
        return frames, events

    def _reset_by_us(self, stream_id: int) -> bool:
        """Returns whether we have reset a stream: frames that its peer sent before it knew are ignored (5.1)."""
        return self._stream_closed_by(stream_id) is StreamClosedBy.SEND_RST_STREAM

    def _receive_data_frame(self, frame: DataFrame) -> tuple[list[Frame], list[Event]]:
        """Resets the stream of a request whose body is not of its content-length; its bytes leave the window."""
        late = self._reset_by_us(frame.stream_id)
        try:
            frames, events = super()._receive_data_frame(frame)
        except InvalidBodyLengthError:
            frames, events = self._malformed(frame.stream_id)
            freed_bytes = self._inbound_flow_control_window_manager.process_bytes(frame.flow_controlled_length)
            if freed_bytes:
                frames.append(WindowUpdateFrame(0, window_increment=freed_bytes))
            return frames, events
        if late:
            frames = [one for one in frames if isinstance(one, WindowUpdateFrame)]
        if late or not events:  # else it is of a stream that is open
            events = [] if len(frame.data) >= DATA_BYTES_MIN else [UnknownFrameReceived(frame=frame)]
        return frames, events

    def _receive_alt_svc_frame(self, frame: Frame) -> tuple[list[Frame], list[Event]]:
        """Skips ALTSVC, which only servers send (RFC 7838, 4), as other frames that are not known."""
        return [], [UnknownFrameReceived(frame=frame)]

    def _refused(self, frame: HeadersFrame) -> tuple[list[Frame], list[Event]]:
        """Resets a stream beyond the limit, and goes on with the others (RFC 9113, 5.1.2)."""
        stream_id = frame.stream_id
        try:
            self.decoder.decode(frame.data, raw=True)  # its fields are in the table for all streams (4.3)
        except OversizedHeaderListError as error:
            raise DenialOfServiceError(str(error)) from error
        if stream_id % 2 == 0:
            raise ProtocolError(f"a client opens no stream {stream_id}")
        if self._reset_by_us(stream_id):
            return [], [UnknownFrameReceived(frame=frame)]
        if stream_id <= self.highest_inbound_stream_id:
            raise StreamClosedError(stream_id)
        self.highest_inbound_stream_id = stream_id
        self._closed_streams[stream_id] = StreamClosedBy.SEND_RST_STREAM
        reset = RstStreamFrame(stream_id, error_code=ErrorCodes.REFUSED_STREAM)
        return [reset], [StreamReset(stream_id=stream_id, error_code=ErrorCodes.REFUSED_STREAM, remote_reset=False)]

    def _malformed(self, stream_id: int) -> tuple[list[Frame], list[Event]]:
        """Resets a stream with PROTOCOL_ERROR, and reports that as h2 does."""
        frames = self.streams[stream_id].reset_stream(ErrorCodes.PROTOCOL_ERROR)
        return frames, [StreamReset(stream_id=stream_id, error_code=ErrorCodes.PROTOCOL_ERROR, remote_reset=False)]

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        """Reports the peer's GOAWAY and stays open: its streams are still to be answered (RFC 9113, 6.8)."""
        event = ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        return [], [event]
