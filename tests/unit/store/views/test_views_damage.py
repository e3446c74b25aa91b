"""Damaged views: never served, told of, and made anew from the log."""

import asyncio
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import lmdb
import pytest

from store.base.errors import NotRebuildable, ViewsDamaged
from store.engine.repair import StoppedStore
from store.format.queue_config import FOREVER, QueueConfig
from store.format.records import encode
from store.integrity.views import DEATHS_MAX, SETTLED_WRITES, ViewsHealth
from store.local.local import LocalStore
from store.log.retention import RetentionLimits
from store.views import Views, verify
from store.views.layout import DBS_MAX, FORMAT, TABLES
from store.views.verify import ViewsWalk
from tests.support.store.flips import flip_all
from tests.support.store.store_kit import append, bodies, frame
from tests.support.store.views_kit import INDEXED, fill, plain, told

pytestmark = pytest.mark.anyio

VALUE = b"a value that nobody else has"
READ = """
import asyncio, logging, sys
from pathlib import Path
from store.local.local import LocalStore
from tests.support.store.store_kit import bodies
logging.basicConfig(level=logging.INFO)
async def main():
    async with await LocalStore.open(Path(sys.argv[1])) as store:
        print((await store.keys.get("key")).value.split()[0].decode(), len(await bodies(store, 16)))
asyncio.run(main())
"""
KIT = Path(__file__).parents[3] / "support" / "store" / "views_kit.py"


async def put(directory, **options):
    """Returns a store with a key whose value is in the views only, and not in memory."""
    store = await LocalStore.open(directory, scrub_bytes_per_s=0, **options)
    await append(store, frame((16, b"a message")))
    await store.keys.put("key", VALUE)
    await store.keys.put("other", b"fine")
    await store.core.until_dispatched(store.log.confirmed)
    return store


def flip_views(directory, what, within=5):
    return flip_all(directory / "views" / "data.mdb", what, within=within)


async def test_a_flipped_byte_of_a_key_s_value_is_not_served(tmp_path):
    async with await put(tmp_path) as store:
        assert flip_views(tmp_path, VALUE)
        with pytest.raises(ViewsDamaged, match="'kv'"):
            await store.keys.get("key")
        with pytest.raises(ViewsDamaged):
            await store.keys.range("", None)
        assert (await store.keys.get("other")).value == b"fine"


async def test_errors_that_are_kept_hold_no_slot_of_a_reader(tmp_path):
    """Their tracebacks refer to what was being read, and garbage is not collected for a while on a busy machine."""
    async with await put(tmp_path) as store:
        assert flip_views(tmp_path, VALUE)
        kept = []
        for _ in range(200):  # LMDB has 126 slots
            with pytest.raises(ViewsDamaged) as caught:
                await store.keys.get("key")
            kept.append(caught)
        assert (await store.keys.get("other")).value == b"fine"
        assert store.is_damaged
        assert [damage.view for damage in store.view_damages] == ["kv"]


async def test_damaged_views_are_made_anew_when_the_store_is_opened_again(tmp_path, caplog):
    async with await put(tmp_path) as store:
        flip_views(tmp_path, VALUE)
        with pytest.raises(ViewsDamaged):
            await store.keys.get("key")
    assert (tmp_path / "views.damaged").exists()
    async with await LocalStore.open(tmp_path) as store:
        assert (await store.keys.get("key")).value == VALUE
        assert not store.is_damaged
        assert not store.view_damages
    assert "made anew from the log" in caplog.text
    assert not (tmp_path / "views.damaged").exists()


async def test_what_is_damaged_while_nobody_looks_is_made_anew_at_the_start(tmp_path):
    await (await put(tmp_path)).close()
    assert flip_views(tmp_path, VALUE)
    async with await LocalStore.open(tmp_path) as store:
        assert (await store.keys.get("key")).value == VALUE
        assert not store.is_damaged


async def test_a_damaged_entry_of_a_consume_queue_is_made_anew(tmp_path):
    async with await put(tmp_path) as store:
        with store.core.engine.views.reading() as txn:
            (chunk,) = store.core.engine.views.queues.chunks(txn, 16, 0)
        entry = chunk.frame.to_bytes(8, "big") + chunk.frame_size_bytes.to_bytes(4, "big")
        assert flip_views(tmp_path, entry, within=7)
        with pytest.raises(ViewsDamaged, match="'queues'"):
            await store.queues.fetch(16, 0, max_bytes=1 << 20)
        assert store.is_damaged
    async with await LocalStore.open(tmp_path) as store:
        assert await bodies(store, 16) == [b"a message"]
        assert not store.is_damaged


async def test_a_record_that_damaged_views_cannot_decide_is_not_answered_as_done(tmp_path):
    async with await put(tmp_path) as store:
        flip_views(tmp_path, VALUE)
        with pytest.raises(Exception, match=r"damaged"):
            await store.keys.put("key", b"new")
        assert isinstance(store.error, ViewsDamaged)
        with pytest.raises(ViewsDamaged):
            await store.keys.put("other", b"new")
    async with await LocalStore.open(tmp_path) as store:
        assert (await store.keys.get("key")).value in {VALUE, b"new"}
        await store.keys.put("key", b"newest")
        assert (await store.keys.get("key")).value == b"newest"


async def test_entries_that_are_missing_are_found_by_verification(tmp_path):
    async with await put(tmp_path) as store:
        views = store.core.engine.views
        with views.env.begin(write=True) as txn:  # a damaged branch page, as readers see it
            assert txn.delete(b"\0other", db=views.tables["kv"].handle)
        views.walk.step(0)
        assert store.is_damaged
        for key in ("key", "other", "none"):
            with pytest.raises(ViewsDamaged):
                await store.keys.get(key)
        assert "entries should be there" in store.view_damages[0].why
    async with await LocalStore.open(tmp_path) as store:
        assert (await store.keys.get("other")).value == b"fine"


async def test_an_entry_that_is_older_than_it_should_be_is_found_by_verification(tmp_path):
    """Imitates a page that the disk never wrote: its checksums are right."""
    async with await put(tmp_path) as store:
        views = store.core.engine.views
        kv = views.tables["kv"]
        with views.env.begin() as txn:
            old = txn.get(b"\0other", db=kv.handle)
        await store.keys.put("other", b"newer")
        await store.core.until_dispatched(store.log.confirmed)
        with views.env.begin(write=True) as txn:
            txn.put(b"\0other", old, db=kv.handle)
        views.walk.step(0)
        with pytest.raises(ViewsDamaged):
            await store.keys.get("other")


async def test_the_housekeeping_verifies_the_views(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        await store.keys.put("key", VALUE)
        await store.core.until_dispatched(store.log.confirmed)
        flip_views(tmp_path, VALUE)
        for _ in range(1000):
            if store.is_damaged:
                break
            await asyncio.sleep(0.01)
        assert store.view_damages[0].found_by == "verification"


@pytest.mark.parametrize(("times", "interval_ms"), [(1, 60_000), (10**12, 3_600_000)])
async def test_views_are_verified_again_when_they_have_rested_for_long_enough(
    tmp_path, monkeypatch, times, interval_ms
):
    """Small ones after a minute, and the largest after an hour: what is hidden from readers is found only so."""
    monkeypatch.setattr(verify, "REST_TIMES", times)
    async with await put(tmp_path) as store:
        views = store.core.engine.views
        walk = ViewsWalk(views.tables, views.health, views.turn, reading=views.reading)
        while not walk.passes:
            walk.step(7)
        walk.step(7 + interval_ms - 1)
        assert walk.passes == 1
        walk.step(7 + interval_ms)
        while walk.passes == 1 and walk._number < len(TABLES):
            walk.step(7 + interval_ms)
        assert walk.passes == 2


async def test_a_walk_counts_what_is_written_beside_it(tmp_path):
    """Before where it is and behind, put, replaced and deleted."""
    async with await LocalStore.open(tmp_path, scrub_bytes_per_s=0) as store:
        for n in range(0, 2000, 2):
            await store.keys.put(f"{n:05}", b"x")
        await store.core.until_dispatched(store.log.confirmed)
        views = store.core.engine.views
        walk = ViewsWalk(views.tables, views.health, views.turn, reading=views.reading)
        rounds = 0
        while not walk.run(0):  # ends a step after some entries
            n = rounds * 37 % 2000
            await store.keys.put(f"{n:05}", b"replaced or new")
            await store.keys.delete(f"{(n * 7) % 2000:05}")
            await append(store, frame((16, b"m", n + 1)))
            await store.core.until_dispatched(store.log.confirmed)
            rounds += 1
        assert rounds > 10
        assert not store.is_damaged


async def test_views_of_a_trimmed_log_stay_and_serve_what_is_sound(tmp_path):
    await (await put(tmp_path)).close()
    assert flip_views(tmp_path, VALUE)
    views = Views(tmp_path / "views", rebuildable=False, health=ViewsHealth(tmp_path))
    assert views.health.is_damaged
    with views.reading() as txn:
        assert views.kv.get(txn, "other").value == b"fine"
        with pytest.raises(ViewsDamaged, match="rebuild-views --force"):
            views.kv.get(txn, "key")
    views.close()
    views = Views(tmp_path / "views", rebuildable=False, health=ViewsHealth(tmp_path))  # it is still known
    assert views.health.damages[0].found_by == "restart"
    views.close()


async def test_a_store_that_damaged_views_keep_from_opening_is_closed_again(tmp_path):
    """Its directory was locked until the process ended, with an error that told of another process."""
    limits = RetentionLimits(FOREVER, 1_000)
    options = {"segment_size_bytes": 1_000, "retention": limits, "retention_interval_s": 3_600, "scrub_bytes_per_s": 0}
    config = QueueConfig(16, 123_456_789)
    async with await LocalStore.open(tmp_path, **options) as store:
        await store.queues.configure([config])
        for _ in range(20):
            await append(store, frame((16, bytes(200))))
        await store.core.until_dispatched(store.log.confirmed)
        await asyncio.to_thread(store.core.engine.trimmer.run)
        assert store.core.engine.log.first > 0
    assert flip_views(tmp_path, encode(config))
    before = set(threading.enumerate())
    for _ in range(2):
        with pytest.raises(ViewsDamaged, match="'configs'"):
            await LocalStore.open(tmp_path, **options)
    assert not [one.name for one in set(threading.enumerate()) - before if one.name.startswith("store-")]


@pytest.mark.parametrize("written", [True, False])
async def test_views_that_kill_whoever_opens_them_are_opened_so_often_and_no_more(tmp_path, written, caplog):
    await (await put(tmp_path)).close()
    for _ in range(DEATHS_MAX):
        health = ViewsHealth(tmp_path)
        assert not health.condemned
        with health.at_risk():
            data = (tmp_path / "views.watch").read_bytes()  # as a process leaves it that dies here
        (tmp_path / "views.watch").write_bytes(data)
        health.close()
    if written:
        async with await LocalStore.open(tmp_path) as store:
            assert (await store.keys.get("key")).value == VALUE
        assert "have died" in caplog.text
    else:
        with pytest.raises(NotRebuildable, match="have died"):
            Views(tmp_path / "views", rebuildable=False, health=ViewsHealth(tmp_path))


def ends(tmp_path, *, writes=0, at_work=False):
    """Runs a process with views that are written and not verified, and kills it; the deaths that the next one knows."""
    health = ViewsHealth(tmp_path)
    for _ in range(writes):
        with health.writing():
            pass
    with health.at_risk() if at_work else nullcontext():
        left = (tmp_path / "views.watch").read_bytes()
    health.close()
    (tmp_path / "views.watch").write_bytes(left)
    return ViewsHealth(tmp_path).deaths


def test_only_deaths_in_a_row_count(tmp_path):
    """Each one counted, in years, while no verification came to its end: sound views were opened no more."""
    for _ in range(2 * DEATHS_MAX):
        assert ends(tmp_path, at_work=True) == 1
        assert ends(tmp_path, writes=SETTLED_WRITES - 1) == 1  # it has not shown yet that writing does not kill
        assert ends(tmp_path, writes=SETTLED_WRITES) == 0
    found = [ends(tmp_path, writes=SETTLED_WRITES, at_work=True) for _ in range(DEATHS_MAX)]
    assert found == list(range(1, DEATHS_MAX + 1))  # of what is met later than that
    assert ViewsHealth(tmp_path).condemned


async def test_a_process_that_is_killed_at_work_leaves_no_doubt_behind(tmp_path):
    """Killed while it opens, once: the next one looks at all of it, and all is well."""
    await (await put(tmp_path)).close()
    (tmp_path / "views.watch").write_bytes(b"+1")
    async with await LocalStore.open(tmp_path, scrub_bytes_per_s=0) as store:
        for _ in range(10):
            await store.keys.put("key", b"1")
            await store.core.until_dispatched(store.log.confirmed)
    assert (tmp_path / "views.watch").read_bytes() == b"-0"
    assert not list(tmp_path.glob("views.old"))


async def test_a_store_that_is_closed_as_it_should_be_forgets_deaths(tmp_path):
    await (await put(tmp_path)).close()
    (tmp_path / "views.watch").write_bytes(b"+1")
    async with await LocalStore.open(tmp_path, scrub_bytes_per_s=0) as store:
        assert store.core.engine.views.health.deaths == 2
    assert (tmp_path / "views.watch").read_bytes() == b"-0"


# ---- older formats


async def test_views_without_checksums_are_given_them_where_they_lie(tmp_path):
    await fill(tmp_path)
    views = Views(tmp_path / "views")
    before, dispatched = told(views), views.dispatched
    views.close()
    plain(tmp_path / "views")
    views = Views(tmp_path / "views", rebuildable=False)
    assert told(views) == before
    assert views.dispatched == dispatched
    assert not views.health.is_damaged
    views.close()
    with StoppedStore(tmp_path) as stopped:
        assert stopped.verify_views().is_sound


async def test_a_migration_that_is_cut_short_goes_on(tmp_path, monkeypatch):
    await fill(tmp_path, count=60)
    views = Views(tmp_path / "views")
    before = told(views)
    views.close()
    plain(tmp_path / "views")
    monkeypatch.setattr("store.views.migration._ENTRIES", 7)
    real, left = Views.writing, 0

    def failing(self):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("cut short")
        return real(self)

    monkeypatch.setattr(Views, "writing", failing)
    cuts = 0
    while True:
        left = 5
        try:
            views = Views(tmp_path / "views", rebuildable=False)
        except OSError:
            cuts += 1
            continue
        break
    assert cuts > 5
    assert told(views) == before
    assert not views.health.is_damaged
    views.close()


async def test_an_older_version_does_not_take_views_that_are_half_made(tmp_path, monkeypatch):
    await fill(tmp_path)
    plain(tmp_path / "views")
    real = Views.writing
    left = 3

    def failing(self):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("cut short")
        return real(self)

    monkeypatch.setattr(Views, "writing", failing)
    with pytest.raises(OSError, match="cut short"):
        Views(tmp_path / "views", rebuildable=False)
    with lmdb.open(str(tmp_path / "views"), max_dbs=DBS_MAX) as env, env.begin() as txn:
        assert txn.get(b"format", db=env.open_db(b"meta", txn=txn)) not in {b"4", FORMAT}


# ---- every byte


def test_whatever_byte_is_flipped_nothing_is_told_that_is_not_so(tmp_path):
    """Of a file that holds something of every view: flipped, opened, and all of it read, in a process of its own.

    A process may die: LMDB follows what a flipped bit points to. What it must not do is tell anything else.
    """
    asyncio.run(fill(tmp_path))
    size = (tmp_path / "views" / "data.mdb").stat().st_size
    first, step, died, seen = 3, 211, 0, set()
    sound = (tmp_path / "views" / "data.mdb").read_bytes()
    while first < size:
        (tmp_path / "views" / "data.mdb").write_bytes(sound)
        child = subprocess.run(
            [sys.executable, str(KIT), "flip", str(tmp_path), str(first), str(step), str(first % 8)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        said = child.stdout.splitlines()
        assert said, child.stderr
        assert not [line for line in said if line.startswith("wrong")], said
        seen |= set(said)
        if said[-1] == "end":
            break
        assert child.returncode < 0, child.stderr  # a signal, not an error that nobody expected
        died += 1
        first = int(said[-1].split()[1]) + step
    assert {"right", "errors"} <= seen
    assert died < 10


async def test_views_whose_branches_lead_nowhere_are_made_anew_and_kill_nobody(tmp_path, caplog):
    """Not even once: LMDB would end the process with an assertion."""
    rows = [(16, b"%d" % n, n + 1, INDEXED) for n in range(2_000)]
    async with await put(tmp_path) as store:
        for at in range(0, len(rows), 500):
            await append(store, frame(*rows[at : at + 500]))
        await store.core.until_dispatched(store.log.confirmed)
    path = tmp_path / "views" / "data.mdb"
    data = bytearray(path.read_bytes())
    branches = [at for at in range(8_192, len(data), 4_096) if data[at + 10 : at + 12] == b"\x01\x00"]
    assert len(branches) > 1
    for i, at in enumerate(branches):  # a child of each is another branch
        node = at + int.from_bytes(data[at + 18 : at + 20], "little")
        data[node : node + 4] = (branches[i - 1] // 4_096).to_bytes(4, "little")
    path.write_bytes(data)
    child = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", READ, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == [VALUE.decode().split()[0], str(1 + len(rows))]
    assert "pages that lead nowhere" in child.stderr
    assert "the views are rebuilt from the log" in child.stderr


def test_a_process_that_dies_of_views_does_so_three_times(tmp_path):
    """Really: the child's LMDB is made to end the process while it opens."""
    asyncio.run(fill(tmp_path))
    code = (
        "import asyncio, lmdb, signal, sys, threading\n"
        "from pathlib import Path\n"
        "from store.local.local import LocalStore\n"
        "import store.views as views\n"
        "real = lmdb.open\n"
        "class Deadly:\n"
        "    def __getattr__(self, name): return getattr(lmdb, name)\n"
        "    def open(self, path, **options):\n"
        "        if not (Path(path) / 'data.mdb').exists(): return real(path, **options)\n"
        "        signal.pthread_kill(threading.get_ident(), 7)\n"
        "views.environment.lmdb = Deadly()\n"
        "async def main():\n"
        "    async with await LocalStore.open(Path(sys.argv[1])) as store:\n"
        "        print((await store.keys.get('key1')).value)\n"
        "asyncio.run(main())\n"
    )
    ends = []
    for _ in range(DEATHS_MAX + 1):
        child = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
        )
        ends.append(child.returncode)
    assert ends == [-7] * DEATHS_MAX + [0], child.stderr
    assert "value 1" in child.stdout
