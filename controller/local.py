"""The controller in the process of its only node: commands on disk before they are answered."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import lmdb

from controller.client import (
    HOME_GROUP,
    ControllerDamaged,
    ControllerError,
    Group,
    NotElectable,
    Replica,
    UnknownGroup,
)
from controller.commands import Command, ElectMaster, decode_command, encode_command
from controller.front import Limits, StateClient
from controller.lmdb_file import is_cut_short
from controller.state import Answer, MetadataState

__all__ = ["Limits", "LocalController"]

logger = logging.getLogger(__name__)

SNAPSHOT_EVERY = 1024  # commands between snapshots, at least: what a start has to replay
GROUP_MAX = 1024  # commands written together
MAP_SIZE_BYTES = 1 << 30

_DAMAGED = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError)
_SNAPSHOT = b"state"  # every other key is 8 bytes, a command's index


ALONE = Group(  # what a single node is, which has registered nothing
    number=HOME_GROUP, replicas=(Replica(id=1, node="local", address=""),), master=1, master_epoch=1, sync_set=(1,)
)

_Answer: TypeAlias = "asyncio.Future[Answer]"
_Waiting: TypeAlias = tuple[Command, bytes, _Answer]


class LocalController(StateClient):
    """A `ControllerClient` over a command log in LMDB.

    The log holds commands by index (u64, big-endian) beside the newest snapshot, which names the index it stands for.
    A command is synced before it is applied, so what was answered is there after a crash.
    """

    def __init__(
        self, env: lmdb.Environment, state: MetadataState, index: int, limits: Limits, now_ms: Callable[[], int]
    ) -> None:
        super().__init__(state, limits, now_ms)
        self._env = env
        self._index = index  # of the last command applied
        self._compacted = index  # at the newest snapshot, or the start
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        self._disk = ThreadPoolExecutor(1, "controller")

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
        try:
            state, index = _replayed(env)
        except (ControllerDamaged, *_DAMAGED) as error:
            env.close()
            raise ControllerDamaged(f"{directory}: {error}: restore the directory from a backup") from error
        return cls(env, state, index, limits or Limits(), now_ms)

    async def close(self) -> None:
        """Wait for what is being written, and close."""
        while self._writing is not None:
            await asyncio.wait([self._writing])
        self._disk.shutdown()
        self._env.close()

    async def barrier(self) -> None:
        """Nobody else does anything."""

    # ---- the only group

    def groups(self) -> Sequence[Group]:
        """All store groups, by number."""
        found = super().groups()
        return found if any(group.number == HOME_GROUP for group in found) else [ALONE, *found]

    def group(self, number: int) -> Group | None:
        """A store group by number."""
        return super().group(number) or (ALONE if number == HOME_GROUP else None)

    async def elect(
        self,
        group: int,
        candidate: int | None = None,
        *,
        master_epoch: int | None = None,
        sync_epoch: int | None = None,
    ) -> Group:
        """Make a replica master; who is alive is not known here, so it has to be said of a group with several."""
        there = self.group(group)
        if there is None:
            raise UnknownGroup(str(group))
        if candidate is None:
            candidate = there.master or min(there.sync_set or there.voters, default=None)
        if candidate is None:
            raise NotElectable(f"group {group} has no replica")
        if candidate == there.master:
            return there
        command = ElectMaster(
            group=group,
            candidate=candidate,
            master_epoch=there.master_epoch if master_epoch is None else master_epoch,
            sync_epoch=there.sync_epoch if sync_epoch is None else sync_epoch,
            time_ms=self._now_ms(),
        )
        return await self._ask(command, Group)

    # ---- commands

    async def _command(self, command: Command) -> Answer:
        """Persist, then apply, in the order asked. What is asked while others are being written is written together."""
        encoded = encode_command(command)
        loop = asyncio.get_running_loop()
        answer: _Answer = loop.create_future()
        self._waiting.append((command, encoded, answer))
        if self._writing is None:
            self._writing = loop.create_task(self._write())
        return await answer

    async def _write(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:GROUP_MAX], self._waiting[GROUP_MAX:]
                await self._write_group([one for one in group if self._admit(one)])
        finally:
            self._writing = None

    def _admit(self, asked: _Waiting) -> bool:
        """Whether a command is to be written: what would be refused costs no write."""
        command, _, answer = asked
        try:
            self._state.check(command)
        except ControllerError as refused:
            if not answer.done():
                answer.set_exception(refused)
            return False
        return True

    async def _write_group(self, group: Sequence[_Waiting]) -> None:
        if not group:
            return
        loop = asyncio.get_running_loop()
        try:
            encoded = [data for _, data, _ in group]
            await loop.run_in_executor(self._disk, self._persist, self._index + 1, encoded)
        except (lmdb.Error, OSError, RuntimeError) as error:
            for _, _, answer in group:
                if not answer.done():
                    answer.set_exception(error)
            return
        for command, _, answer in group:
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


def _replayed(env: lmdb.Environment) -> tuple[MetadataState, int]:
    """The newest snapshot with the commands since, and the index of the last. Raises `ControllerDamaged`."""
    state, index = MetadataState(), 0
    with env.begin() as txn:
        held = txn.get(_SNAPSHOT)
        if held is not None:
            index = int.from_bytes(held[:8], "big")
            state = MetadataState.restore(held[8:])
        for key, value in txn.cursor():
            if key != _SNAPSHOT and int.from_bytes(key, "big") > index:
                index = int.from_bytes(key, "big")
                command = decode_command(value)
                with contextlib.suppress(ControllerError):  # refused then, and so again now
                    state.apply(command)
    return state, index
