"""The datagram shell: one UDP socket, whatever its protocol.

The socket is read until it is empty at each wake, so that an adapter sees datagrams that arrived together as one batch.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence

from gateway.config.config import is_loopback
from gateway.port.adapter import Deliverable, HandOver, Peer, TimedAdapter
from gateway.port.datagram import DatagramAdapter, DatagramFactory
from gateway.runtime.endpoint import CLOCK_STEP_MS, OUTSTANDING_BYTES_MAX, Endpoint, Hub, ListenerContext
from gateway.runtime.wildcard_socket import WildcardSocket, is_wildcard
from store.base import logs
from store.base.clock import now_ms, steady_ms

WAKE_DATAGRAMS_MAX = 256  # read in one wake, so that other connections get their turn
DATAGRAM_BYTES_MAX = 65_535
UNSENT_DATAGRAMS_MAX = 4_096  # waiting for the socket; more are dropped, as a network would
RECEIVE_BUFFER_BYTES = 4 << 20  # asked of the system, which may give less

log = logs.get(__name__)


class DatagramEndpoint(Endpoint):
    """A bound socket and its adapter."""

    adapter: DatagramAdapter

    def __init__(
        self, hub: Hub, listener: ListenerContext, sock: socket.socket, adapter: DatagramAdapter, *, loopback: bool
    ) -> None:
        super().__init__(hub, listener.protocol, adapter, loopback=loopback)
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._datagrams = WildcardSocket(sock) if is_wildcard(sock) else sock
        self._unsent: deque[tuple[bytes, Peer]] = deque()
        self._reading = False
        self._draining = False  # it answers, and reads no more
        self._lead_ms = now_ms() - steady_ms()  # of the clock before the one that is never set, as the adapter knows it
        self.flush()

    @classmethod
    async def open(
        cls,
        hub: Hub,
        listener: ListenerContext,
        host: str,
        port: int,
        *,
        shared: bool = False,
        adapter: DatagramAdapter | None = None,
    ) -> "DatagramEndpoint":
        """Binds a socket; on a `shared` port the kernel gives each peer to one of several. Raises OSError.

        Without an `adapter` it is the one of the listener's factory.
        """
        if adapter is None:
            assert isinstance(listener.factory, DatagramFactory), "adapter_factories checks it"
            adapter = listener.factory.bind(listener.options, random=hub.random)
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)
        family, kind, proto, _, address = found[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
        return cls(hub, listener, sock, adapter, loopback=is_loopback(host))

    @property
    def address(self) -> Peer:
        """Returns the address that the socket is bound to."""
        return tuple(self._socket.getsockname())

    def flush(self) -> None:
        """Sends the adapter's output, notes its deadline, and continues or pauses reading."""
        if self.gone:
            return
        out = self.adapter.take_output()
        if out:
            self._send(out)
        crowded = self.hub.crowded
        reading = self.outstanding_bytes < OUTSTANDING_BYTES_MAX and not crowded and not self._draining
        if crowded:
            self.hub.paused(self)  # at every look, for the hub forgets it at every call
        if reading is not self._reading:
            self._reading = reading
            if reading:
                self._loop.add_reader(self._socket, self._readable)
            else:
                self._loop.remove_reader(self._socket)
        self._arm()

    def drain(self) -> None:
        """Reads nothing more. Datagrams that were read still get their answers."""
        self._draining = True
        self.flush()

    def guard(self, work: Callable[[], None]) -> None:
        """Calls the adapter; if it raises, the work in progress is lost, as datagrams may be."""
        try:
            self._look_at_clock()
            work()
        except Exception:  # our own bug, whatever it is, must not end the protocol for everybody
            log.exception("an adapter failed", protocol=self.protocol, endpoint=self.id)
            self.hub.metrics.errors(self.protocol, "internal").inc()

    def _offer(self, deliveries: Deliverable) -> int:
        taken = 0

        def offer() -> None:
            nonlocal taken
            taken = self.adapter.deliver(deliveries, now_ms=now_ms())

        self.guard(offer)
        return taken

    def close(self, reason: str) -> None:
        """Stops. `reason` is not sent: there is no connection to close."""
        if self.gone:
            return
        self._send(self.adapter.take_output())
        self.gone = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()

    def hand_over(self, effect: HandOver) -> None:
        """Fails: only streams are handed over."""
        raise AssertionError(f"an adapter of datagrams hands over to {effect.listener}")

    def _readable(self) -> None:
        datagrams: list[tuple[bytes, Peer]] = []
        size = 0
        receive = self._datagrams.recvfrom
        try:
            while len(datagrams) < WAKE_DATAGRAMS_MAX:
                item = receive(DATAGRAM_BYTES_MAX)
                datagrams.append(item)
                size += len(item[0])
        except (BlockingIOError, InterruptedError):
            pass  # read empty
        except OSError:
            # An ICMP error for a peer that has gone: nothing of ours to undo.
            self.hub.metrics.errors(self.protocol, "socket").inc()
        if datagrams:
            self.flow.bytes_in += size
            self.guard(lambda: self.act(self.adapter.receive(datagrams, now_ms=now_ms()), size))
            self.flush()

    def _look_at_clock(self) -> None:
        """Tells the adapter, before it is called, when the clock was set since."""
        step_ms = now_ms() - steady_ms() - self._lead_ms
        if abs(step_ms) > CLOCK_STEP_MS:
            self._lead_ms += step_ms
            self._timer_ms += step_ms  # when the timer fires, by the clock as it is now
            if isinstance(self.adapter, TimedAdapter):
                self.adapter.clock_set(step_ms)

    def _send(self, out: Sequence[tuple[bytes, Peer]]) -> None:
        self.flow.bytes_out += sum(len(data) for data, _ in out)
        if self._unsent:
            self._keep(out)
            return
        send = self._datagrams.sendto
        for n, (data, peer) in enumerate(out):
            try:
                send(data, peer)
            except (BlockingIOError, InterruptedError):
                self._keep(out[n:])
                self._loop.add_writer(self._socket, self._writable_again)
                return
            except OSError:
                self.hub.metrics.errors(self.protocol, "socket").inc()

    def _keep(self, out: Sequence[tuple[bytes, Peer]]) -> None:
        room = UNSENT_DATAGRAMS_MAX - len(self._unsent)
        self._unsent.extend(out[:room])
        if len(out) > room:
            self.hub.metrics.errors(self.protocol, "unsent").inc(len(out) - room)

    def _writable_again(self) -> None:
        self._loop.remove_writer(self._socket)
        waiting, self._unsent = list(self._unsent), deque()
        self._send(waiting)

    def _fire(self) -> None:
        self._timer = None
        if self.gone:
            return
        self.guard(self._tick)
        self.flush()

    def _tick(self) -> None:
        deadline, now = self.adapter.deadline_ms(), now_ms()
        if deadline is not None and deadline <= now:
            self.act(self.adapter.tick(now_ms=now))
