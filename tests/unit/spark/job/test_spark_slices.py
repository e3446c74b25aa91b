"""Slices of a bucket's records: how they are cut does not show, and no record is too large for the job."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

pa = pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")

import numpy as np  # noqa: E402

from spark.job import slices as slices_module  # noqa: E402
from spark.job.bucket import work  # noqa: E402
from spark.job.slices import log_order, slices  # noqa: E402
from spark.tables.commits import Commits, CommitSettings  # noqa: E402
from spark.tables.files import Location  # noqa: E402
from spark.tables.schemas import SPECS  # noqa: E402
from spark.tables.state import load_state  # noqa: E402
from spark.telemetry import groups  # noqa: E402
from spark.telemetry.groups import codes, rows_at  # noqa: E402
from spark.telemetry.windows import LATEST  # noqa: E402
from tests.support.spark.job_kit import RECORDS, Record, table  # noqa: E402

T0 = 1_767_225_600_000
SETTINGS = CommitSettings(watermark_ms=30_000, late_ms=3_600_000, buckets=1, samples=True)


def some(seed: int, count: int = 400) -> list[Record]:
    """Records of two queues, a queue's devices its own: spikes, late, repeated and undecodable ones, aliases."""
    chance, found = random.Random(seed), []
    for n in range(count):
        queue, stored = 16 + n % 2, T0 + n * 1_000
        value = 900.0 if chance.random() < 0.02 else chance.randrange(1_280) / 64  # values with exact sums
        values = {"a": value, **({"state": chance.choice(("on", "off"))} if n % 3 else {})}
        if n % 7 == 0:
            values = {f"name{n}": (1.0, chance.randrange(4))}
        elif n % 7 == 1:
            values = {f"alias/{alias}": (2.0, alias) for alias in range(4)}
        time_ms = stored - (300_000 if n > 300 and chance.random() < 0.1 else 0)
        record = Record(f"d{queue}.{chance.randrange(3)}", time_ms, n, values, stored, queue)
        if found and chance.random() < 0.1:  # sent again, long after
            before = [one for one in found[:-150] if one.queue == queue] or [record]
            record = replace(chance.choice(before), offset=n, stored_ms=stored)
        if chance.random() < 0.05:
            record = replace(record, values={}, quality="bad_body", rejected=b"oops")
        found.append(record)
    return found


def outcome(where, records: "list[pa.Table]") -> dict:
    """Returns the state and every table's rows after some batches."""
    place = Location.of(where / "out")
    commits = Commits.open(place, where / "checkpoint", SETTINGS)
    for batch, of_batch in enumerate(records):
        plan = commits.begin(batch)
        commits.commit(plan, [work(plan, 0, of_batch)], batch=batch, began_ms=0)
    state = load_state(commits.begin(len(records)), 0)
    commits.close()
    rows = {name: deltalake.DeltaTable(place.child(name)).to_pyarrow_table() for name in SPECS}
    rows |= {f"open {name}": part for name, part in state.windows.items()}
    rows |= {f"state of {name}": part for name, part in state._asdict().items() if isinstance(part, pa.Table)}
    return {name: sorted(repr(rounded(row)) for row in part.to_pylist()) for name, part in rows.items()}


def rounded(value: object) -> object:
    """Returns a value with sums of squares that do not tell in which order they were added up."""
    if isinstance(value, dict):
        return {name: rounded(of) for name, of in value.items()}
    return round(value, 5) if isinstance(value, float) else value


@pytest.mark.slow
@pytest.mark.parametrize("most", [{"SAMPLES_MAX": 1}, {"SAMPLES_MAX": 50}, {"BYTES_MAX": 3_000}])
def test_how_a_batch_was_cut_into_slices_does_not_show(tmp_path, monkeypatch, most):
    chance, records = random.Random(5), some(5)
    shuffled = []
    for part in (records[:250], records[250:]):
        rows = table(chance.sample(part, len(part)))  # as they come from a shuffle
        shuffled.append(pa.Table.from_batches(rows.to_batches(max_chunksize=30)))
    whole = outcome(tmp_path / "whole", shuffled)
    for name, count in most.items():
        monkeypatch.setattr(slices_module, name, count)
    assert len(slices(shuffled[0], log_order(shuffled[0]))) > 3
    sliced = outcome(tmp_path / "sliced", shuffled)
    assert whole["anomalies"]
    assert whole["quarantine"]
    assert sliced == whole


def test_slices_have_as_much_as_fits_and_every_record_once(monkeypatch):
    records = table(random.Random(3).sample(some(2), 400))
    order = log_order(records)
    sizes = [len(one) for one in records["samples"].to_pylist()]
    sizes = [of + len(names) for of, names in zip(sizes, records["aliases"].to_pylist(), strict=True)]
    monkeypatch.setattr(slices_module, "SAMPLES_MAX", 40)
    found = slices(records, order)
    assert sorted(np.concatenate(found).tolist()) == list(range(400))
    counts = [sum(sizes[row] for row in order[at]) for at in found]
    assert max(counts) <= 40
    assert min(counts[:-1]) > 40 - 8
    offsets, stored = (np.asarray(records[name].cast(pa.int64())) for name in ("offset", "stored_at"))
    assert all((np.diff(records["queue"].to_numpy()[order[at]]) >= 0).all() for at in found)
    assert all(stored[order[a]].max() < stored[order[b]].min() for a, b in pairwise(found))
    assert len(set(offsets)) == 400


def test_a_record_that_is_larger_than_a_slice_is_one_by_itself(monkeypatch):
    monkeypatch.setattr(slices_module, "BYTES_MAX", 1_000)
    texts = [{"a": "x"}, {f"m{n}": "y" * 100 for n in range(30)}, {"a": "x"}]
    records = table([Record("d", T0 + n, n, values) for n, values in enumerate(texts)])
    assert [at.tolist() for at in slices(records, log_order(records))] == [[0], [1], [2]]


def of_long_addresses(count: int, chars: int, metrics: int) -> "pa.Table":
    records = table([Record("d", T0 + n, n, {f"m{k}": 1.0 for k in range(metrics)}) for n in range(count)])
    addresses = pa.array(["t/site/" + "\u00fc" * chars] * count)
    return records.set_column(RECORDS.names.index("address"), "address", addresses)


@pytest.mark.slow
def test_a_long_address_stops_no_batch_and_is_cut_in_the_tables(tmp_path):
    """One of each sample had more than 2 GiB in all, and the job ended for good."""
    found = outcome(tmp_path, [of_long_addresses(130, 32_500, 256)])
    assert len(found["latest"]) == 256
    address = ("t/site/" + "\u00fc" * 2_000)[:1_024]
    assert all(f"'address': '{address}'" in row for name in ("latest", "devices", "sessions") for row in found[name])


def test_rows_of_tables_that_are_too_large_for_one_array(monkeypatch):
    chance = random.Random(1)
    rows = [dict.fromkeys(LATEST.names) | {"device": f"d{chance.randrange(9)}", "offset": n} for n in range(500)]
    whole = pa.Table.from_pylist(rows, LATEST)
    pieces = pa.concat_tables([whole.slice(low, 70) for low in range(0, 500, 70)])
    at = np.array(chance.sample(range(500), 300))
    expected, known = rows_at(pieces, at), codes(pieces["device"])
    monkeypatch.setattr(groups, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(groups, "_PIECE_ROWS", 64)
    assert rows_at(pieces, at).equals(expected)
    assert rows_at(pieces, at[:0]).equals(expected.slice(0, 0))
    assert codes(pieces["device"])[0].tolist() == known[0].tolist()
    assert codes(pieces["device"])[1] == known[1]
    unit = codes(pieces["unit"])  # all null
    assert (set(unit[0].tolist()), unit[1]) == ({0}, 1)
