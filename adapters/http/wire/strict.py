"""h2's connection, with the errors of RFC 9113 where h2 has others.

h2 answers a header block that cannot be decoded with PROTOCOL_ERROR, ends the connection for a malformed request and
for a stream beyond the limit, takes `:protocol` although our settings do not allow it, resets a stream again for each
frame that comes after we have reset it, and sends nothing more once the peer has sent GOAWAY, although the peer may
still wait for responses.
"""

from collections.abc import Iterable
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
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
from h2.stream import StreamClosedBy
from hpack import Decoder, HeaderTuple
from hpack.exceptions import HPACKError, OversizedHeaderListError
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, RstStreamFrame, WindowUpdateFrame

_PROTOCOL: Final = b":protocol"  # of RFC 8441, which our settings do not allow: undefined here (8.3)


class _CompressionError(ProtocolError):
    """A header block that cannot be decoded (RFC 9113, 4.3)."""

    error_code = ErrorCodes.COMPRESSION_ERROR


class _Decoder(Decoder):
    """Raises `_CompressionError`, which h2 passes on; of a header list that is too large, h2 answers by itself."""

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        """Decodes a header block."""
        try:
            return super().decode(data, raw)
        except OversizedHeaderListError:
            raise
        except HPACKError as error:
            raise _CompressionError(str(error)) from error


class StrictConnection(H2Connection):
    """The server's side of a connection with these settings.

    A header list may be as large as `header_list_bytes_max` before the connection ends: that is more than the settings
    say, so that a request whose head is too large can be answered (RFC 9113, 10.5.1).
    """

    def __init__(self, settings: Settings, *, header_list_bytes_max: int) -> None:
        super().__init__(H2Configuration(client_side=False, header_encoding=None))
        self.local_settings = settings
        self.decoder = _Decoder()
        self.decoder.max_header_list_size = header_list_bytes_max
        self.decoder.max_allowed_table_size = settings.header_table_size

    def _receive_headers_frame(self, frame: HeadersFrame) -> tuple[list[Frame], list[Event]]:
        """Resets the stream of a malformed request alone (RFC 9113, 8.1.1).

        Errors with a type of their own in h2 are no fault of the request: a stream that has ended, a block of headers
        that is too large or cannot be decoded.
        """
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
            events = [] if frame.data else [UnknownFrameReceived(frame=frame)]
        return frames, events

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
