"""gRPC between simulated processes: what `grpc.aio` gives the product, over a network that fails by chance.

A channel is a connection as TCP makes one: two directions, each in order. Where the network loses a packet, what is
behind it comes later; where it is cut, in one direction or both, nothing comes until it is mended. A connection ends
when either side closes it or its process dies, or the network resets it. A machine without power says nothing at all:
whoever speaks to it learns that when it is up again. Raft's messages go as datagrams, which are lost, doubled, late and
out of order.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest

from store.base import pipes
from tests.sim.joint.joint_calls import UNAVAILABLE, Call
from tests.sim.joint.joint_loop import HERE, JointLoop, Process

RETRANSMIT_S = (0.02, 0.3)
LATE_S = (0.02, 0.1, 1.5)  # a datagram


class Net:
    """The network: who listens where, and what is wrong between any two."""

    def __init__(self, loop: JointLoop, seed: int) -> None:
        self.loop = loop
        self.seed = seed
        self.context = copy_context()  # packets in flight arrive whichever process dies
        self.servers: dict[str, Server] = {}  # by address
        self.datagrams: dict[str, Callable[[object], None]] = {}  # by process name
        self.dark: dict[str, None] = {}  # machines without power, by name
        self.cut: dict[tuple[str, str], None] = {}  # one way: nothing comes from one to the other
        self.delay_s = (0.0005, 0.002)
        self.loss = self.doubles = self.lates = self.resets = 0.0
        self._chances: dict[tuple[str, str], random.Random] = {}
        self._connections: dict[Connection, None] = {}

    def chance(self, source: str, target: str) -> random.Random:
        """Returns the link's own random numbers, which do not depend on the messages of other links."""
        found = self._chances.get((source, target))
        if found is None:
            found = self._chances[source, target] = random.Random(f"{self.seed} {source} {target}")
        return found

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self.cut or target in self.dark or source in self.dark

    def at(self, when_s: float, function, *args) -> asyncio.TimerHandle:
        return self.loop.call_at(when_s, function, *args, context=self.context)

    # ---- in place of gRPC, and of pipes

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts this network's channels and servers in place of the real ones."""
        with pytest.MonkeyPatch.context() as patch:
            for module, channel, server in (
                (grpc.aio, "insecure_channel", "server"),
                (pipes, "open_channel", "PipeServer"),
            ):
                patch.setattr(module, channel, lambda target, *_, **__: Connection(self, _here(), target))
                patch.setattr(module, server, lambda **_: Server(self, _here()))
            yield

    # ---- datagrams

    def send(self, source: str, target: str, message: object) -> None:
        """Sends a datagram, or loses it."""
        chance = self.chance(source, target)
        for _ in range(2 if chance.random() < self.doubles else 1):
            if chance.random() < self.loss:
                continue
            delay_s = chance.uniform(*self.delay_s)
            if chance.random() < self.lates:
                delay_s += chance.choice(LATE_S)
            self.at(self.loop.now_s + delay_s, self._arrive, source, target, message)

    def _arrive(self, source: str, target: str, message: object) -> None:
        door = self.datagrams.get(target)
        if door is not None and not self.is_cut(source, target):
            self.loop.changed[target] = None
            door(message)

    # ---- what goes wrong

    def mend(self, links) -> None:
        """Mends links; what waits is sent again."""
        for link in links:
            self.cut.pop(link, None)
        self.stir()

    def stir(self) -> None:
        """Lets go on what was held up, if it may."""
        for connection in self._connections:
            connection.up.stir()
            connection.down.stir()

    def died(self, process: Process, *, quietly: bool) -> None:
        """Ends a process. Its machine closes its connections, unless it has no power."""
        self.datagrams.pop(process.name, None)
        for address in [at for at, server in self.servers.items() if server.process is process]:
            del self.servers[address]
        for connection in [*self._connections]:
            connection.died(process, quietly=quietly)

    def forget(self, connection: "Connection") -> None:
        self._connections.pop(connection, None)

    def opened(self, connection: "Connection") -> None:
        self._connections[connection] = None

    def reset_some(self, name: str) -> None:
        """Breaks some connections of a process."""
        for connection in [*self._connections]:
            if name in connection.ends:
                connection.break_off()


def _here() -> Process:
    here = HERE.get()
    assert here is not None, "nobody is here"
    return here


class Pipe:
    """One direction of a connection."""

    def __init__(self, net: Net, source: str, target: str, break_off: Callable[[], None]) -> None:
        self.net, self.source, self.target = net, source, target
        self._break_off = break_off
        self._chance = net.chance(source, target)
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()  # when it is due, ascending
        self._timer: asyncio.TimerHandle | None = None
        self.over = False

    def put(self, deliver: Callable[[], None]) -> None:
        net = self.net
        if self.over:
            return
        due_s = net.loop.now_s + self._chance.uniform(*net.delay_s)
        if self._chance.random() < net.loss:
            due_s += self._chance.uniform(*RETRANSMIT_S)
        if self._waiting:
            due_s = max(due_s, self._waiting[-1][0])
        self._waiting.append((due_s, deliver))
        if self._timer is None:
            self._timer = net.at(due_s, self._due)

    def _due(self) -> None:
        self._timer = None
        net = self.net
        while self._waiting and not self.over:
            due_s, deliver = self._waiting[0]
            if due_s > net.loop.now_s:
                self._timer = net.at(due_s, self._due)
                return
            if net.is_cut(self.source, self.target):
                return
            self._waiting.popleft()
            net.loop.changed[self.target] = None
            deliver()
            if net.resets and self._chance.random() < net.resets:
                self._break_off()

    def stir(self) -> None:
        """Sends again what waits on a mended link, after some time."""
        if self._waiting and self._timer is None and not self.over:
            self._timer = self.net.at(self.net.loop.now_s + self._chance.uniform(*RETRANSMIT_S), self._due)

    def end(self) -> None:
        self.over = True
        self._waiting.clear()


class Connection:
    """A channel: from a client to an address. It connects with the first call."""

    def __init__(self, net: Net, client: Process, address: str) -> None:
        self.net, self.client, self.address = net, client, address
        there = address.rpartition(":")[0]
        self.ends = (client.name, there)
        self.up, self.down = (
            Pipe(net, client.name, there, self.break_off),
            Pipe(net, there, client.name, self.break_off),
        )
        self.server: Server | None = None
        self.calls: list[Call] = []
        self.closed = False
        if client.alive:
            net.opened(self)

    # ---- grpc.aio.Channel

    def stream_stream(self, path: str, **_):
        return lambda **_: Call(self, path)

    def stream_unary(self, path: str, **_):
        return lambda **_: Call(self, path)

    def unary_stream(self, path: str, **_):
        return lambda request, **_: Call(self, path, request)

    def unary_unary(self, path: str, **_):
        return lambda request, timeout=None, **_: Call(self, path, request, timeout_s=timeout)

    async def channel_ready(self) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Closes the connection, because the client does not need it any more."""
        if self.closed:
            return
        self.closed = True
        for call in self.calls:
            call.ended(grpc.StatusCode.CANCELLED, "the channel was closed")
        self._tell_server()

    # ---- how it ends

    def _tell_server(self) -> None:
        """Sends the server the last message of this client."""
        self.up.put(self._hung_up)
        self.down.end()

    def _hung_up(self) -> None:
        for call in self.calls:
            call.context.gone()
        self.up.end()
        self.net.forget(self)

    def break_off(self, why: str = "the connection was reset") -> None:
        """Breaks the connection at both sides."""
        self.closed = True
        self.up.end()
        self.down.end()
        self.net.forget(self)
        for call in self.calls:
            call.context.gone()
            call.ended(UNAVAILABLE, why)

    def died(self, process: Process, *, quietly: bool) -> None:
        if process is self.client:
            self.closed = True
            if quietly:
                self.down.end()
                self.up._waiting.clear()  # the sender does not send it again
                self.net.at(self.net.loop.now_s + self._patience_s(), self._hung_up)
            else:
                self._tell_server()
        elif self.server is not None and self.server.process is process:
            self.up.end()
            if quietly:
                self.down._waiting.clear()
            self.down.put(self._refused)  # without power: as soon as there is somebody who says so

    def _patience_s(self) -> float:
        """Returns how long the machine that stays waits before it takes the connection for broken."""
        return self.net.chance(*self.ends).uniform(5, 15)

    def _refused(self) -> None:
        self.closed = True
        self.down.end()
        self.net.forget(self)
        for call in self.calls:
            call.ended(UNAVAILABLE, "the connection was reset")

    # ---- calls

    def begin(self, call: "Call") -> None:
        """Brings a call to the server."""
        self.calls.append(call)
        if self.closed:
            call.ended(UNAVAILABLE, "the channel is closed")
            return
        self.up.put(lambda: self._accept(call))

    def _accept(self, call: "Call") -> None:
        server = self.net.servers.get(self.address)
        if self.server is None:
            self.server = server
        if server is None or server is not self.server:
            self.down.put(self._refused)
        else:
            server.serve(call)


class Server:
    """`grpc.aio.Server`."""

    def __init__(self, net: Net, process: Process) -> None:
        self.net, self.process = net, process
        self._services: list = []
        self._addresses: list[str] = []

    def add_generic_rpc_handlers(self, handlers) -> None:
        self._services += handlers

    def add_insecure_port(self, address: str) -> int:
        self._addresses.append(address)
        return int(address.rpartition(":")[2])

    async def start(self) -> None:
        self.net.servers.update(dict.fromkeys(self._addresses, self))

    async def stop(self, grace) -> None:
        for address in self._addresses:
            self.net.servers.pop(address, None)

    def serve(self, call: Call) -> None:
        if not self.process.alive:
            return
        details = SimpleNamespace(method=call.path, invocation_metadata=())
        handler = next(filter(None, (service.service(details) for service in self._services)), None)
        assert handler is not None, call.path
        call.context.begin(handler, self.process)
