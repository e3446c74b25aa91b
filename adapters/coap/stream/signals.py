"""Signaling messages (RFC 8323, 5): both ends' limits, Ping and Pong, Release and Abort."""

from collections.abc import Sequence
from typing import NamedTuple

from adapters.coap.codec.registry import is_critical
from adapters.coap.codec.wire import Option, encode_options, encode_uint, read_uint
from adapters.coap.stream.frames import encode_frame

CSM, PING, PONG, RELEASE, ABORT = 0xE1, 0xE2, 0xE3, 0xE4, 0xE5  # 7.01 to 7.05

MAX_MESSAGE_SIZE, BLOCK_WISE_TRANSFER = 2, 4  # of a CSM
CUSTODY = 2  # of a Ping and a Pong
BAD_CSM_OPTION = 2  # of an Abort

MESSAGE_BYTES_DEFAULT = 1_152  # where a CSM does not say (RFC 8323, 5.3.1)
MESSAGE_BYTES_MIN = 64  # a peer that takes less can be told nothing
DIAGNOSTIC_BYTES_MAX = 128


class SignalError(Exception):
    """Raised for a signaling message that ends the connection; `abort` makes its answer."""

    def __init__(self, detail: str, bad_option: int | None = None) -> None:
        super().__init__(detail)
        self.bad_option = bad_option


class Capabilities(NamedTuple):
    """The peer's settings, as its CSMs have said them so far."""

    message_bytes_max: int = MESSAGE_BYTES_DEFAULT

    def updated(self, options: Sequence[Option]) -> "Capabilities":
        """Returns these with another CSM. Raises `SignalError` for a critical option that is unknown, or a bad size."""
        largest = self.message_bytes_max
        for number, value in options:
            if number == MAX_MESSAGE_SIZE:
                largest = read_uint(value)
                if largest < MESSAGE_BYTES_MIN:
                    raise SignalError(f"Max-Message-Size: must be at least {MESSAGE_BYTES_MIN}")
            elif is_critical(number):
                raise SignalError("an option of the CSM is not understood", number)
        return self._replace(message_bytes_max=largest)


def csm(message_bytes_max: int) -> bytes:
    """Returns the first frame of a connection: the largest message taken, and that bodies may come in blocks."""
    options = [(MAX_MESSAGE_SIZE, encode_uint(message_bytes_max)), (BLOCK_WISE_TRANSFER, b"")]
    return encode_frame(CSM, rest=encode_options(options))


def pong(token: bytes, *, custody: bool) -> bytes:
    """Returns the answer to a Ping; with `custody`, all that was asked for before it has been done."""
    return encode_frame(PONG, token, encode_options([(CUSTODY, b"")]) if custody else b"")


def abort(error: SignalError) -> bytes:
    """Returns the last frame of a connection that cannot go on."""
    options = [] if error.bad_option is None else [(BAD_CSM_OPTION, encode_uint(error.bad_option))]
    return encode_frame(ABORT, rest=encode_options(options) + b"\xff" + str(error).encode()[:DIAGNOSTIC_BYTES_MAX])
