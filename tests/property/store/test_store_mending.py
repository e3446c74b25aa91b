"""A log that was hurt anywhere, in any way, and mended from its twin, is its twin again, byte for byte."""

import asyncio
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.format.frame import Frame
from store.integrity.seals import SEALS_FILE
from store.local.local import LocalStore
from store.log.sealer import Sealer
from tests.support.process.examples import examples
from tests.support.store.replica_kit import log_bytes, open_replica
from tests.support.store.store_kit import append, frame

pytestmark = pytest.mark.anyio

SEGMENT_BYTES = 1_000
OPTIONS = {"segment_size_bytes": SEGMENT_BYTES, "cache_bytes_max": 0, "scrub_bytes_per_s": 1 << 30}
FRAMES_COUNT = 24

FLIP = st.tuples(st.just("flip"), st.integers(0, 1 << 20), st.integers(0, 7))
ZEROS = st.tuples(st.just("zeros"), st.integers(0, 1 << 20), st.integers(1, 400))
CUT = st.tuples(st.just("cut"), st.integers(0, 1 << 20), st.integers(0, SEGMENT_BYTES))
GONE = st.tuples(st.just("gone"), st.integers(0, 1 << 20), st.just(0))
HARMS = st.lists(st.one_of(FLIP, ZEROS, CUT, GONE), min_size=1, max_size=4)


class Twin(NamedTuple):
    directory: Path
    frames: list[Frame]

    def __repr__(self):
        return "Twin()"


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """Returns a closed store whose log has some six segments, sealed but the last one, and its frames."""
    directory = tmp_path_factory.mktemp("twin")

    async def fill():
        async with await LocalStore.open(directory, **OPTIONS) as store:
            for n in range(FRAMES_COUNT):
                await append(store, frame((16, b"%02d" % n + bytes(n * 13 % 160)), (17, b"HGF1")))
            Sealer(store.core.engine.log, store.core.engine.seals).step(10)
            return [one for one in store.core.engine.log.scan(0, store.replication.end) if isinstance(one, Frame)]

    return Twin(directory, asyncio.run(fill()))


def hurt(directory, harms):
    """Does some harm to the files of a log that nobody has open."""
    for kind, where, how in harms:
        paths = sorted((directory / "log").iterdir())
        if not paths:
            return
        if kind == "gone":
            paths[where % len(paths)].unlink()
            continue
        path = paths[where % len(paths)]
        data = bytearray(path.read_bytes())
        if not data:
            continue
        at = where // len(paths) % len(data)
        if kind == "flip":
            data[at] ^= 1 << how
        elif kind == "zeros":
            data[at : at + how] = bytes(len(data[at : at + how]))
        else:
            del data[how:]
        path.write_bytes(data)


@settings(deadline=None, max_examples=examples(25))
@given(harms=HARMS, sealed=st.booleans(), restart=st.booleans())
async def test_a_log_mended_from_its_twin_is_its_twin(twin, harms, sealed, restart):
    directory, frames = twin
    with TemporaryDirectory() as place:
        copy = Path(place) / "copy"
        copytree(directory, copy)
        hurt(copy, harms)
        if not sealed:
            (copy / SEALS_FILE).unlink()
        replica = await open_replica(copy, **OPTIONS)
        replica.core.engine.scrub.step()
        if restart:  # the next start knows at once of damage that was found
            before = replica.damages
            await replica.close()
            replica = await open_replica(copy, **{**OPTIONS, "scrub_bytes_per_s": 0})
            assert replica.damages == before
        assert all(read_back(replica, one) for one in frames if one.end <= replica.replication.end)
        for damage in replica.damages:
            end = min(damage.end, replica.replication.end)
            some = [one.data for one in frames if damage.start <= one.start and one.end <= end]
            if some:
                await replica.replication.mend(damage.start, b"".join(some))
        rest = b"".join(one.data for one in frames if one.start >= replica.replication.end)
        if rest:
            replica.replication.receive(rest)
        await replica.close()
        assert log_bytes(copy) == log_bytes(directory)
        again = await open_replica(copy, **OPTIONS)
        again.core.engine.scrub.step()
        assert (again.is_damaged, again.replication.end) == (False, frames[-1].end)
        await again.close()


def read_back(replica, one):
    """Returns whether a frame is as it was, or known to be damaged."""
    log = replica.core.engine.log
    if log.damages.overlapping(one.start, one.end):
        return True
    found = next(iter(log.scan(one.start, one.end)))
    return isinstance(found, Frame) and found.data == one.data
