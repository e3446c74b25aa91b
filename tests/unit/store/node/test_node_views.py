"""Replicas whose views are damaged: nobody is told what is not so, and they are made anew while others serve."""

import contextlib

import pytest

from store.base.errors import StoreError
from tests.support.process.waiting import until
from tests.support.store.flips import flip_all
from tests.support.store.node_kit import PATIENCE_S, StoreGroup
from tests.support.store.store_kit import append, bodies, frame

pytestmark = pytest.mark.anyio

VALUE = b"a value that nobody else has"


@pytest.fixture
async def group(tmp_path, controllers):
    async with StoreGroup(tmp_path, controllers, scrub_bytes_per_s=0) as found:
        await found.in_sync()
        yield found


async def filled(group):
    """Returns a client that has put a key; it is in the views of all nodes, and not in memory."""
    store = group.store()
    await append(store, frame((16, b"a message")))
    await store.keys.put("key", VALUE)
    await group.settled()
    for node in group.nodes.values():
        await node.disk.store.core.until_dispatched(node.disk.store.log.confirmed)
    return store


def flip_views(directory, what):
    assert flip_all(directory / "views" / "data.mdb", what)


def is_sound(group, name):
    store = group.nodes[name].disk.store
    return store is not None and not store.is_damaged


@pytest.mark.slow
async def test_a_master_whose_views_are_damaged_hands_over_and_makes_them_anew(group, tmp_path):
    store = await filled(group)
    old = await group.master()
    flip_views(tmp_path / old, VALUE)
    found = None
    while found is None:
        with contextlib.suppress(StoreError):
            found = await store.keys.get("key")
            assert found.value == VALUE
    await until(lambda: is_sound(group, old), PATIENCE_S)
    await group.in_sync()
    assert (await store.keys.get("key")).value == VALUE
    await store.keys.put("key", b"next")
    assert (await store.keys.get("key")).value == b"next"
    assert await group.master() != old


@pytest.mark.slow
async def test_a_replica_makes_its_views_anew_from_its_own_log(group, tmp_path):
    store = await filled(group)
    master = await group.master()
    replica = next(name for name in group.names if name != master)
    flip_views(tmp_path / replica, VALUE)
    hurt = group.nodes[replica].disk.store
    hurt.core.engine.views.walk.step(0)
    assert hurt.is_damaged
    await until(lambda: group.nodes[replica].disk.store is not hurt and is_sound(group, replica), PATIENCE_S)
    await append(store, frame((16, b"another")))
    await group.in_sync()
    await group.settled()
    assert await bodies(group.nodes[replica].disk.store, 16) == [b"a message", b"another"]
    await group.hand_over(replica)
    assert (await store.keys.get("key")).value == VALUE
