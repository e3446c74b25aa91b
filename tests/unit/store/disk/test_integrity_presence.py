"""A data directory that is removed underneath is noticed, said, and nothing more is taken."""

import asyncio
import errno
import shutil

import pytest

from store.base.errors import StoreFailed
from store.local.local import LocalStore
from tests.support.store.store_kit import append, frame

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


async def refused(store):
    async with asyncio.timeout(PATIENCE_S):
        while store.error is None:
            await asyncio.sleep(0.01)
    with pytest.raises(StoreFailed) as caught:
        await append(store, frame((16, b"more")))
    return str(caught.value)


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr("store.engine.engine.PRESENCE_LOOK_S", 0.02)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("", "Put the directory back, or restart with an empty one"),
        ("log", "Put it back, or restart: what it held is then repaired from other replicas, or listed as lost"),
        ("views", "Restart: the views are made anew from the log"),
        ("LOCK", "Put the directory back, or restart with an empty one"),
    ],
)
async def test_what_was_removed_is_said_and_nothing_is_taken_any_more(tmp_path, name, remedy):
    there = tmp_path / "data"
    store = await LocalStore.open(there)
    await append(store, frame((16, b"one")))
    (there / name).rename(tmp_path / "gone")  # at once: `rmtree` removes one name after the other
    words = await refused(store)
    assert "was removed or replaced while the store had it open" in words
    assert f"store.data_dir = {there}" in words
    assert words.endswith(remedy)  # an empty directory instead would lose what is still there
    await store.close()


async def test_a_copy_in_its_place_is_not_the_directory(tmp_path):
    there = tmp_path / "data"
    store = await LocalStore.open(there)
    await append(store, frame((16, b"one")))
    there.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", there)
    assert "was removed or replaced" in await refused(store)
    await store.close()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.EIO])
async def test_a_look_that_fails_tells_nothing(tmp_path, monkeypatch, error):
    """A gateway whose clients had used up its files took its log for removed, and stored nothing more."""
    store = await LocalStore.open(tmp_path)
    await append(store, frame((16, b"one")))
    presence = store.core.engine.presence

    def fail(*_):
        raise OSError(error, "no")

    with monkeypatch.context() as patch:
        patch.setattr(type(presence._files), "names", fail)
        assert presence.look() is None
        patch.undo()
    with monkeypatch.context() as patch:
        patch.setattr("store.disk.presence.os.stat", fail)
        assert presence.look() is None
    assert presence.look() is None
    await append(store, frame((16, b"two")))
    await store.close()


async def test_one_that_is_there_is_left_alone(tmp_path):
    looks = []
    store = await LocalStore.open(tmp_path, segment_size_bytes=1 << 16)
    look = store.core.engine.presence.look
    store.core.engine.presence.look = lambda: (looks.append(found := look()), found)[1]
    for n in range(40):
        await append(store, frame((16, bytes(5_000)), (17, b"%d" % n)))
    async with asyncio.timeout(PATIENCE_S):
        while len(looks) < 5:
            await asyncio.sleep(0.01)
    assert set(looks) == {None}
    assert store.error is None
    await store.close()
