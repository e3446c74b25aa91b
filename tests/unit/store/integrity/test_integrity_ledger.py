"""The ledger: disjoint ranges, kept beyond the process, closed by repair and by nothing else."""

import errno
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from store.disk.files import OsFiles
from store.format.ranges import RangeSet
from store.integrity import ledger
from store.integrity.ledger import Damage, DamageLedger
from tests.support.store.store_kit import FaultyFiles


def damage(start, end, why="body checksum", found_by="scrub"):
    return Damage(f"{start:020d}.log", start, end, why, found_by)


def spans(found):
    return [(one.start, one.end) for one in found.open()]


def test_the_ledger_survives_a_restart(tmp_path):
    found = DamageLedger(OsFiles(), tmp_path / "damages")
    found.report(damage(300, 400))
    found.report(damage(100, 200, "cut short", "start"))
    found.report(damage(500, 600))
    found.repaired(500, 600)
    again = DamageLedger(OsFiles(), tmp_path / "damages")
    assert again.open() == found.open() == [damage(100, 200, "cut short", "start"), damage(300, 400)]
    assert (again.count, again.repaired_count) == (2, 1)


def test_a_damage_is_told_and_logged_once(caplog):
    found, told = DamageLedger(), []
    found.on_damage = lambda: told.append("damaged")
    found.on_repair = lambda: told.append("repaired")
    found.report(damage(100, 200))
    found.report(damage(100, 200, found_by="read"))
    found.report(damage(120, 180))
    assert told == ["damaged"]
    assert caplog.text.count("the log is damaged") == 1
    found.report(damage(150, 250))
    assert spans(found) == [(100, 250)]
    assert found.open()[0].why == "body checksum"
    found.repaired(0, 100)
    assert told == ["damaged", "damaged"]
    found.repaired(100, 250)
    assert (told[2:], found.count, found.repaired_count) == (["repaired"], 0, 1)


def test_a_repair_of_the_first_part_leaves_the_rest_open():
    found = DamageLedger()
    found.report(damage(100, 400))
    found.repaired(100, 200)
    assert (spans(found), found.repaired_count) == ([(200, 400)], 0)
    found.repaired(200, 400)
    assert (spans(found), found.repaired_count) == ([], 1)


def test_what_is_deleted_or_cut_off_counts_as_no_repair():
    found = DamageLedger()
    found.report(damage(100, 400))
    found.forget(0, 200)
    found.forget(300, 1 << 63)
    assert (spans(found), found.repaired_count) == ([(200, 300)], 0)


def test_too_many_ranges_become_fewer_and_none_is_left_out(monkeypatch):
    monkeypatch.setattr(ledger, "DAMAGES_KEPT_COUNT_MAX", 3)
    found = DamageLedger()
    for start in (100, 200, 250, 400, 900):
        found.report(damage(start, start + 10))
    assert spans(found) == [(100, 260), (400, 410), (900, 910)]


def test_a_disk_that_takes_nothing_leaves_what_is_known_in_memory(tmp_path, caplog):
    files = FaultyFiles()
    found = DamageLedger(files, tmp_path / "damages")
    files.write_error = errno.EIO
    found.report(damage(100, 200))
    assert spans(found) == [(100, 200)]
    assert "`damages` cannot be written" in caplog.text


@given(st.lists(st.tuples(st.sampled_from("rrrxf"), st.integers(0, 60), st.integers(1, 20)), max_size=40))
def test_the_ledger_is_a_set_of_bytes(steps):
    found, twin = DamageLedger(), RangeSet()
    for step, start, size in steps:
        if step == "r":
            found.report(damage(start, start + size))
            twin.add(start, start + size)
        else:
            (found.repaired if step == "x" else found.forget)(start, start + size)
            twin.remove(start, start + size)
        assert {n for a, b in spans(found) for n in range(a, b)} == {n for a, b in twin for n in range(a, b)}
        assert all(one.end <= other.start for one, other in pairwise(found.open()))
        at = Random(start).randrange(80)
        assert bool(found.overlapping(at, at + 1)) == (at in twin)
