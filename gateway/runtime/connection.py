"""The stream shell: one TCP or TLS connection, whatever its protocol."""

import asyncio
import os
import socket
import ssl
from time import thread_time
from typing import cast

from gateway.config.config import is_loopback
from gateway.domain.errors import Refusal
from gateway.port.adapter import ConnectionInfo, HandOver, Outcome, Responder, TimedAdapter
from gateway.port.operated import OperatedAdapter
from gateway.port.single import Single, SingleAdapter
from gateway.runtime.closing_peer import ClosingPeer
from gateway.runtime.endpoint import CLOCK_STEP_MS, OUTSTANDING_BYTES_MAX, Endpoint, ListenerContext
from gateway.runtime.turn import StreamEndpoint, StreamHub
from gateway.runtime.unread import WriteStall, counted
from gateway.security.limits import SendingPace, network_of
from gateway.security.tls import peer_certificate
from gateway.sockets.transport import SocketTransport
from store.base import logs
from store.base.clock import lead_ms, now_ms
from store.base.listening import UNAUTHENTICATED

LAST_READ_BYTES = 64 << 10  # of a peer that went away while it was written to
LINGERING_MAX = 256  # connections at a time that wait for their peers to go; beyond, they are closed at once
TURNED_AWAY_S = 5.0  # how long a peer that is not let in may take to ask and be told why
LONG_READ_S = 0.01  # a read that takes more processor time than this is followed by a turn of the others
_TOO_EARLY = "a connection is closed: unauthenticated connections together hold over 192 MiB of input, this one most"
_TOO_UNREAD = "a connection is closed: peers together hold too much (gateway.unread_bytes_max), and this one makes way"
HELD_S = 60.0  # until input is read that was not asked for again: never, as the pause guard ends sooner

log = logs.get(__name__)


class Connection(asyncio.Protocol, StreamEndpoint):
    """A socket and its adapter. Reading stops while the adapter, this connection's share or the store is full."""

    __slots__ = (
        "_hub",
        "_lead_ms",
        "_listener",
        "_network",
        "_pause",
        "_responder",
        "_secure",
        "_stall",
        "unread_bytes",
    )

    def __init__(self, hub: StreamHub, listener: ListenerContext) -> None:
        self._hub = hub
        self._listener = listener
        self.transport = None
        self.plain = None
        self.reading = True
        self._secure = False
        self._lead_ms = lead_ms()  # when this was last looked at
        self._stall: WriteStall | None = None  # set while the peer does not read
        self._pause: asyncio.TimerHandle | None = None  # set while it is not read: too fast, or others' turn
        self.ended = False
        self.early_bytes = 0
        self.unread_bytes = 0  # of responses that the peer does not take; they count in the process's budget
        self._responder: Responder | None = None
        self._network = b""
        self.singles_in_flight, self.told = [], []

    # ---- from the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to serve a peer that has connected."""
        transport = cast(asyncio.Transport, transport)  # uvloop's do not derive from it
        self.transport = transport
        if isinstance(transport, SocketTransport):
            self.plain = transport
        listener = self._listener
        info = _info(transport, listener.name, self._hub)
        self._secure = info.secure
        host, now = str(info.peer[0]), now_ms()
        admission = self._hub.connection_limiter.admit("" if info.forwarding else host, now_ms=now)
        if admission is None:
            self.gone = True
            self._hub.metrics.errors(listener.protocol, "cut_off").inc()
            transport.abort()
            return
        adapter = listener.factory.connect(info, listener.options, random=self._hub.random)
        Endpoint.__init__(self, self._hub, listener.protocol, adapter, loopback=info.loopback)
        self._know_adapter()
        self.host, self.certificate = host, info.certificate
        self._network = network_of(host).encode()
        self.admission, self.turned_away = admission, admission.refusal
        self.pace = SendingPace.of(self._hub.limits, now_ms=now)
        if admission.refusal is not None:
            self._hub.later(TURNED_AWAY_S, self._turn_away)
        transport.set_write_buffer_limits(high=self._hub.write_buffer_bytes_max)
        self._hub.joined(self)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Takes bytes from the peer."""
        self._hub.turn.received(((self, data),))

    def receive(self, data: bytes) -> None:
        """Reads input that is not a single message, or may not take the short path."""
        if self.gone:
            return
        if self.has_session and self._hub.pauses.holds(self, data):
            if self._pause is None:
                self._pause = self.hub.later(HELD_S, self.resume_reading)
            self.flush()
            return
        self._receive(data)

    def settled(self) -> None:
        """Handles the effects of its last message's acknowledgement, besides the acknowledgement itself."""
        if not self.reading or self.ended:
            self.flush()
        if self.unanswered is not None:
            self.all_answered()

    def failed(self, single: Single, error: Refusal, size_bytes: int) -> None:
        """See `gateway.publishing.publishing.SinglePublisher`."""
        self.ended_by_adapter(single, Outcome(error=error), size_bytes)

    def ended_by_adapter(self, single: Single, outcome: Outcome, size_bytes: int) -> None:
        """Passes the outcome of a single message to the adapter."""
        self.published(self.publish_of(single).token, outcome, size_bytes)

    def wake(self, data: bytes) -> None:
        """See `gateway.base.pause_guard.PausedReader`."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if not self.gone:
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        self.flow.bytes_in += len(data)
        began_s = 0.0 if self.plain is not None else thread_time()  # which is a system call, and not a quick one
        if self.pace is not None:
            self.pace.read(len(data), now_ms=now_ms())
        try:
            # The adapter may answer this input at once; that comes behind what it is told of here.
            if self.singles_in_flight and not self.tell_adapter():
                return
            effects = self.adapter.receive(data, now_ms=now_ms())
            if self.early_bytes or not effects:
                self._count_early(0 if effects else len(data))
            self.act(effects, len(data))
        except Exception:  # our own bug, whatever it is, must not reach other connections
            log.exception("an adapter failed", protocol=self.protocol, endpoint=self.id)
            self.close("internal error")
        if began_s and thread_time() - began_s >= LONG_READ_S and self._pause is None and not self.gone:
            # Else the loop reads on, 32 times, before it looks at others.
            self._pause = self.hub.later(0, self.resume_reading)
        self.flush()

    def _count_early(self, size_bytes: int) -> None:
        """Counts the bytes of an unauthenticated peer that led to nothing yet; 0: they did."""
        early = 0
        if size_bytes and self.principal is self._hub.access.unauthenticated(self.protocol):
            early = self.early_bytes + size_bytes
        if early != self.early_bytes:
            self.early_bytes = early
            UNAUTHENTICATED.hold(self, self._network, early)

    def _count_unread(self) -> None:
        """Counts the responses held for the peer; beyond the limit for all, a connection is cut off."""
        unread = self.unread_now()
        if unread != self.unread_bytes:
            self.unread_bytes = unread
            self._hub.unread.hold(self, self._network, unread)

    def unread_now(self) -> int:
        """See `gateway.runtime.unread.UnreadHolder`."""
        unread = 0 if self._responder is None else self._responder.unread_bytes
        transport = self.transport
        if transport is not None and (not self.writable or transport.is_closing()):
            unread += transport.get_write_buffer_size()
        return counted(unread, self._hub.write_buffer_bytes_max)

    def cancel(self) -> None:
        """See `Holder` and `UnreadHolder`: peers make us hold too much, and this one makes way."""
        if not self.gone:
            text = _TOO_EARLY if self.early_bytes > self.unread_bytes else _TOO_UNREAD
            sizes = {"early_bytes": self.early_bytes, "unread_bytes": self.unread_bytes}
            log.info(text, protocol=self.protocol, endpoint=self.id, **sizes)
            self.hub.metrics.errors(self.protocol, "cut_off").inc()
            self.abort()

    def eof_received(self) -> bool:
        """Reads no more, but still answers the peer's requests (not over TLS, which has no half-close)."""
        self.ended = True
        self.hub.answers.left(self)  # most peers that do this are gone, and say so when they are written to
        return self._asked and not self._secure

    @property
    def _asked(self) -> bool:
        return self.outstanding_count > 0 or self._hub.calls_under_way(self) > 0

    def pause_writing(self) -> None:
        """Stops reading a peer that reads too slowly, as its requests have answers."""
        self.writable = False
        assert self.transport is not None
        self._stall = WriteStall(self.hub.later, self.transport, self._stalled)
        self.flush()

    def _stalled(self) -> None:
        if not self.gone:
            log.info("a peer does not read", protocol=self.protocol, endpoint=self.id)
            self.hub.metrics.errors(self.protocol, "stalled").inc()
            self.abort()

    def resume_writing(self) -> None:
        """Reads again a peer that has read the held output."""
        self.writable = True
        if self._stall is not None:
            self._stall.cancel()
        if not self.gone:
            self.resumed()
            self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Lets go of everything, as the connection is gone."""
        if not hasattr(self, "hub"):
            return  # never admitted
        if self.has_session and not self.gone and (held := self._hub.pauses.give_back(self)):
            self._receive(held)
        if exc is not None and not self._secure and not self.gone:
            self._read_the_rest()
        self.gone = True
        UNAUTHENTICATED.release(self, self._network)
        self._hub.unread.release(self, self._network)
        for timer in (self._timer, self._stall, self._pause):
            if timer is not None:
                timer.cancel()
        self.guard(lambda: self.act(self.adapter.lost(now_ms=now_ms())))
        self._hub.left(self)

    def _read_the_rest(self) -> None:
        """Reads the bytes that the peer sent before it went away.

        A write to a peer that has closed fails, and the event loop gives up the connection; bytes that the peer sent
        before that, its last acknowledgements or its DISCONNECT, have arrived all the same.
        """
        assert self.transport is not None
        try:
            with socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno())) as rest:
                rest.setblocking(False)
                data = rest.recv(LAST_READ_BYTES)
        except OSError:
            return
        if data:
            self.receive(data)

    # ---- for Endpoint and Hub

    def comes_from(self, address: str) -> None:
        """Counts the connection for the peer that a proxy of ours named. Raises `Refusal` where enough are there."""
        super().comes_from(address)
        self.admission = self._hub.connection_limiter.place(self.admission, address)

    def flush(self) -> None:
        """Writes the adapter's output, notes its deadline, and continues or pauses reading."""
        transport = self.transport
        if self.gone or transport is None or transport.is_closing():
            return
        # While the peer does not read, output is left with the adapter, which sees by that not to make more of it.
        out = self.adapter.take_output() if self.writable else b""
        if out:
            self.flow.bytes_out += len(out)
            transport.write(out)
        if self._responder is not None:
            self._count_unread()
        if self.ended and not self._asked:
            self.close("")
            return
        self._read_on(transport)
        self._arm()

    def _read_on(self, transport: asyncio.Transport) -> None:
        """Reads, or stops reading: while the adapter, this connection, its peer or the store is full."""
        crowded = self.hub.crowded
        reading = (
            self.adapter.wants_data
            and self.writable
            and self.outstanding_bytes < OUTSTANDING_BYTES_MAX
            and not crowded
            and self._pause is None
            and (self.pace is None or self._in_pace(self.pace))
        )
        if crowded:
            self.hub.paused(self)  # at each check, because the hub drops it after each call
        if reading is not self.reading:
            self.reading = reading
            if reading:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _in_pace(self, pace: SendingPace) -> bool:
        """Returns whether the peer keeps to its rate; if not, schedules another look for when the excess is over."""
        if wait_ms := pace.wait_ms(now_ms=now_ms()):
            self._pause = self.hub.later(wait_ms / 1_000, self.resume_reading)
        return self._pause is None

    def resume_reading(self) -> None:
        """Reads again, as its pause is over."""
        self._pause = None
        self.flush()

    def _turn_away(self) -> None:
        """Closes a refused connection, whose peer has had time to read the reason."""
        self.close("turned away")

    def close(self, reason: str) -> None:
        """Writes the rest of the output, then closes; a peer that does not read it is cut off."""
        transport = self.transport
        if self.gone or transport is None or transport.is_closing():
            return
        if reason:
            log.info("closing a connection", protocol=self.protocol, endpoint=self.id, host=self.host, reason=reason)
        out = self.adapter.take_output()
        if out:
            transport.write(out)
        stall = WriteStall.of_closing(self.hub.later, transport, transport.abort)
        if self.ended or self._secure or self._hub.lingering >= LINGERING_MAX:  # TLS has a good-bye
            transport.close()
            self._hub.unread.hold(self, self._network, self.unread_now())
            return
        self.transport = None
        peer = ClosingPeer(self._hub, transport, stall, self._network, self.protocol)
        transport.set_protocol(peer)
        transport.write_eof()
        if not self.reading:
            transport.resume_reading()
        self.hub.later(0, lambda: self.connection_lost(None))
        peer.hold()

    def abort(self) -> None:
        """Closes without another word."""
        if self.transport is not None:
            self.transport.abort()

    def hand_over(self, effect: HandOver) -> None:
        """See `HandOver`: the next adapter must authenticate the peer again."""
        hub, listener, transport = self._hub, self._hub.others[effect.listener], self.transport
        if self.gone or transport is None or self._asked:
            self.close("an upgrade while requests are in flight")
            return
        self.flow.open -= 1
        self._listener, self.protocol, self.flow = listener, listener.protocol, hub.metrics.flow(listener.protocol)
        self.flow.open += 1
        self.flow.accepted += 1
        self.adapter = listener.factory.connect(
            _info(transport, listener.name, hub, websocket=effect.websocket), listener.options, random=hub.random
        )
        self._know_adapter()
        self.principal = hub.access.unauthenticated(self.protocol)
        self.act(self.adapter.receive(effect.data, now_ms=now_ms()))

    def _know_adapter(self) -> None:
        """Notes the adapter's optional methods."""
        self.singles = self.adapter.singles if isinstance(self.adapter, SingleAdapter) else None
        self._responder = self.adapter if isinstance(self.adapter, Responder) else None

    def supersede(self) -> None:
        """Ends: another connection has taken over the session."""
        if not self.gone:
            self.superseded = True
            self.guard(lambda: self.act(self.adapter.superseded(now_ms=now_ms())))
            self.flush()

    def shut_down(self) -> None:
        """Tells the client that the gateway shuts down, and ends."""
        if not self.gone:
            self.tell_adapter()
            self.guard(lambda: self.act(self.adapter.shutdown(now_ms=now_ms())))
            self.flush()

    def dismiss(self) -> None:
        """Closes the connection of a client that would not be authenticated any more."""
        if not self.gone:
            self.tell_adapter()
            self.guard(lambda: self.act(self.adapter.shutdown(now_ms=now_ms(), dismissed=True)))
            self.flush()

    @property
    def peer(self) -> str:
        """Returns the address and port of the peer."""
        place = None if self.transport is None else self.transport.get_extra_info("peername")
        return f"{self.host}:{place[1]}" if isinstance(place, tuple) else self.host

    @property
    def listener_name(self) -> str:
        """Returns the name of the listener that it came by."""
        return self._listener.name

    def force_close(self, reason: str) -> None:
        """Closes the connection for an operator."""
        adapter = self.adapter
        if not self.gone and isinstance(adapter, OperatedAdapter):
            self.tell_adapter()
            self.guard(lambda: self.act(adapter.force_close(reason, now_ms=now_ms())))
            self.flush()

    # ---- deadlines

    def _fire(self) -> None:
        self._timer = None
        if self.gone:
            return
        before_ms, self._lead_ms = self._lead_ms, lead_ms()
        step_ms = self._lead_ms - before_ms
        if abs(step_ms) <= CLOCK_STEP_MS:
            step_ms = 0
        elif isinstance(timed := self.adapter, TimedAdapter):
            self.guard(lambda: timed.clock_set(step_ms))
        # We have stopped reading, so the peer is not idle; or it is not known for how long it has been.
        if step_ms or not self.reading:
            self.tell_adapter()
            self.guard(lambda: self.act(self.adapter.receive(b"", now_ms=now_ms())))
        deadline, now = self.adapter.deadline_ms(), now_ms()
        if deadline is not None and deadline <= now:
            self.tell_adapter()
            self.guard(lambda: self.act(self.adapter.tick(now_ms=now)))
        self.flush()


def _info(transport: asyncio.Transport, listener: str, hub: StreamHub, *, websocket: bool = False) -> ConnectionInfo:
    forwarding = hub.forwarding
    peer = transport.get_extra_info("peername") or ("", 0)
    local = transport.get_extra_info("sockname") or ("", 0)
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    return ConnectionInfo(
        peer=tuple(peer),
        local=tuple(local),
        listener=listener,
        secure=tls is not None,
        alpn=tls.selected_alpn_protocol() if tls is not None else None,
        loopback=is_loopback(str(peer[0])),
        certificate=None if tls is None else peer_certificate(tls),
        forwarding=forwarding if forwarding is not None and forwarding.trusts(str(peer[0])) else None,
        gateway=hub.timer_secrets.gateway_id,
        now_ms=now_ms(),
        message_bytes_max=hub.body_bytes_max,
        websocket=websocket,
        others=hub.others.keys(),
    )
