"""A replica fed in any pieces, confirmed in any steps, closed at any time, is its master; a log that was cut is too."""

import asyncio
import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.engine import receiver
from store.format.frame import FRAME_ASYNC, Frame, LogOffset, origin_of
from store.format.policy import LeasePolicy
from store.format.records import (
    GroupOffsets,
    KvDelete,
    KvPut,
    LeasePolicySet,
    QueueDeleted,
    Settled,
    TimerCancelled,
    TimerSet,
)
from store.log.tail import LogTail
from store.views import Views
from tests.support.process.examples import examples
from tests.support.process.waiting import until
from tests.support.store.replica_kit import feed, log_bytes, open_master, open_replica, stored
from tests.support.store.store_kit import begin, frame, records_frame

QUEUES = (16, 17, 300)
GROUPS = (0, 5, (1 << 15) - 1)
SEGMENT_BYTES = 1_500


def some_frame(chance: random.Random, producers: dict):
    """Returns a frame of messages, or of the store's own records."""
    kind = chance.randrange(6)
    if kind == 0:
        key = chance.choice("abc")
        return records_frame(
            KvPut(key, b"%d" % chance.randrange(9), chance.choice([None, 0]), "", chance.choice([0, 1 << 50])),
            KvDelete(chance.choice("abc"), None, ""),
        )
    if kind == 1:
        return records_frame(
            chance.choice(
                [
                    GroupOffsets("g", {16: chance.randrange(99)}),
                    QueueDeleted(chance.choice(QUEUES)),
                    Settled(16, ((0, chance.randrange(1, 9)),)),
                    LeasePolicySet(17, "g", LeasePolicy()),
                    TimerSet(chance.randrange(1 << 40), b"", b""),
                    TimerCancelled(1, 0, 0),
                ]
            )
        )
    records = [
        (chance.choice(QUEUES), chance.randbytes(chance.randrange(80)), chance.randrange(5))
        for _ in range(chance.randrange(6))
    ]
    options = {"flags": chance.choice([0, FRAME_ASYNC]), "compress_bytes_min": chance.choice([0, 30])}
    if kind == 2:
        producer = chance.randrange(1, 4)
        producers[producer] = producers.get(producer, 0) + 1
        options |= {"producer_id": producer, "sequence": producers[producer]}
    return frame(*records, **options)


def ends_of(data: bytes, at: int) -> list[LogOffset]:
    """Returns the offsets at which frames end."""
    ends = []
    while data:
        one = Frame.parse(data, log_offset=at)
        data, at = data[one.header.size_bytes :], one.end
        ends.append(at)
    return ends


def entries(path: Path, origin: int):
    views = Views(path / "views", origin=origin)
    found = views.dispatched, list(views.entries())
    views.close()
    return found


class Pair:
    """A master and a replica that is opened and closed, fed and confirmed as chance will have it."""

    def __init__(self, directory: Path, seed: int):
        self.chance = random.Random(seed)
        self.directory = directory
        self.origin = origin_of(group := self.chance.choice(GROUPS))
        self.options = {"group": group, "segment_size_bytes": SEGMENT_BYTES}

    async def fill(self, path: Path, count: int, *, epoch=1) -> int:
        """Appends frames to a master that lives for this only, and returns where its log ends."""
        producers: dict = {}
        store = await open_master(path, alone=True, epoch=epoch, now_ms=lambda: 1000, **self.options)
        for _ in range(count):
            for future in begin(store, some_frame(self.chance, producers)):
                await asyncio.gather(future, return_exceptions=True)
        end = store.replication.end
        await store.close()
        return end

    async def open_replica(self, **options):
        self.replica = await open_replica(
            self.directory / "replica",
            linger_s=self.chance.choice([0.0005, 3600]),
            cache_bytes_max=self.chance.choice([0, 1 << 20]),
            **self.options,
            **options,
        )

    async def follow(self, data: bytes, confirmed_to: int) -> None:
        """Receives the log in pieces of whole frames, and confirms it here and there, up to a position."""
        ends = ends_of(data, self.origin)
        while self.replica.replication.receive(b"") < ends[-1] or self.replica.log.confirmed < confirmed_to:
            step = self.chance.randrange(6)
            if step < 3:
                at = self.replica.replication.receive(b"")
                piece = self.chance.choice([e for e in ends if e > at][:8] or [at])
                self.replica.replication.receive(data[at - self.origin : piece - self.origin])
            elif step == 3:
                self.replica.replication.confirm(min(self.chance.choice(ends), confirmed_to))
            elif step == 4:
                await asyncio.sleep(self.chance.choice([0, 0.001]))
            elif self.chance.random() < 0.1:
                await self.replica.close()
                await self.open_replica()
            else:
                self.replica.replication.confirm(confirmed_to)
        await until(lambda: self.replica.replication.flushed == ends[-1])


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 25), st.sampled_from([0, 400, 1 << 20]), st.sampled_from([1, 600]))
def test_a_replica_is_its_master(seed, count, remembered, run_bytes):
    async def main(pair: Pair, directory: Path):
        end = await pair.fill(directory / "master", count)
        data = log_bytes(directory / "master")
        confirmed = pair.chance.choice([pair.origin, *ends_of(data, pair.origin)])
        await pair.open_replica()
        await pair.follow(data, confirmed)
        assert pair.replica.log.confirmed == confirmed
        await pair.replica.close()
        assert log_bytes(directory / "replica") == data
        # The views are those of a master that stopped there.
        cut = directory / "cut"
        shutil.copytree(directory / "replica", cut)
        shutil.rmtree(cut / "views")
        stopped = await open_replica(cut, truncate_to=confirmed, **pair.options)
        await stopped.close()
        rebuilt = await open_master(cut, alone=True, now_ms=lambda: 1000, **pair.options)
        await rebuilt.step_down()
        assert entries(directory / "replica", pair.origin) == entries(cut, pair.origin)
        # And as a new master it has all of it.
        await (await open_master(directory / "replica", now_ms=lambda: 1000, **pair.options)).step_down()
        assert entries(directory / "replica", pair.origin) == entries(directory / "master", pair.origin)
        assert entries(directory / "replica", pair.origin)[0] == end

    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr("store.engine.engine.LogTail", lambda: LogTail(remembered))
        patch.setattr(receiver, "RUN_BYTES", run_bytes)
        asyncio.run(main(Pair(Path(name), seed), Path(name)))


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 12), st.integers(1, 8), st.integers(1, 12))
def test_a_log_that_was_cut_is_one_that_never_had_what_was_cut(seed, common, lost, more):
    async def main(pair: Pair, directory: Path):
        master, other = directory / "master", directory / "replica"
        at = await pair.fill(master, common)
        shutil.copytree(master, other)
        await pair.fill(other, lost, epoch=2)  # no replica has confirmed that:
        shutil.rmtree(other / "views")
        shutil.copytree(master / "views", other / "views")
        await pair.fill(master, more, epoch=3)
        data = log_bytes(master)
        await pair.open_replica(truncate_to=at)
        assert pair.replica.replication.end == at == pair.replica.log.confirmed
        await pair.follow(data, pair.origin + len(data))
        await pair.replica.core.until_dispatched(pair.replica.log.confirmed)
        await pair.replica.close()
        assert log_bytes(other) == data
        assert entries(other, pair.origin) == entries(master, pair.origin)

    with TemporaryDirectory() as name:
        asyncio.run(main(Pair(Path(name), seed), Path(name)))


async def epoch_of(master, replicas, chance: random.Random, number: int, answered: list[bytes]) -> int:
    """Appends frames that replicas receive at different times; in the end all have all. Returns the last number."""
    for _ in range(chance.randrange(1, 5)):
        number += 1
        (future,) = await stored(master, frame((16, b"%d" % number)))
        for replica in replicas:
            if chance.random() < 0.8:
                await feed(master, replica)
        least = min(store.replication.flushed for store in (master, *replicas))
        for store in (master, *replicas):
            store.replication.confirm(least)
        assert future.done() == (least == master.replication.end)
        if future.done():
            answered.append(b"%d" % number)
    for replica in replicas:
        await feed(master, replica)
    return number


def test_what_was_answered_stays_whoever_is_master_next(tmp_path):
    async def main():
        chance = random.Random(4)
        homes = [tmp_path / str(n) for n in range(3)]
        answered: list[bytes] = []
        common = number = 0
        for epoch in range(1, 9):
            leader = chance.randrange(3)
            stores = [
                await open_master(home, epoch=epoch) if n == leader else await open_replica(home, truncate_to=common)
                for n, home in enumerate(homes)
            ]
            master = stores[leader]
            replicas = [store for store in stores if store is not master]
            number = await epoch_of(master, replicas, chance, number, answered)
            common = master.replication.end
            await asyncio.gather(*(store.step_down() for store in stores))
        found = [log_bytes(home) for home in homes]
        assert found[0] == found[1] == found[2]
        at, records = 0, []
        while at < len(found[0]):
            one = Frame.parse(found[0][at:], log_offset=at)
            records.append(one.record(0))
            at = one.end
        assert [one for one in records if one in answered] == answered
        assert answered

    asyncio.run(main())
