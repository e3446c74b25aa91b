"""A controller's server for other controllers, store nodes, proxies and operators (see wire.py)."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
import grpc.aio

from controller.api.client import ControllerClosed, ControllerError, ControllerOverloaded, Group
from controller.elections.registry import Heartbeat
from controller.node.node import ControllerNode
from controller.node.streams import WRITE_S, ClientGone, Openings, read_or_end, write
from controller.raft import NotLeader, StorageFailed
from controller.raft import decode as decode_message
from controller.wire.wire import (
    ALIVE_S,
    ASKED_MAX,
    COMMAND,
    ERRORS,
    FOLLOW,
    HEARTBEAT,
    IDENTIFY,
    INSTALL,
    MESSAGE_BYTES,
    MESSAGE_BYTES_MAX,
    PART_BYTES,
    PEER,
    PIPE_SIZES,
    ROUTES,
    SERVICE,
    SNAPSHOT_BYTES_MAX,
    STATUS,
    Answers,
    BadRequest,
    CommandGreeting,
    CommandHello,
    Fed,
    FollowRequest,
    HeartbeatHello,
    Hello,
    Introduction,
    NotLeading,
    NumberedAnswer,
    NumberedRequest,
    Pushed,
    RoutesRequest,
    decode,
    decode_request,
    describe,
    encode,
    encode_answer,
)
from store.base import listening, pipes
from store.base.listening.sockets import UNIX
from store.base.rhythm import Reminder
from store.base.streams.event_wait import wait_at_most

logger = logging.getLogger(__name__)

STREAMS_MAX = 2_048  # of all kinds at the same time; of each kind half as many
SNAPSHOTS_MAX = 8  # states being sent at the same time
REPLICAS_PER_NODE_MAX = 1_024  # that a store node speaks for
PUSH_ALIVE_S = 1.25  # a store node gets something at least that often; it gives up after 2.5 s of silence
PUSH_ANSWER_S = 0.5  # after so long without, a heartbeat is answered: no task wakes for it alone


class ControllerService:
    """A running server over a node; `start` makes one."""

    def __init__(self, node: ControllerNode) -> None:
        self._node = node
        self._server: Any = None
        self._counts: dict[str, int] = {}  # streams by method; <= STREAMS_MAX // 2 each
        self._commanders: dict[str, asyncio.Task[Any]] = {}  # client -> its stream of commands
        self._heartbeat_streams: dict[tuple[int, int], object] = {}  # (group, replica) -> the stream of its heartbeats
        self._openings = Openings()
        self._snapshots = asyncio.Semaphore(SNAPSHOTS_MAX)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.port = 0  # where it listens, once started

    @classmethod
    async def start(
        cls, node: ControllerNode, address: str = "127.0.0.1:8082", *, credentials: Any = None
    ) -> "ControllerService":
        """Serves on `address`, host and port; port 0 takes a free one. Raises OSError when it cannot be bound.

        `credentials` are `store.rpc.credentials`'; without them everybody may connect.
        """
        service = cls(node)
        service._server, service.port = await listening.serve(
            _server_for(address),
            address,
            {SERVICE: service._handlers()},
            credentials=credentials,
            received_bytes_max=MESSAGE_BYTES_MAX,
            sent_bytes_max=MESSAGE_BYTES_MAX,
            calls_count_max=STREAMS_MAX,
        )
        return service

    async def stop(self) -> None:
        """Ends all streams, and listens no more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=WRITE_S)  # they tell their clients why
        await self._server.stop(0.2)

    def _handlers(self) -> dict[str, Any]:
        streams: dict[str, Callable[[Any, Any], Coroutine[Any, Any, None]]] = {
            FOLLOW: self._follow,
            COMMAND: self._command,
            HEARTBEAT: self._heartbeat,
            PEER: self._peer,
        }
        return {
            **{name: grpc.stream_stream_rpc_method_handler(self._stream(name, one)) for name, one in streams.items()},
            INSTALL: grpc.stream_unary_rpc_method_handler(self._upload(INSTALL, self._install)),
            STATUS: grpc.unary_unary_rpc_method_handler(self._unary(self._status)),
            ROUTES: grpc.unary_unary_rpc_method_handler(self._unary(self._routes)),
            IDENTIFY: grpc.unary_unary_rpc_method_handler(self._unary(self._identify)),
        }

    # ---- common to every call

    def _stream(self, name: str, serve: Any) -> Any:
        async def call(_requests: Any, context: Any) -> None:
            await self._guarded(name, serve, context)

        return call

    def _upload(self, name: str, serve: Any) -> Any:
        async def call(_requests: Any, context: Any) -> bytes:
            await self._guarded(name, serve, context)
            return b""

        return call

    async def _guarded(self, name: str, serve: Any, context: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with self._counted(name):
                await serve(context, asyncio.get_running_loop())
        except ControllerError as error:
            await ERRORS.refuse(context, error, logger=logger)
        except ClientGone:
            return
        except BaseExceptionGroup as group:
            refused = group.subgroup(ControllerError)
            if refused is not None:
                await ERRORS.refuse(context, next(_leaves(refused)), logger=logger)
            elif group.split(ClientGone)[1] is not None:
                raise
        except asyncio.CancelledError:
            if context.cancelled():  # by the client
                raise
            task.uncancel()  # else it would not have the time to tell the client
            await ERRORS.refuse(context, ControllerClosed("this stream is ended by the controller"))
        finally:
            self._tasks.discard(task)

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        count = self._counts.get(name, 0)
        if count >= STREAMS_MAX // 2:
            raise ControllerOverloaded(f"{count} streams of this kind are open")
        self._counts[name] = count + 1
        try:
            yield
        finally:
            self._counts[name] -= 1

    async def _greeted(self, context: Any, kind: Any) -> Any:
        """Returns the first message of a stream. Raises `BadRequest`, `WrongCluster`."""
        message = await self._openings.first(context)
        if message is None:
            raise BadRequest("a stream without a first message")
        hello = decode(message, kind)
        self._node.check_cluster(hello.cluster)
        listening.admit(context)
        return hello

    def _unary(self, answer: Callable[[bytes], bytes]) -> Any:
        async def call(request: bytes, context: Any) -> bytes:
            try:
                listening.admit(context)
                return answer(request)
            except ControllerError as error:
                await ERRORS.refuse(context, error, logger=logger)

        return call

    # ---- other controllers

    async def _peer(self, context: Any, _loop: Any) -> None:
        hello: Hello = await self._greeted(context, Hello)
        while (message := await read_or_end(context)) is not None:
            self._node.receive(hello, [decode_message(one) for one in decode(message, list[bytes])])

    async def _install(self, context: Any, _loop: Any) -> None:
        hello: Hello = await self._greeted(context, Hello)
        whole = bytearray()
        while (part := await read_or_end(context)) is not None:
            whole += part
            if len(whole) > SNAPSHOT_BYTES_MAX:
                raise BadRequest(f"a message with more than {SNAPSHOT_BYTES_MAX} bytes")
        self._node.receive(hello, [decode_message(bytes(whole))])

    # ---- those who follow the state

    async def _follow(self, context: Any, loop: asyncio.AbstractEventLoop) -> None:
        node = self._node
        request: FollowRequest = await self._greeted(context, FollowRequest)
        index = request.index
        while not node.current.is_set():
            await write(context, encode(Fed(index, **self._lead())))
            await wait_at_most(node.current, ALIVE_S)
        wake = asyncio.Event()
        with node.feed.wakes(wake):
            reminder = Reminder(ALIVE_S)
            while True:
                wake.clear()
                self._check_node()
                if index == request.index:
                    node.memory.check_history(index, request.digest)
                found = node.feed.since(index, MESSAGE_BYTES) if index else None
                if found is None:
                    index = await self._send_state(context)
                elif found[0] > index or not reminder.left_s:
                    index = found[0]
                    reminder.said()
                    await write(context, encode(Fed(index, found[1], **self._lead(), applied=node.applied)))
                else:
                    await wait_at_most(wake, reminder.left_s)

    def _lead(self) -> dict[str, Any]:
        node = self._node
        return {"leader": node.leader_address, "term": node.term}

    async def _send_state(self, context: Any) -> int:
        node = self._node
        async with self._snapshots:
            index, data = node.snapshot()
            for at in range(0, max(len(data), 1), PART_BYTES):
                part = data[at : at + PART_BYTES]
                left = len(data) - at - len(part)
                await write(context, encode(Fed(index, part=part, left=left, **self._lead(), applied=node.applied)))
        return index

    def _check_node(self) -> None:
        failed = self._node.failed
        if failed.done():
            raise ControllerClosed(f"this controller has failed: {failed.result()}")

    # ---- commands

    async def _command(self, context: Any, loop: asyncio.AbstractEventLoop) -> None:
        node = self._node
        hello: CommandHello = await self._greeted(context, CommandHello)
        client, term = hello.client, node.leading
        if term is None:
            raise NotLeading(node.leader_address)
        node.memory.check_history(hello.index, hello.digest)
        task = asyncio.current_task()
        assert task is not None
        before = self._commanders.get(client)
        if before is not None:
            before.cancel()  # the client may have asked again for entries that the old stream has not read
        self._commanders[client] = task
        try:
            await write(context, encode(CommandGreeting(term)))
            await _Commands(node, context, term, loop).serve()
        finally:
            if self._commanders.get(client) is task:
                del self._commanders[client]

    # ---- store nodes

    async def _heartbeat(self, context: Any, loop: asyncio.AbstractEventLoop) -> None:
        groups = (await self._greeted(context, HeartbeatHello)).groups
        stream = object()
        wake = asyncio.Event()
        mine: dict[tuple[int, int], None] = {}
        try:
            async with asyncio.TaskGroup() as tasks:
                pushing = tasks.create_task(self._push(context, groups, loop, wake))
                while (message := await read_or_end(context)) is not None:
                    for said in decode(message, list[Heartbeat]):
                        key = (said.group, said.replica)
                        if key not in mine and len(mine) >= REPLICAS_PER_NODE_MAX:
                            raise ControllerOverloaded(f"a node has at most {REPLICAS_PER_NODE_MAX} replicas")
                        self._node.heartbeat(said)
                        mine[key] = None
                        self._heartbeat_streams[key] = stream
                    wake.set()
                pushing.cancel()
        finally:
            for key in mine:
                if self._heartbeat_streams.get(key) is stream:  # no newer stream has taken its place
                    del self._heartbeat_streams[key]
                    self._node.disconnected(*key)

    async def _push(
        self, context: Any, groups: Sequence[int], loop: asyncio.AbstractEventLoop, wake: asyncio.Event
    ) -> None:
        """Sends a node its groups, at once and whenever they change, and answers heartbeats; these set `wake`."""
        node = self._node
        told: dict[int, Group | None] = {}
        while not node.current.is_set():
            await write(context, encode([]))
            await wait_at_most(node.current, PUSH_ALIVE_S)
        said_s = -PUSH_ALIVE_S
        with node.feed.wakes(wake):
            while True:
                wake.clear()
                self._check_node()
                now = {number: node.state.groups.get(number) for number in groups}
                news = [number for number in groups if number not in told or told[number] != now[number]]
                if news or loop.time() - said_s >= PUSH_ANSWER_S:
                    said_s = loop.time()
                    told = now
                    await write(context, encode([Pushed(number, node.applied, now[number]) for number in news]))
                await wait_at_most(wake, PUSH_ALIVE_S)

    # ---- questions

    def _status(self, _request: bytes) -> bytes:
        return encode(self._node.status())

    def _identify(self, request: bytes) -> bytes:
        asker: Introduction = decode(request, Introduction)
        self._node.check_cluster(asker.cluster)
        return encode(self._node.memory.identify(asker))

    def _routes(self, request: bytes) -> bytes:
        return encode(self._node.routes(decode(request, RoutesRequest).group))


class _Commands:
    """The requests of one client, while this node leads in one term."""

    def __init__(self, node: ControllerNode, context: Any, term: int, loop: asyncio.AbstractEventLoop) -> None:
        self._node = node
        self._context = context
        self._term = term
        self._loop = loop
        self._room = asyncio.Semaphore(ASKED_MAX)
        self._answers: deque[NumberedAnswer] = deque()  # len <= ASKED_MAX
        self._wake = asyncio.Event()

    async def serve(self) -> None:
        """Serves until the client goes away. Raises `NotLeading`, `BadRequest`."""
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(self._write())
            while (message := await read_or_end(self._context)) is not None:
                for asked in decode(message, list[NumberedRequest]):
                    await self._room.acquire()
                    tasks.create_task(self._answer(asked))
            writing.cancel()

    async def _answer(self, asked: NumberedRequest) -> None:
        node = self._node
        try:
            answer = await node.answer(decode_request(asked.request), term=self._term)
            answered = NumberedAnswer(asked.number, node.applied, encode_answer(answer))
        except NotLeader as error:
            answered = NumberedAnswer(asked.number, node.applied, error=describe(NotLeading(node.leader_address)))
            logger.debug("a command is refused: %s", error)
        except StorageFailed as error:  # of this controller: another one will lead
            answered = NumberedAnswer(asked.number, node.applied, error=describe(ControllerClosed(str(error))))
        except ControllerError as error:
            answered = NumberedAnswer(asked.number, node.applied, error=describe(error))
        self._answers.append(answered)
        self._wake.set()

    async def _write(self) -> None:
        with self._node.feed.wakes(self._wake):
            reminder = Reminder(ALIVE_S)
            reminder.said()
            while True:
                self._wake.clear()
                if self._answers or not reminder.left_s:
                    reminder.said()
                    await write(self._context, encode(Answers(self._take())))
                elif self._node.leading != self._term:
                    raise NotLeading(self._node.leader_address)
                else:
                    await wait_at_most(self._wake, reminder.left_s)

    def _take(self) -> tuple[NumberedAnswer, ...]:
        found: list[NumberedAnswer] = []
        size = 0
        while self._answers and size < MESSAGE_BYTES:
            found.append(self._answers.popleft())
            size += len(found[-1].answer)
            self._room.release()
        return tuple(found)


def _server_for(address: str) -> Callable[..., Any]:
    """Returns the factory of a port's server: of pipes, with gRPC behind them, and at a Unix socket gRPC's own."""
    if address.startswith(UNIX):
        new_server: Callable[..., Any] = grpc.aio.server
        return new_server
    return partial(pipes.PipeServer, sizes=PIPE_SIZES)


def _leaves(group: BaseExceptionGroup[ControllerError]) -> Iterator[ControllerError]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
