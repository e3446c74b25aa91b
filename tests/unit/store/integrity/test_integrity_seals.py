"""Seals: made once from what a closed segment holds, and held against its file at every start."""

from itertools import pairwise

import pytest

from store.base.errors import CorruptFrame
from store.disk.files import OsFiles
from store.engine.repair import StoppedStore
from store.format.frame import HEADER
from store.integrity.seals import SealFile, Sealing, chain_of, read_seals
from store.local.local import LocalStore
from store.log.log import CommitLog
from store.log.sealer import Sealer
from tests.support.store.replica_kit import log_bytes, open_replica
from tests.support.store.store_kit import append, bodies, frame

pytestmark = pytest.mark.anyio

OPTIONS = {"segment_size_bytes": 2_000, "cache_bytes_max": 0}


def record(n):
    return frame((16, b"%03d" % n + bytes(100)))


def seal(store):
    """Runs one step of the keeper, which runs every second."""
    Sealer(store.core.engine.log, store.core.engine.seals).step(10)


async def filled(directory, count=40):
    """Writes a closed store of five segments, of which four are sealed; returns its frames and its whole log."""
    async with await LocalStore.open(directory, **OPTIONS) as store:
        for n in range(count):
            await append(store, record(n))
        seal(store)
        frames = list(store.core.engine.log.scan(0, store.replication.end))
    return frames, log_bytes(directory)


def segments(directory):
    return sorted((directory / "log").iterdir())


def between(frames, damage):
    return b"".join(one.data for one in frames if damage.start <= one.start < damage.end)


async def test_each_closed_segment_gets_a_seal_in_a_chain(tmp_path):
    frames, _ = await filled(tmp_path)
    seals = read_seals(OsFiles(), tmp_path / "seals")
    starts = [int(path.stem) for path in segments(tmp_path)]
    assert [(one.start, one.end) for one in seals] == list(pairwise(starts))
    before = None
    for one in seals:
        twin = Sealing(one.start)
        for f in frames:
            if one.start <= f.start < one.end:
                twin.add(f.data[: HEADER.size], f.end)
        assert twin.seal(before) == one
        assert one.chain == chain_of(before, one.digest)
        before = one


async def test_a_twin_has_the_same_seals_and_another_content_has_others(tmp_path):
    await filled(tmp_path / "a")
    async with await LocalStore.open(tmp_path / "a", **OPTIONS) as store:
        seals = store.seals()
    log = CommitLog(OsFiles(), tmp_path / "a" / "log", segment_size_bytes=2_000)
    again = SealFile(OsFiles(), tmp_path / "other")
    Sealer(log, again).step(10)
    log.close()
    assert list(again.all) == seals
    (tmp_path / "b").mkdir()
    await filled(tmp_path / "b", count=41)  # its frames have other times
    other = read_seals(OsFiles(), tmp_path / "b" / "seals")
    assert {one.digest for one in other}.isdisjoint({one.digest for one in seals})


@pytest.mark.parametrize("hurt", [0, 4, 8, 13, 20, 40, 60, -1])
async def test_damaged_seals_are_made_again(tmp_path, hurt, caplog):
    await filled(tmp_path)
    before = read_seals(OsFiles(), tmp_path / "seals")
    data = bytearray((tmp_path / "seals").read_bytes())
    data[hurt] ^= 1
    (tmp_path / "seals").write_bytes(data)
    async with await LocalStore.open(tmp_path, **OPTIONS) as store:
        assert not store.is_damaged
        seal(store)
        assert store.seals() == before
    assert "`seals` is damaged" in caplog.text


async def test_a_directory_of_an_older_version_is_sealed_in_the_background(tmp_path):
    await filled(tmp_path)
    before = read_seals(OsFiles(), tmp_path / "seals")
    for name in ("seals", "floor"):
        (tmp_path / name).unlink()
    async with await LocalStore.open(tmp_path, **OPTIONS) as store:
        assert (store.seals(), store.is_damaged) == ([], False)
        seal(store)
        assert store.seals() == before


@pytest.mark.parametrize("keep", [0, 1, 500, -1])
async def test_a_closed_segment_truncated_while_stopped_is_damage_at_open(tmp_path, keep):
    frames, before = await filled(tmp_path)
    path = segments(tmp_path)[1]
    path.write_bytes(path.read_bytes()[:keep])
    replica = await open_replica(tmp_path, **OPTIONS)
    (damage,) = replica.damages
    assert (damage.found_by, damage.end) == ("start", int(segments(tmp_path)[2].stem))
    assert any(one.start == damage.start for one in frames)
    await replica.replication.mend(damage.start, between(frames, damage))
    assert (replica.is_damaged, log_bytes(tmp_path)) == (False, before)
    await replica.close()


@pytest.mark.parametrize("gone", [(0,), (1,), (1, 2), (0, 1, 2), (3, 4), (4,), (0, 1, 2, 3, 4)])
async def test_missing_segments_are_damage_at_open_and_are_made_again(tmp_path, gone):
    frames, before = await filled(tmp_path)
    names = segments(tmp_path)
    for i in gone:
        names[i].unlink()
    replica = await open_replica(tmp_path, **OPTIONS)
    assert replica.replication.first == 0
    closed = [damage for damage in replica.damages if damage.start < replica.replication.end]
    assert [damage.start for damage in closed] == [int(names[i].stem) for i in gone if i < 4]
    for damage in closed:
        await replica.replication.mend(damage.start, between(frames, damage))
    rest = b"".join(one.data for one in frames if one.start >= replica.replication.end)
    if rest:
        assert [damage.start for damage in replica.damages] == [replica.replication.end]
        replica.replication.receive(rest)
        await replica.close()
    else:
        await replica.close()
    assert (log_bytes(tmp_path), segments(tmp_path)) == (before, names)
    async with await LocalStore.open(tmp_path, **OPTIONS) as store:
        assert not store.is_damaged
        assert [one[:3] for one in await bodies(store, 16)] == [b"%03d" % n for n in range(40)]


async def test_a_segment_that_is_too_long_is_cut_to_its_seal(tmp_path, caplog):
    _, before = await filled(tmp_path)
    path = segments(tmp_path)[2]
    path.write_bytes(path.read_bytes() + b"more")
    async with await LocalStore.open(tmp_path, **OPTIONS) as store:
        assert not store.is_damaged
    assert log_bytes(tmp_path) == before
    assert "longer than its seal says" in caplog.text


async def test_a_damaged_segment_is_sealed_when_it_is_repaired(tmp_path):
    frames, _ = await filled(tmp_path)
    (tmp_path / "seals").unlink()
    path = segments(tmp_path)[1]
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    async with await LocalStore.open(tmp_path, **OPTIONS) as store:
        seal(store)
        seal(store)
        assert len(store.seals()) == 1
        (damage,) = store.damages
        await store.replication.mend(damage.start, between(frames, damage))
        seal(store)
        assert len(store.seals()) == 4


async def test_seals_go_with_what_is_trimmed_or_cut(tmp_path):
    await filled(tmp_path)
    names = segments(tmp_path)
    cut = int(names[3].stem)
    async with await LocalStore.open(tmp_path, **OPTIONS) as store:
        before = store.seals()
        store.core.engine.log.trim(before[1].start)
        seal(store)
        assert store.seals() == before[1:]
    seals = SealFile(OsFiles(), tmp_path / "seals")
    seals.drop_from(cut - 1)
    assert list(seals.all) == before[1:2]
    assert read_seals(OsFiles(), tmp_path / "seals") == before[1:2]


async def test_a_read_of_a_missing_segment_is_an_error_and_no_gap(tmp_path):
    await filled(tmp_path)
    segments(tmp_path)[0].unlink()
    async with await LocalStore.open(tmp_path, **OPTIONS) as store:
        assert (await store.queues.bounds(16)).first == 0
        with pytest.raises(CorruptFrame) as caught:
            await store.queues.fetch(16, 0, max_bytes=1 << 20)
        assert caught.value.next == 1


@pytest.mark.parametrize("gone", [(0,), (1, 2), (3, 4), (4,)])
async def test_verify_names_missing_and_short_segments_and_changes_nothing(tmp_path, gone):
    frames, _ = await filled(tmp_path)
    names = segments(tmp_path)
    for i in gone:
        names[i].unlink()
    short = names[1] if 1 not in gone else names[3]
    if short.exists():
        short.write_bytes(short.read_bytes()[:700])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with StoppedStore(tmp_path) as store:
        found = store.verify()
    lost = {n for one in found.damages for n in range(one.start, one.end)}
    there = {path.name: path.stat().st_size for path in segments(tmp_path)}
    kept = sum(whole(f, names, there) for f in frames)
    assert found.frames == kept
    assert all((f.start in lost) != whole(f, names, there) for f in frames)
    assert not found.is_sound
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def whole(one, names, there):
    """Returns whether a frame is still in its file."""
    name = max(path.name for path in names if int(path.stem) <= one.start)
    return one.end <= int(name[:20]) + there.get(name, 0)


async def test_verify_names_a_long_segment_and_one_that_was_exchanged(tmp_path):
    frames, _ = await filled(tmp_path)
    names = segments(tmp_path)
    names[2].write_bytes(names[2].read_bytes() + b"more")
    first = frames[0]
    other = record(99)
    header = other.header(log_offset=0, epoch=1, stored_at_ms=1)
    names[0].write_bytes(header + other.rows + other.payload + names[0].read_bytes()[first.end :])
    with StoppedStore(tmp_path) as store:
        found = store.verify()
    assert found.longer == [names[2].name]
    assert [(one.start, one.found_by) for one in found.damages] == [(0, "seal")]
