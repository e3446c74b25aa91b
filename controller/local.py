"""The controller in the process of its only node: commands on disk before they are answered."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import lmdb
import msgspec

from controller.client import ControllerDamaged, ControllerError, NamedQueue, Topic
from controller.lmdb_file import is_cut_short
from controller.state import (
    Command,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    ForgetQueue,
    MetadataState,
    NameQueue,
    decode_command,
    encode_command,
)

__all__ = ["Limits", "LocalController"]

logger = logging.getLogger(__name__)

SNAPSHOT_EVERY = 1024  # commands between snapshots, at least: what a start has to replay
GROUP_MAX = 1024  # commands written together
MAP_SIZE_BYTES = 1 << 30

_DAMAGED = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError)
_SNAPSHOT = b"state"  # every other key is 8 bytes, a command's index


_Answer: TypeAlias = "asyncio.Future[Topic | NamedQueue | None]"
_Waiting: TypeAlias = tuple[Command, _Answer]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster may hold."""

    topics_max: int = 10_000
    queues_max: int = 1_000_000
    default_queues: int = 8  # of a topic created without a number


class LocalController:
    """A `ControllerClient` over a command log in LMDB.

    The log holds commands by index (u64, big-endian) beside the newest snapshot, which names the index it stands for.
    A command is synced before it is applied, so what was answered is there after a crash.
    """

    def __init__(
        self, env: lmdb.Environment, state: MetadataState, index: int, limits: Limits, now_ms: Callable[[], int]
    ) -> None:
        self._env = env
        self._state = state
        self._index = index  # of the last command applied
        self._limits = limits
        self._now_ms = now_ms
        self._compacted = index  # at the newest snapshot, or the start
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        self._disk = ThreadPoolExecutor(1, "controller")
        self._listeners: dict[int, Callable[[], None]] = {}
        self._next_listener = 0

    @classmethod
    def open(cls, directory: Path, *, limits: Limits | None = None, now_ms: Callable[[], int]) -> "LocalController":
        """Open or begin the controller's directory and replay what it holds. Raises `ControllerDamaged`, OSError."""
        for missing in [path for path in reversed((directory, *directory.parents)) if not path.exists()]:
            missing.mkdir(mode=0o700, exist_ok=True)
        if is_cut_short(directory / "data.mdb"):  # LMDB would find out by a signal that kills the process
            raise ControllerDamaged(f"{directory / 'data.mdb'} has lost its end: restore the directory from a backup")
        try:
            env = lmdb.open(str(directory), map_size=MAP_SIZE_BYTES, max_dbs=0, mode=0o600)
        except _DAMAGED as error:
            raise ControllerDamaged(f"{directory}: {error}: restore the directory from a backup") from error
        state, index = MetadataState(), 0
        with env.begin() as txn:
            held = txn.get(_SNAPSHOT)
            if held is not None:
                index = int.from_bytes(held[:8], "big")
                state = MetadataState.restore(held[8:])
            for key, value in txn.cursor():
                if key != _SNAPSHOT and int.from_bytes(key, "big") > index:
                    index = int.from_bytes(key, "big")
                    with contextlib.suppress(ControllerError):  # refused then, and so again now
                        state.apply(decode_command(value))
        return cls(env, state, index, limits or Limits(), now_ms)

    async def close(self) -> None:
        """Wait for what is being written, and close."""
        while self._writing is not None:
            await asyncio.wait([self._writing])
        self._disk.shutdown()
        self._env.close()

    # ---- reads

    def topic(self, name: str) -> Topic | None:
        """A topic by name."""
        return self._state.topics.get(name)

    def topics(self) -> Sequence[Topic]:
        """All topics, by name."""
        return [self._state.topics[name] for name in sorted(self._state.topics)]

    def topic_of_queue(self, number: int) -> str | None:
        """The name of the topic a queue belongs to."""
        return self._state.owner.get(number)

    def watch(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on the event loop after every change. Returns what stops it."""
        handle, self._next_listener = self._next_listener, self._next_listener + 1
        self._listeners[handle] = listener
        return lambda: self._listeners.pop(handle, None) and None

    # ---- commands

    async def create_topic(
        self, name: str, *, queues: int | None = None, config: Mapping[str, Any] | None = None
    ) -> Topic:
        """Create a topic, or return it when it is there and agrees."""
        there = self._state.topics.get(name)
        if there is not None and queues is None and config is None:
            return there
        answer = await self._command(
            CreateTopic(
                name=name,
                queues=self._limits.default_queues if queues is None else queues,
                config=config or {},
                topics_max=self._limits.topics_max,
                queues_max=self._limits.queues_max,
                time_ms=self._now_ms(),
            )
        )
        assert isinstance(answer, Topic)
        return answer

    async def configure_topic(self, name: str, config: Mapping[str, Any]) -> Topic:
        """Replace a topic's configuration."""
        there = self._state.topics.get(name)
        if there is not None and dict(there.config) == dict(config):
            return there
        answer = await self._command(ConfigureTopic(name=name, config=config, time_ms=self._now_ms()))
        assert isinstance(answer, Topic)
        return answer

    async def delete_topic(self, name: str) -> None:
        """Forget a topic."""
        await self._command(DeleteTopic(name=name, time_ms=self._now_ms()))

    async def name_queue(self, name: str) -> NamedQueue:
        """The number of a named queue, given now when it had none."""
        there = self._state.named.get(name)
        if there is not None:
            return there
        answer = await self._command(NameQueue(name=name, queues_max=self._limits.queues_max, time_ms=self._now_ms()))
        assert isinstance(answer, NamedQueue)
        return answer

    async def forget_queue(self, name: str) -> None:
        """Forget a named queue; its number is never given again."""
        if name in self._state.named:
            await self._command(ForgetQueue(name=name, time_ms=self._now_ms()))

    async def _command(self, command: Command) -> Topic | NamedQueue | None:
        """Persist, then apply, in the order asked. What is asked while others are being written is written together."""
        loop = asyncio.get_running_loop()
        answer: _Answer = loop.create_future()
        self._waiting.append((command, answer))
        if self._writing is None:
            self._writing = loop.create_task(self._write())
        return await answer

    async def _write(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:GROUP_MAX], self._waiting[GROUP_MAX:]
                await self._write_group(
                    [(command, answer) for command, answer in group if self._admit(command, answer)]
                )
        finally:
            self._writing = None

    def _admit(self, command: Command, answer: "_Answer") -> bool:
        """Whether a command is to be written: what would be refused costs no write."""
        try:
            self._state.check(command)
        except ControllerError as refused:
            if not answer.done():
                answer.set_exception(refused)
            return False
        return True

    async def _write_group(self, group: Sequence["_Waiting"]) -> None:
        if not group:
            return
        loop = asyncio.get_running_loop()
        try:
            encoded = [encode_command(command) for command, _ in group]
            await loop.run_in_executor(self._disk, self._persist, self._index + 1, encoded)
        except (lmdb.Error, OSError, RuntimeError) as error:
            for _, answer in group:
                if not answer.done():
                    answer.set_exception(error)
            return
        for command, answer in group:
            self._index += 1
            try:
                found = self._state.apply(command)
            except ControllerError as refused:
                if not answer.done():
                    answer.set_exception(refused)
                continue
            if not answer.done():
                answer.set_result(found)
        for listener in list(self._listeners.values()):
            try:
                listener()
            except Exception:
                logger.exception("a listener on the controller has failed")
        # As many commands as the state has entries: so that their cost for each command does not grow with it.
        if self._index - self._compacted >= max(SNAPSHOT_EVERY, len(self._state.topics) + len(self._state.named)):
            self._compacted = self._index
            try:
                await loop.run_in_executor(self._disk, self._compact, self._index, self._state.snapshot())
            except lmdb.Error:
                logger.exception("the snapshot is not written; the commands are there without it")

    def _persist(self, first: int, commands: Sequence[bytes]) -> None:
        with self._env.begin(write=True) as txn:
            for index, command in enumerate(commands, first):
                txn.put(index.to_bytes(8, "big"), command)

    def _compact(self, index: int, snapshot: bytes) -> None:
        with self._env.begin(write=True) as txn:
            txn.put(_SNAPSHOT, index.to_bytes(8, "big") + snapshot)
            for key in [key for key, _ in txn.cursor() if key != _SNAPSHOT and int.from_bytes(key, "big") <= index]:
                txn.delete(key)
