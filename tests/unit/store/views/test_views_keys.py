"""Keys of open views whose bits flip: an entry that is there is never told to be missing, nor put twice."""

import asyncio
import logging
from bisect import bisect
from random import Random

import pytest

from store.base.errors import RevisionConflict, StoreError, ViewsDamaged
from store.format.frame import ROW
from store.format.records import TimerSet
from store.local.local import LocalStore
from store.views import Views
from store.views.layout import TABLES
from store.views.verify import ViewsWalk
from tests.support.process.clock import Clock
from tests.support.store.flips import flip, flip_all
from tests.support.store.live_flips import (
    answer,
    fill_deep,
    flipped,
    misplaced,
    plain_questions,
    view_questions,
)
from tests.support.store.lmdb_pages import key_places
from tests.support.store.store_kit import append, bodies, frame, records_frame
from tests.support.store.views_kit import told

pytestmark = pytest.mark.anyio

SEEDS = range(3)
FLIPS = 120  # of each seed
ASKED = 100  # questions for each flip


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """Yields views whose trees have branch pages, open."""
    directory = tmp_path_factory.mktemp("deep")
    asyncio.run(fill_deep(directory))
    views = Views(directory / "views")
    yield views
    views.close()


@pytest.fixture(scope="module")
def places(deep):
    """Returns the places of all keys; some of the tables' have branch pages."""
    found = key_places(deep.path / "data.mdb")
    branches = {place.table for place in found if place.branch}
    assert branches >= {"addresses", "groups", "index", "kv", "kv_expiry", "producers", "queues", "settled", "timers"}
    return found


@pytest.fixture(scope="module")
def questions(deep):
    """Returns questions by table, and the true answer of each."""
    asked = {name: plain_questions(deep, name) for name in TABLES}
    for name, more in view_questions(deep).items():
        asked[name] += more
    true = {name: [(question, answer(deep, question)) for question in some] for name, some in asked.items()}
    assert not [name for name, some in true.items() for _, (said, _) in some if said != "told"]
    return true


def chosen(random, places):
    """Returns the place of a key, of a byte in it and a bit; one in three lies in a branch page."""
    place = random.choice([one for one in places if one.branch] if not random.randrange(3) else places)
    within, bit = random.randrange(len(place.key)), random.randrange(8)
    lie = bytes(byte ^ (1 << bit) if i == within else byte for i, byte in enumerate(place.key))
    return place, place.at + within, bit, lie


@pytest.mark.parametrize("seed", SEEDS)
def test_no_read_of_views_with_a_flipped_key_tells_anything_but_the_truth(deep, places, questions, seed, caplog):
    caplog.set_level(logging.CRITICAL)
    random, refused = Random(seed), 0
    for _ in range(FLIPS):
        place, at, bit, _ = chosen(random, places)
        some = questions[place.table]
        with flipped(deep, at, bit):
            for question, true in random.sample(some, min(ASKED, len(some))):
                deep.tables[place.table].broken = ""  # each is the first to meet it
                found = answer(deep, question)
                if found[0] == "refused":
                    refused += 1
                else:
                    assert found == true, (place, at, bit)
    assert refused > FLIPS


@pytest.mark.parametrize("seed", SEEDS)
def test_no_write_beside_a_flipped_key_puts_an_entry_where_no_search_ends(deep, places, seed, caplog):
    caplog.set_level(logging.CRITICAL)
    random, known = Random(seed), 0
    entries = told(deep)
    guarded = [place for place in places if deep.tables[place.table].guarded]
    for _ in range(FLIPS):
        place, at, bit, lie = chosen(random, guarded)
        true = [key for name, key in entries if name == place.table]
        low, high = sorted((place.key, lie))
        near = true[max(bisect(true, low) - 2, 0) : bisect(true, high) + 2]
        new = {key + bytes([random.randrange(256)]) for key in random.choices(near, k=random.randrange(6))}
        gone = random.sample(near, random.randrange(2))
        with flipped(deep, at, bit):
            assert misplaced(deep, place, true, sorted(new - set(true)), gone) == "", (place, at, bit, new, gone)
            known += bool(deep.tables[place.table].broken)
    assert known > FLIPS // 5


def test_the_walk_finds_entries_that_are_out_of_order(tmp_path):
    """An entry that was put a second time, where a flipped branch page led: the counts agree."""
    asyncio.run(fill_deep(tmp_path))
    views = Views(tmp_path / "views", rebuildable=False)
    table = views.tables["addresses"]
    place = next(one for one in key_places(views.path / "data.mdb") if one.table == table.name and one.branch)
    flip(views.path / "data.mdb", place.at, bit=1)
    table.guarded = False
    with views.writing() as txn:
        txn.put(place.key, b"again", db=table)
        assert txn.entries(table) == table.count + 1
    walk = ViewsWalk(views.tables, views.health, views.turn, reading=views.reading)
    while not walk.run(1):
        pass
    assert "astray" in table.broken
    assert views.health.damages[0].found_by == "verification"
    views.close()


# ---- through the store


async def with_keys(directory, count=50):
    """Returns a store whose keys are in the views only."""
    store = await LocalStore.open(directory, scrub_bytes_per_s=0)
    for n in range(count):
        await store.keys.put(f"account-{n:03}", b"value %d" % n)
    await store.core.until_dispatched(store.log.confirmed)
    return store


async def test_a_key_that_hides_is_not_created_once_more(tmp_path):
    async with await with_keys(tmp_path) as store:
        assert flip_all(tmp_path / "views" / "data.mdb", b"account-025", within=4, bit=1)
        with pytest.raises(StoreError):
            await store.keys.put("account-025", b"another", expected_revision=0)
        with pytest.raises(ViewsDamaged):
            await store.keys.get("account-025")
        with pytest.raises(ViewsDamaged):
            await store.keys.prefix("account-")
        assert store.is_damaged
    async with await LocalStore.open(tmp_path) as store:
        assert (await store.keys.get("account-025")).value == b"value 25"
        with pytest.raises(RevisionConflict):
            await store.keys.put("account-025", b"another", expected_revision=0)
        assert len(await store.keys.prefix("account-")) == 50


async def test_a_damaged_value_does_not_keep_others_from_being_missing(tmp_path):
    async with await with_keys(tmp_path) as store:
        assert flip_all(tmp_path / "views" / "data.mdb", b"value 25", within=2)
        assert await store.keys.get("account-025x") is None
        assert await store.keys.get("account-024x") is None
        await store.keys.put("account-025x", b"new", expected_revision=0)
        with pytest.raises(ViewsDamaged):
            await store.keys.get("account-025")


@pytest.mark.parametrize("byte", [0, 3, 4, 10, 11])
async def test_a_consume_queue_does_not_end_where_a_key_was_flipped(tmp_path, byte):
    async with await LocalStore.open(tmp_path, cache_bytes_max=0, scrub_bytes_per_s=0) as store:
        for n in range(20):
            await append(store, frame((16, b"%d" % n)))
        await store.core.until_dispatched(store.log.confirmed)
        key = (16).to_bytes(4, "big") + (10).to_bytes(8, "big")
        assert flip_all(tmp_path / "views" / "data.mdb", key, within=byte, bit=6)
        with pytest.raises(ViewsDamaged):
            await bodies(store, 16)
    async with await LocalStore.open(tmp_path) as store:
        assert len(await bodies(store, 16)) == 20


async def test_a_damaged_timer_is_passed_over_and_fires_from_new_views(tmp_path):
    clock = Clock(1_000_000)
    row = ROW.pack(16, 0, 5, 0, 0, 0, 0, 0)
    texts = [b"first", b"other", b"third"]
    async with await LocalStore.open(tmp_path, now_ms=clock, linger_s=0.001, scrub_bytes_per_s=0) as store:
        await append(store, records_frame(*[TimerSet(2_000_000 + n, row, text) for n, text in enumerate(texts)]))
        await store.core.until_dispatched(store.log.confirmed)
        assert flip_all(tmp_path / "views" / "data.mdb", b"first", within=2)
        clock.ms = 3_000_000
        await store.tick()
        assert await bodies(store, 16) == [b"other", b"third"]
        assert [damage.view for damage in store.view_damages] == ["timers"]
    async with await LocalStore.open(tmp_path, now_ms=clock) as store:
        await store.tick()
        assert await bodies(store, 16) == [b"other", b"third", b"first"]
