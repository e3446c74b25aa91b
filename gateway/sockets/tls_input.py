"""TLS whose input is taken in small pieces, and which ends where that leads to nothing.

TLS has messages that carry nothing: key updates (RFC 8446, 4.6.3), requests to renegotiate (RFC 5246, 7.4.1.1). One is
some bytes for a peer, and some tens of microseconds for us. The event loop reads 256 KiB at a time, and goes on while
there is more: so one connection could keep the loop for itself, before anybody has logged in (docs/decisions/0066).
"""

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol as AsyncioTls
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, cast

import uvloop
from uvloop.loop import SSLProtocol as UvloopTls  # type: ignore[attr-defined]  # its stubs leave it out

from gateway.sockets.paced import PacedTransport

READ_BYTES: Final = 16 << 10  # at a time
BARREN_BYTES_MAX: Final = 20 << 10  # of records that led to no plaintext; a whole record has 16,645 at most
RECORD_PARTS: Final = 96  # bytes of records that a byte of plaintext makes up for: alone it takes up to 85
KEPT_BYTES_MAX: Final = 2 * READ_BYTES  # of records while nobody reads; beyond, the socket is not read either
ENDING_S_MAX: Final = 0.25  # that input may take which nobody wants any more: data of 100 MB, say
LONG_S: Final = 0.005  # pieces that together take longer are followed by a turn of the others


class TlsInput(asyncio.BufferedProtocol):
    """The protocol of a socket's transport, in front of the event loop's TLS."""

    def __init__(
        self,
        above: PacedTransport,
        context: ssl.SSLContext,
        shaken: "asyncio.Future[None]",
        *,
        handshake_s: float,
        handshake_bytes_max: int,
        cut_off: Callable[[], object],
    ) -> None:
        """Serves `above`, which begins when the handshake is done; `shaken` is done when it is over, or has failed.

        `cut_off` is called when the connection is ended, as the peer has sent more than `handshake_bytes_max` for its
        handshake, or `BARREN_BYTES_MAX` later, that led to nothing, or has this side work on for too long at its end.
        """
        self._loop = asyncio.get_running_loop()
        self._above = above
        self._shaken = shaken
        self._handshake_bytes_max = handshake_bytes_max
        self._cut_off = cut_off
        self._barren_bytes = self._kept_bytes = 0
        self._ending_s = 0.0  # that was spent on input after the end
        self._turn_s = self._took_s = 0.0  # when the loop's turn began, and what was taken of it
        self._transport: asyncio.Transport
        made: Any = UvloopTls if isinstance(self._loop, uvloop.Loop) else AsyncioTls
        self._tls = made(self._loop, above, context, shaken, server_side=True, ssl_handshake_timeout=handshake_s)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins the handshake."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not derive from it
        self._above.lie_on(self._transport)
        self._tls.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the place for the next piece."""
        place: memoryview = self._tls.get_buffer(sizehint)
        return place[:READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypts a piece."""
        above, shaking, began_s = self._above, not self._shaken.done(), perf_counter()
        before_bytes, reading, ended = above.received_bytes, above.reading, above.ended
        self._tls.buffer_updated(nbytes)
        took_s = perf_counter() - began_s
        if reading:
            self._kept_bytes = 0
            self._barren_bytes += nbytes - RECORD_PARTS * (above.received_bytes - before_bytes)
            if self._barren_bytes < 0 or (shaking and self._shaken.done()):
                self._barren_bytes = 0
            too_much = self._barren_bytes > (self._handshake_bytes_max if shaking else BARREN_BYTES_MAX)
        elif ended:
            self._ending_s += took_s
            too_much = self._ending_s > ENDING_S_MAX
        else:
            self._kept_bytes += nbytes
            too_much = False
            if self._kept_bytes > KEPT_BYTES_MAX:
                self._transport.pause_reading()
        if too_much:
            self._transport.abort()
            self._cut_off()
        else:
            self._share_turn(took_s)

    def _share_turn(self, took_s: float) -> None:
        """Lets others have a turn after this one has had its part of one."""
        turn_s = self._loop.time()  # uvloop's stands still within a turn
        if turn_s != self._turn_s:
            self._turn_s, self._took_s = turn_s, 0.0
        self._took_s += took_s
        if self._took_s > LONG_S:
            self._above.rest()

    def eof_received(self) -> bool | None:
        """Passes on the end of input."""
        return cast(bool | None, self._tls.eof_received())

    def pause_writing(self) -> None:
        """Passes on that the socket takes no more."""
        self._tls.pause_writing()

    def resume_writing(self) -> None:
        """Passes on that the socket takes more."""
        self._tls.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Passes on that the connection is gone."""
        self._tls.connection_lost(exc)
