"""h2's connection, with the errors of RFC 9113 where h2 has others.

h2 answers a header block that cannot be decoded with PROTOCOL_ERROR, and sends nothing more once the peer has sent
GOAWAY, although the peer may still wait for responses.
"""

from collections.abc import Iterable

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, Event
from h2.exceptions import ProtocolError
from h2.settings import Settings
from hpack import Decoder, HeaderTuple
from hpack.exceptions import HPACKError, OversizedHeaderListError
from hyperframe.frame import Frame, GoAwayFrame

__all__ = ["StrictConnection"]


class _CompressionError(ProtocolError):
    """A header block that cannot be decoded (RFC 9113, 4.3)."""

    error_code = ErrorCodes.COMPRESSION_ERROR


class _Decoder(Decoder):
    """Raises `_CompressionError`, which h2 passes on; of a header list that is too large, h2 answers by itself."""

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        """Decode a header block."""
        try:
            return super().decode(data, raw)
        except OversizedHeaderListError:
            raise
        except HPACKError as error:
            raise _CompressionError(str(error)) from error


class StrictConnection(H2Connection):
    """The server's side of a connection with these settings."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(H2Configuration(client_side=False, header_encoding=None))
        self.local_settings = settings
        self.decoder = _Decoder()
        self.decoder.max_header_list_size = settings.max_header_list_size or self.DEFAULT_MAX_HEADER_LIST_SIZE
        self.decoder.max_allowed_table_size = settings.header_table_size

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        """Report the peer's GOAWAY and stay open: its streams are still to be answered (RFC 9113, 6.8)."""
        event = ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        return [], [event]
