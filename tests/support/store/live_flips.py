"""The part that tests of flipped keys share: views with branch pages, and questions to them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from store.api.log import IndexKind
from store.base.errors import ViewsDamaged
from store.format.frame import ROW, LogOffset, Position
from store.format.records import AddressesSeen, GroupOffsets, KvPut, Settled, TimerSet
from store.format.timer_key import TimerKey
from store.local.local import LocalStore
from store.views import Views
from store.views.index import IndexQuery
from tests.support.store.flips import flip
from tests.support.store.lmdb_pages import KeyPlace
from tests.support.store.store_kit import append, frame, records_frame
from tests.support.store.views_kit import INDEXED, told

QUEUES = (16, 17, 18)
Question = Callable[[Any], object]


async def fill_deep(directory: Path, count: int = 240) -> None:
    """Writes so many entries of most kinds that their trees have branch pages."""
    async with await LocalStore.open(directory, scrub_bytes_per_s=0) as store:
        for n in range(count):
            rows = [(queue, b"%d of %d" % (n, queue), 1 + n % 50, INDEXED) for queue in QUEUES]
            await append(store, frame(*rows, producer_id=n + 1, sequence=0))
        keys = [KvPut(f"account-{n:04}", b"value %d" % n, None, "", (1 << 50) + n) for n in range(count)]
        row = ROW.pack(16, 0, 5, 0, 0, 0, 0, 0)
        timers = [TimerSet((1 << 45) + n, row, b"%05d" % n) for n in range(count)]
        await append(store, records_frame(*keys))
        await append(store, records_frame(*timers))
        await append(store, records_frame(*[Settled(16, ((2 * n, 2 * n + 1),), f"g{n % 3}") for n in range(2, count)]))
        await append(store, records_frame(AddressesSeen(tuple(f"floor/{n:04}/temperature" for n in range(count)))))
        await append(store, records_frame(*[GroupOffsets(f"group-{n // 4:03}", {16 + n % 4: n}) for n in range(count)]))
        await store.core.until_dispatched(store.log.confirmed)


@contextmanager
def flipped(views: Views, place: int, bit: int) -> Iterator[None]:
    """Flips a bit of the open views, and flips it back; what they then know of damage is forgotten."""
    file = views.path / "data.mdb"
    flip(file, place, bit=bit)
    try:
        yield
    finally:
        flip(file, place, bit=bit)
        for table in views.tables.values():
            table.broken = ""


def plain_questions(views: Views, name: str) -> list[Question]:
    """Returns questions for each key of a table, for keys beside them, and for ranges."""
    table = views.tables[name]
    keys = [key for (its, key) in told(views) if its == name]
    beside = [key + b"\x01" for key in keys] + [key[:-1] for key in keys if len(key) > 1]

    def get(key: bytes) -> Question:
        return lambda txn: txn.get(key, db=table)

    def listed(start: bytes, count: int, back: bool) -> Question:
        def ask(txn: Any) -> object:
            with txn.cursor(db=table) as cursor:
                found = cursor.set_range(start) or (back and cursor.last())
                entries = []
                while found and len(entries) < count:
                    entries.append((cursor.key(), cursor.value()))
                    found = cursor.prev() if back else cursor.next()
                return entries

        return ask

    questions = [get(key) for key in (*keys, *beside)]
    questions += [listed(key, 3, back) for key in (*keys, *beside) for back in (False, True)]

    def all_of(txn: Any) -> object:
        with txn.cursor(db=table) as cursor:
            return list(cursor)

    return [*questions, all_of]


def view_questions(views: Views) -> dict[str, list[Question]]:
    """Returns what the store asks views, by the table that an answer comes from."""
    kv, queues, timers, settled = views.kv, views.queues, views.timers, views.settled
    some = range(0, 241, 7)

    def due(start: int) -> Question:
        key = TimerKey((1 << 45) + start, LogOffset(0), 0)
        return lambda txn: timers.due(
            txn, key, until_ms=(1 << 45) + start + 9, count=20, size_bytes=1 << 20, skip=lambda _: False
        )

    def query(hash_: int) -> Question:
        wanted = IndexQuery(IndexKind.ADDRESS, hash_, below=Position(LogOffset(1 << 40), 0))
        return lambda txn: list(views.index.find(txn, wanted, LogOffset(0)))

    offsets = [(queue, n) for queue in (15, *QUEUES, 19) for n in some]
    return {
        "kv": [
            *(lambda txn, n=n: kv.get(txn, f"account-{n:04}") for n in some),
            *(lambda txn, n=n: kv.get(txn, f"account-{n:04}x") for n in some),
            *(lambda txn, n=n: kv.state(txn).get(b"\0account-%04d" % n) for n in some),  # as compare-and-set does
            *(lambda txn, n=n: list(kv.slots(txn, b"\0account-%04d" % n, b"\0account-%04d" % (n + 9))) for n in some),
        ],
        "kv_expiry": [
            kv.next_due_ms,
            *(lambda txn, n=n: list(kv.due(txn, (1 << 50) + n)) for n in some[::4]),
        ],
        "kv_spaces": [lambda txn: list(kv.spaces(txn)), lambda txn: kv.state(txn).space("")],
        "queues": [
            lambda txn: list(queues.queues(txn)),
            *(lambda txn, q=q, n=n: list(islice(queues.chunks(txn, q, n), 5)) for q, n in offsets),
            *(lambda txn, q=q: queues.end(txn, q) for q in (15, *QUEUES, 19)),
            *(lambda txn, q=q: queues.first_offset(txn, q) for q in QUEUES),
            *(lambda txn, q=q, n=n: queues.search(txn, q, lambda chunk: chunk.first >= n) for q, n in offsets[::3]),
        ],
        "timers": [
            *(due(n) for n in some),
            timers.held,
            lambda txn: timers.sizes(txn, None, count=1000, skip=lambda _: False),
            lambda txn: timers.awaited(txn, None, {16, 19}, count=1000, size_bytes=1 << 20),
        ],
        "settled": [
            *(lambda txn, g=g: settled.get(txn, 16, f"g{g}") for g in range(4)),
            *(lambda txn, n=n: settled.first_unsettled(txn, 16, n, f"g{n % 3}") for n in range(0, 480, 5)),
            lambda txn: settled.deleted_at(txn, 16, "g1"),
            lambda txn: settled.policy(txn, 16, "g1"),
        ],
        "groups": [*(lambda txn, n=n: views.groups.get(txn, f"group-{n:03}") for n in range(61))],
        "addresses": [
            *(lambda txn, n=n: views.addresses.has(txn, f"floor/{n:04}/temperature") for n in range(0, 250, 5)),
            *(
                lambda txn, n=n: list(islice(views.addresses.after(txn, "floor/", f"floor/{n:04}"), 4))
                for n in range(0, 250, 5)
            ),
        ],
        "index": [query(1 + n) for n in range(0, 52, 3)],
    }


def answer(views: Views, question: Question) -> tuple[str, object]:
    """Returns what views answer, or that they refuse to."""
    try:
        with views.reading() as txn:
            return "told", question(txn)
    except ViewsDamaged:
        return "refused", None


class _GivenUp(Exception):
    """Ends a transaction without its changes."""


def misplaced(views: Views, place: KeyPlace, true: list[bytes], new: list[bytes], gone: list[bytes]) -> str:
    """Puts and deletes keys beside a flipped one, and takes it back; returns what is wrong and not known, or ""."""
    table = views.tables[place.table]
    said = ""
    try:
        with views.writing() as txn:
            with txn.cursor(db=table) as cursor:
                cursor.putnew([(key, b"new") for key in sorted(new[::2])])
            for key in new[1::2]:
                assert txn.get(key, db=table) is None
                txn.put(key, b"new", db=table)
            for key in gone:
                txn.put(key, b"other", db=table)
                txn.delete(key, db=table)
            if not table.broken:
                found = [key for key, _ in txn.held(table, b"\0")]
                expected = sorted({*true, *new} - set(gone))
                if len(found) != len(expected):
                    said = f"{len(found)} entries instead of {len(expected)}"
                else:
                    wrong = [(key, its) for key, its in zip(found, expected, strict=True) if key != its]
                    if wrong and [its for _, its in wrong] != [place.key]:
                        said = f"out of order: {wrong[:3]}"
            raise _GivenUp
    except (_GivenUp, ViewsDamaged):
        return said
