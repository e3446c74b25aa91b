"""The part that tests of damaged views share: a small views file that holds something of everything, flips, readers."""

import asyncio
import sys
from pathlib import Path

import lmdb
from google_crc32c import value

from store.base.errors import NotRebuildable, StoreFull, ViewsDamaged
from store.format.frame import ROW_INDEX_ADDRESS, ROW_INDEX_KEY
from store.format.queue_config import QueueConfig
from store.format.records import AddressesSeen, KvDelete
from store.integrity.tables import unseal
from store.integrity.views import ViewsHealth
from store.local.local import LocalStore
from store.views import Views
from store.views.layout import DBS_MAX, META, TABLES, UNSEALED
from tests.support.store.store_kit import append, frame, records_frame

INDEXED = ROW_INDEX_KEY | ROW_INDEX_ADDRESS


async def fill(directory: Path, count: int = 6) -> None:
    """Writes at least one entry of every kind that the views hold."""
    async with await LocalStore.open(directory, scrub_bytes_per_s=0) as store:
        for n in range(count):
            await append(store, frame((16 + n % 2, b"m%d" % n, n + 1, INDEXED), producer_id=n + 1, sequence=0))
            await store.keys.put(f"key{n}", b"value %d" % n)
            await store.keys.put(f"brief{n}", b"soon over", expires_at_ms=1 << 50)
        await store.keys.put("large", bytes(10_000))
        await append(store, records_frame(AddressesSeen(("a/1", "a/2")), KvDelete("nothing")))
        await append(store, records_frame(QueueConfig(16, retention_ms=1 << 40), QueueConfig(17, compact=True)))
        await append(store, frame((17, b"kept", 5)))
        await store.groups.commit("g", {16: 2, 17: 1})
        leased = await store.leases.take(16, 1, max_count=2)
        await store.leases.settle(16, 1, [one.offset for one in leased])
        await store.core.until_dispatched(store.log.confirmed)


def plain(path: Path) -> None:
    """Converts views back to version 4 of their format: without checksums and the files beside them."""
    with lmdb.open(str(path), max_dbs=DBS_MAX, map_size=1 << 30) as env:
        for name in (*TABLES, META):
            handle = env.open_db(name.encode())
            with env.begin(write=True, db=handle) as txn:
                for key, held in list(txn.cursor()):
                    data = unseal(value(name.encode()), key, held)
                    assert data is not None
                    txn.put(key, data)
                if name == META:
                    txn.put(b"format", UNSEALED)
                    txn.delete(b"sums")


def told(views: Views) -> dict[tuple[str, bytes], bytes]:
    """Returns all entries of the views, as their readers get them."""
    found: dict[tuple[str, bytes], bytes] = {}
    with views.reading() as txn:
        for name in TABLES:
            with txn.cursor(db=views.tables[name]) as cursor:
                found |= {(name, key): data for key, data in cursor}
    return found


def asked(views: Views, true: dict[tuple[str, bytes], bytes]) -> tuple[int, list[str]]:
    """Asks for each entry, and for each view; returns how many errors there were, and the wrong answers."""
    errors, wrong = 0, []
    for (name, key), data in true.items():
        try:
            with views.reading() as txn:
                got = txn.get(key, db=views.tables[name])
        except ViewsDamaged:
            errors += 1
        else:
            if got != data:
                wrong.append(f"{name} {key!r}: {got!r}")
    for name in TABLES:
        try:
            with views.reading() as txn, txn.cursor(db=views.tables[name]) as cursor:
                listed = dict(cursor)
        except ViewsDamaged:
            errors += 1
        else:
            if listed != {key: data for (its, key), data in true.items() if its == name}:
                wrong.append(f"{name}: a list that is not so")
    return errors, wrong


def try_flips(directory: Path, first: int, step: int, bit: int) -> None:
    """Flips bytes one after the other and reads, in a process of its own; prints each flip before, and its outcome."""
    path = directory / "views" / "data.mdb"
    views = Views(directory / "views")
    true, dispatched = told(views), views.dispatched
    views.close()
    sound = path.read_bytes()
    for at in range(first, len(sound), step):
        print("at", at, flush=True)
        data = bytearray(sound)
        data[at] ^= 1 << bit
        path.write_bytes(data)
        try:
            views = Views(directory / "views", rebuildable=False, health=ViewsHealth())
        except (NotRebuildable, StoreFull):
            print("refused", flush=True)
            continue
        errors, wrong = asked(views, true)
        older, damaged = views.dispatched < dispatched, views.health.is_damaged
        views.close()
        if older and not damaged:  # as before the newest transaction: a prefix, to which the log gives the rest
            print("older", flush=True)
            continue
        if wrong:
            print("wrong", *wrong, flush=True)
        elif errors and not damaged:
            print("wrong: errors that nobody is told of", flush=True)
        else:
            print("errors" if errors else "right", flush=True)
    path.write_bytes(sound)
    print("end", flush=True)


if __name__ == "__main__":
    command, where, *numbers = sys.argv[1:]
    if command == "fill":
        asyncio.run(fill(Path(where)))
    else:
        try_flips(Path(where), *map(int, numbers))
