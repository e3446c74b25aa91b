"""Entries sealed many at a time are those that are sealed one by one, and are counted as they are."""

from itertools import pairwise

import numpy as np
import pytest

from store.base.errors import ViewsDamaged
from store.integrity.tables import crc_of, seal
from store.views import Views
from store.views.columns import Columns
from store.views.index import IndexKind, _Columns
from store.views.sealed import PUTS


def entries(count, key_size=9, value_size=12):
    """Returns entries in order of their keys, which begin at 2, 4, 6 and so on."""
    return [
        ((2 * n + 2).to_bytes(key_size, "big"), (n * 77).to_bytes(8, "little") + bytes(value_size - 8))
        for n in range(count)
    ]


def columns_of(items):
    key_size, value_size = len(items[0][0]), len(items[0][1])
    keys = np.frombuffer(b"".join([key for key, _ in items]), f"V{key_size}")
    return Columns.of(keys, np.frombuffer(b"".join([data for _, data in items]), f"V{value_size}"))


@pytest.mark.parametrize("count", [1, 2, 16, 17, PUTS - 1, PUTS, PUTS + 1, 2 * PUTS + 20])
@pytest.mark.parametrize(("key_size", "value_size"), [(12, 32), (8, 12), (17, 12)])
def test_columns_are_sealed_as_single_entries_are(count, key_size, value_size):
    items = entries(count, key_size, value_size)
    wanted = [(key, seal(7, key, data)) for key, data in items]
    got = list(columns_of(items).sealed(7))
    assert [entry for some, _ in got for entry in some] == wanted
    assert all(total == sum(crc_of(held) for _, held in some) for some, total in got)


def test_no_entries_are_sealed_as_none():
    assert list(Columns(b"", 8, 12).sealed(7)) == []


def sums_of(view, txn):
    held = [crc_of(held) for _, held in txn.held(view, b"\0")]
    return len(held), sum(held)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("count", [3, 600])
@pytest.mark.parametrize("part", [0, 0.5, 1])
def test_new_entries_are_counted_in_front_of_a_walk_and_behind_it(tmp_path, together, count, part):
    views, items = Views(tmp_path), entries(count)
    table = views.tables["index"]
    table.walked_to = items[int(part * (count - 1))][0] if part else b""
    inside = [seal(table.salt, *entry) for entry in items if entry[0] < table.walked_to]
    with views.writing() as txn, txn.cursor(db=table) as cursor:
        if together:
            cursor.putnew_columns(columns_of(items))
        else:
            cursor.putnew(items)
    with views.reading() as txn:
        assert (table.count, table.total) == sums_of(table, txn)
        assert txn.get(items[-1][0], db=table) == items[-1][1]
    assert (table.walked_count, table.walked_total) == (len(inside), sum(map(crc_of, inside)))
    views.close()


@pytest.mark.parametrize("part", [0, 0.5, 1])
def test_replaced_entries_are_not_counted_again(tmp_path, part):
    views, items = Views(tmp_path), entries(600)
    table = views.tables["last"]
    with views.writing() as txn, txn.cursor(db=table) as cursor:
        cursor.put_columns(columns_of(items[::3]))
    assert table.count == 200
    table.walked_to = items[int(part * 599)][0] if part else b""
    table.walked_count = sum(key < table.walked_to for key, _ in items[::3])
    with views.writing() as txn, txn.cursor(db=table) as cursor:
        cursor.put_columns(columns_of(items))
    assert table.count == 600
    assert table.walked_count == sum(key < table.walked_to for key, _ in items)
    with views.reading() as txn:
        assert txn.entries(table) == 600
    views.close()


@pytest.mark.parametrize("together", [False, True])
def test_an_entry_that_is_there_already_is_damage(tmp_path, together):
    views, items = Views(tmp_path), entries(40)
    table = views.tables["index"]
    with views.writing() as txn, txn.cursor(db=table) as cursor:
        cursor.putnew(items[:1])

    def put_all():
        with views.writing() as txn, txn.cursor(db=table) as cursor:
            if together:
                cursor.putnew_columns(columns_of(items))
            else:
                cursor.putnew(items)

    with pytest.raises(ViewsDamaged):
        put_all()
    assert table.count == 1
    views.close()


def test_a_frame_that_names_hashes_once_and_often_is_indexed_in_order(tmp_path):
    views = Views(tmp_path)
    kept = np.arange(600)
    hashes = np.where(kept % 3 == 0, 5, kept + 10).astype(np.uint64)  # one with many rows, and many with one
    columns = _Columns(
        starts=np.array([0], np.uint64),
        stored=np.array([9], np.uint64),
        frame=np.zeros(600, np.int64),
        begins=np.array([0]),
    )
    with views.writing() as txn:
        views.index._put(txn, IndexKind.KEY, kept, hashes, columns)
    with views.reading() as txn, txn.cursor(db=views.tables["index"]) as cursor:
        assert cursor.first()
        found = list(cursor)
    assert all(a < b for (a, _), (b, _) in pairwise(found))
    rows = {key[5:13]: np.frombuffer(data, ">u4")[2:].tolist() for key, data in found}
    assert rows[(5).to_bytes(8, "big")] == [n for n in range(599, -1, -1) if n % 3 == 0]
    assert rows[(11).to_bytes(8, "big")] == [1]
    assert len(rows) == 401
    views.close()
