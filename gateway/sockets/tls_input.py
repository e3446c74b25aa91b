"""TLS whose input is taken in small pieces, and which ends where that leads to nothing.

TLS has messages that carry nothing: key updates (RFC 8446, 4.6.3), requests to renegotiate (RFC 5246, 7.4.1.1). One is
some bytes for a peer, and some tens of microseconds for us. The event loop reads 256 KiB at a time, and goes on while
there is more: so one connection could keep the loop for itself, before anybody has logged in (docs/decisions/0066).
"""

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol as AsyncioTls
from collections import deque
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any, Final, cast

import uvloop
from uvloop.loop import SSLProtocol as UvloopTls  # type: ignore[attr-defined]  # its stubs leave it out

from gateway.sockets.paced import PacedTransport

PIECE_BYTES_MIN: Final = 4 << 10  # that are read at a time, at first and behind what led to nothing
PIECE_BYTES_MAX: Final = 64 << 10  # where the pieces before were full, and led to plaintext
BARREN_BYTES_MAX: Final = 40 << 10  # of records that led to no plaintext; a whole record has 16,645 at most
BARREN_BYTES_PER_S: Final = 8 << 10  # and as much more each second: records may be padded (RFC 8446, 5.4)
RECORD_PARTS: Final = 96  # bytes of records that a byte of plaintext makes up for: alone it takes up to 85
KEPT_BYTES_MAX: Final = 32 << 10  # of records while nobody reads; beyond, the socket is not read either
ENDING_S_MAX: Final = 0.25  # of processor time for input that nobody wants any more: of data some 100 MB
TURN_S: Final = 0.005  # of a turn of the event loop that all connections of a listener take together


class TlsTurns:
    """The connections whose input waits for a turn of the event loop, because others have used this one up."""

    def __init__(self) -> None:
        """Begins on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[TlsInput] = deque()
        self._took_s = 0.0  # of this turn

    @property
    def used_up(self) -> bool:
        """Returns whether this turn's time was taken."""
        return self._took_s >= TURN_S

    def took(self, seconds: float) -> None:
        """Adds the time that a piece has taken."""
        if not self._took_s:
            self._loop.call_soon(self._begin)
        self._took_s += seconds

    def _begin(self) -> None:
        self._took_s = 0.0

    def wait(self, one: "TlsInput") -> None:
        """Lets a connection go on in a later turn, behind those that wait already."""
        if not self._waiting:
            self._loop.call_soon(self._go_on)
        self._waiting.append(one)

    def _go_on(self) -> None:
        began_s = perf_counter()
        for _ in range(len(self._waiting)):
            one = self._waiting.popleft()
            try:
                one.go_on()
            except Exception as error:  # noqa: BLE001 - as where the socket's transport calls it
                one.fail(error)
            if perf_counter() - began_s >= TURN_S:
                break
        if self._waiting:
            self._loop.call_soon(self._go_on)


class TlsInput(asyncio.BufferedProtocol):
    """The protocol of a socket's transport, in front of the event loop's TLS."""

    def __init__(
        self,
        above: PacedTransport,
        context: ssl.SSLContext,
        shaken: "asyncio.Future[None]",
        turns: TlsTurns,
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
        self._shaken: asyncio.Future[None] | None = shaken  # None once it is done
        self._turns = turns
        self._handshake_bytes_max = handshake_bytes_max
        self._cut_off = cut_off
        self._piece_bytes = PIECE_BYTES_MIN
        self._aside: deque[bytes] = deque()  # pieces that wait for a turn, or for somebody who reads
        self._aside_bytes = 0
        self._is_queued = self._at_end = self._is_gone = False
        self._barren_bytes = 0.0
        self._barren_s = 0.0  # when that was counted last
        self._ending_s = 0.0  # that was spent on input after the end
        self._transport: asyncio.Transport | None = None
        made: Any = UvloopTls if isinstance(self._loop, uvloop.Loop) else AsyncioTls
        self._tls = made(self._loop, above, context, shaken, server_side=True, ssl_handshake_timeout=handshake_s)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins the handshake."""
        if self._is_gone:
            cast(asyncio.Transport, transport).abort()
            return
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not derive from it
        self._above.lie_on(self)
        self._tls.connection_made(transport)

    # ---- input

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the place for the next piece."""
        place: memoryview = self._tls.get_buffer(PIECE_BYTES_MAX)
        return place[: self._piece_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypts a piece, or puts it aside until there is time for it, or somebody who reads."""
        if not self._aside and self._is_wanted and not self._turns.used_up:
            self._decrypt(nbytes)
            return
        self._aside.append(bytes(self._tls.get_buffer(PIECE_BYTES_MAX)[:nbytes]))
        self._aside_bytes += nbytes
        self.changed()

    @property
    def _is_wanted(self) -> bool:
        """Returns whether input is read above, or passed over at the end."""
        return self._above.reading or self._above.ended

    def changed(self) -> None:
        """Goes on, or not, as it is read above again or has ended, or as more has come."""
        if self._aside and self._is_wanted and not self._is_queued and self._transport is not None:
            self._is_queued = True
            self._turns.wait(self)
        self._read_on()

    def go_on(self) -> None:
        """Decrypts a piece that was put aside."""
        self._is_queued = False
        if self._transport is None or not self._aside or not self._is_wanted:
            return
        piece = self._aside.popleft()
        self._aside_bytes -= len(piece)
        self._tls.get_buffer(PIECE_BYTES_MAX)[: len(piece)] = piece
        self._decrypt(len(piece))
        if self._at_end and not self._aside and not self._tls.eof_received() and self._transport is not None:
            self._transport.close()
        self.changed()

    def _read_on(self) -> None:
        """Reads the socket, or does not: while pieces wait for a turn, or enough of them for somebody who reads."""
        if self._transport is None or self._at_end:
            return
        if self._is_queued or self._aside_bytes > KEPT_BYTES_MAX:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def fail(self, error: Exception) -> None:
        """Ends the connection, for a bug of ours."""
        self._loop.call_exception_handler({"message": "TLS input has failed", "exception": error})
        if self._transport is not None:
            self._transport.abort()

    def _decrypt(self, nbytes: int) -> None:
        above, before_bytes = self._above, self._above.received_bytes
        shaking, ended = self._shaken is not None, above.ended
        began_s, began_cpu_s = perf_counter(), thread_time() if ended else 0.0
        self._tls.buffer_updated(nbytes)
        self._turns.took(perf_counter() - began_s)
        if self._shaken is not None and self._shaken.done():
            self._shaken = None
        if ended:
            self._ending_s += thread_time() - began_cpu_s
            too_much = self._ending_s > ENDING_S_MAX
        else:
            too_much = self._is_barren(nbytes, above.received_bytes - before_bytes, shaking=shaking)
        if too_much and self._transport is not None:
            transport, self._transport = self._transport, None
            self._aside.clear()
            transport.abort()
            self._cut_off()

    def _is_barren(self, nbytes: int, gained_bytes: int, *, shaking: bool) -> bool:
        """Counts a piece, and what it has led to; returns whether too much has led to nothing."""
        full = nbytes == self._piece_bytes
        if gained_bytes and full:
            self._piece_bytes = min(2 * self._piece_bytes, PIECE_BYTES_MAX)
        elif not gained_bytes and self._barren_bytes > 0:
            self._piece_bytes = PIECE_BYTES_MIN
        if shaking and self._shaken is None:
            self._barren_bytes = 0
            return False
        barren = self._barren_bytes + nbytes - RECORD_PARTS * gained_bytes
        if not shaking:
            now_s = self._loop.time()
            barren -= (now_s - self._barren_s) * BARREN_BYTES_PER_S
            self._barren_s = now_s
        self._barren_bytes = max(barren, 0)
        return self._barren_bytes > (self._handshake_bytes_max if shaking else BARREN_BYTES_MAX)

    # ---- the rest

    def eof_received(self) -> bool | None:
        """Passes on the end of input, behind all of it."""
        if self._aside:
            self._at_end = True
            return True
        return cast(bool | None, self._tls.eof_received())

    def pause_writing(self) -> None:
        """Passes on that the socket takes no more."""
        self._tls.pause_writing()

    def resume_writing(self) -> None:
        """Passes on that the socket takes more."""
        self._tls.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Passes on that the connection is gone, and lets go of what refers to this."""
        if self._is_gone:
            return
        self._is_gone = True
        self._transport = self._shaken = None
        self._aside.clear()
        self._above.lie_on(None)
        self._tls.connection_lost(exc)

    def give_up(self) -> None:
        """Ends a handshake, however far the connection is: uvloop says nothing of one that it has just begun."""
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(None)
