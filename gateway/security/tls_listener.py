"""A TLS port: it accepts connections itself, so that handshakes are counted by where they come from.

Until its handshake is over a connection is unauthenticated, and a peer can have it wait for `handshake_s`. When too
many handshakes are in progress, the oldest one of the network that has most is given up, so that a flood makes way for
those that come later, and takes nothing from another network.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from gateway.security.failed_handshakes import why_failed
from gateway.security.limits import network_of
from gateway.sockets.listening import TcpListener
from gateway.sockets.paced import PacedTransport
from gateway.sockets.tls_input import TlsInput, TlsTurns
from store.base import logs
from store.base.listening import UNAUTHENTICATED, PeerBudget
from store.base.listening.passing import handed_over
from store.base.listening.peer_budget import Holder
from store.base.listening.places import ConnectionSlots

HANDSHAKES_COUNT_MAX: Final = 2_048  # in progress
HANDSHAKE_BYTES: Final = 48 << 10  # that one takes, up to twice as much where a large record is sent by half
CERTIFICATE_BYTES: Final = 100 << 10  # and more where the peer may send certificates (SSL_CTX_set_max_cert_list)

log = logs.get(__name__)


class Handshakes:
    """The handshakes in progress, of all TLS ports of a process."""

    def __init__(self, budget: PeerBudget[Holder] = UNAUTHENTICATED) -> None:
        """Begins without any; each counts in `budget`."""
        self._places = ConnectionSlots()  # <= HANDSHAKES_COUNT_MAX
        self._budget = budget

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, handshake: Holder, network: bytes, size_bytes: int) -> None:
        """Counts one more, and cancels those that have to make way, maybe this one."""
        self._places.take(handshake, network, HANDSHAKES_COUNT_MAX)
        self._budget.hold(handshake, network, size_bytes)

    def leave(self, handshake: Holder, network: bytes) -> None:
        """Notes the end of one that had begun."""
        self._places.leave(handshake)
        self._budget.release(handshake, network)


class TlsListener(TcpListener):
    """A TLS port.

    `cut_off` is called for each connection whose handshake had to make way, and each one whose peer sends much that
    leads to nothing; `failed` with the host of each one whose handshake failed, and why.
    """

    def __init__(
        self,
        connection: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        handshakes: Handshakes,
        *,
        handshake_s: float,
        cut_off: Callable[[], object],
        failed: Callable[[str, str], object],
    ) -> None:
        super().__init__()
        self._connection = connection
        self._context = context
        self._handshakes = handshakes
        self._handshake_s = handshake_s
        self._handshake_bytes = HANDSHAKE_BYTES
        if context.verify_mode is not ssl.CERT_NONE:
            self._handshake_bytes += CERTIFICATE_BYTES
        self._cut_off = cut_off
        self._failed = failed
        self._shaking: set[asyncio.Task[None]] = set()
        self._turns = TlsTurns()

    def close(self) -> None:
        """Accepts no more, and ends handshakes in progress."""
        super().close()
        for task in self._shaking:
            task.cancel()

    def accepted(self, sock: socket.socket, address: Any) -> None:
        """See `TcpListener.accepted`."""
        host = str(address[0])
        network = network_of(host).encode()
        task = self._loop.create_task(self._shake(sock, host))
        self._shaking.add(task)
        task.add_done_callback(partial(self._shaken, sock, network))
        self._handshakes.enter(task, network, self._handshake_bytes)

    def _ended(self, host: str) -> None:
        log.info("a TLS connection is cut off: the peer has this side work for nothing", host=host)
        self._cut_off()

    async def _shake(self, sock: socket.socket, host: str) -> None:
        """Shakes hands; a peer that does not bring it to an end is no connection."""
        shaken: asyncio.Future[None] = self._loop.create_future()
        below = self._tls(shaken, host)
        try:
            await self._loop.connect_accepted_socket(lambda: below, handed_over(sock))
            await shaken
        except asyncio.CancelledError:
            below.give_up()
            raise
        except OSError as error:
            if reason := why_failed(error):
                self._failed(host, reason)
        except Exception:  # our own bug must not keep others from being let in
            log.exception("a connection cannot begin")
        finally:
            del shaken  # an error's frames refer to this one, and so to the error

    def _tls(self, shaken: "asyncio.Future[None]", host: str) -> TlsInput:
        return TlsInput(
            PacedTransport(self._connection()),
            self._context,
            shaken,
            self._turns,
            handshake_s=self._handshake_s,
            handshake_bytes_max=self._handshake_bytes,
            cut_off=partial(self._ended, host),
        )

    def _shaken(self, sock: socket.socket, network: bytes, task: "asyncio.Task[None]") -> None:
        """Forgets a handshake that is over, maybe before it began."""
        self._shaking.discard(task)
        self._handshakes.leave(task, network)
        sock.close()  # which its transport does, once there is one
        if task.cancelled() and self.is_serving():
            self._cut_off()
