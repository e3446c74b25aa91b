"""Repeats are found by a device's last records, however the log is cut into batches."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.telemetry.repeats import KEPT_COUNT, NOTHING, column_of, find, fingerprints, places_of
from tests.support.process.examples import examples
from tests.support.spark.job_kit import Record, table

DEVICES = 3


def naive(batches):
    """Returns which records repeat one: of the same batch, or of the device's last ones of before."""
    known = [[] for _ in range(DEVICES)]
    found = []
    for batch in batches:
        held = [list(one) for one in known]
        for device, key in batch:
            repeat = key in held[device]
            found.append(repeat)
            if not repeat:
                held[device].append(key)
        known = [one[-KEPT_COUNT:] for one in held]
    return found


def by_numpy(batches):
    places = [np.full((DEVICES, KEPT_COUNT), NOTHING) for _ in range(2)]
    found = []
    for batch in batches:
        order = sorted(range(len(batch)), key=lambda n: batch[n][0])
        owner, time, said = (
            np.array([part(batch[n]) for n in order], np.int64)
            for part in (lambda one: one[0], lambda one: one[1][0], lambda one: one[1][1])
        )
        again, *places = find(owner, time, said, *places)
        verdict = np.zeros(len(batch), bool)
        verdict[order] = again
        found += verdict.tolist()
        places = [places_of(column_of(one), DEVICES) for one in places]
    return found


keys = st.tuples(st.integers(0, 6), st.integers(-2, 2))
records = st.tuples(st.integers(0, DEVICES - 1), keys)


@settings(max_examples=examples(300))
@given(st.lists(st.lists(records, max_size=25), max_size=6))
def test_repeats_are_those_of_a_plain_search(batches):
    assert by_numpy(batches) == naive(batches)


def prints(*of):
    rows = [Record("d", n, n, values, address=address) for n, (address, values) in enumerate(of)]
    return fingerprints(table(rows))[0]


def changed(rows, **fields):
    """Returns records whose samples have other fields."""
    found = [[{**one, **fields} for one in samples] for samples in rows["samples"].to_pylist()]
    return rows.set_column(rows.schema.get_field_index("samples"), "samples", pa.array(found, rows["samples"].type))


def test_a_fingerprint_is_of_all_that_a_record_says_and_of_nothing_else():
    same = prints(("a", {"x": 1.0, "y": "on"}), ("a", {"y": "on", "x": 1.0}))
    assert same[0] == same[1]
    others = [
        ("a", {"x": 1.0, "y": "on"}),
        ("b", {"x": 1.0, "y": "on"}),
        ("a", {"x": 1.0}),
        ("a", {"x": 1.0, "y": "off"}),
        ("a", {"x": "on", "y": 1.0}),
        ("a", {"x": 2.0, "y": "on"}),
        ("a", {}),
        ("a", {"x": (1.0, 7)}),
        ("a", {"x": (1.0, 8)}),
        ("a", {"on": 1.0}),
    ]
    assert len(set(prints(*others).tolist())) == len(others)
    assert prints(*others).tolist() == [prints(one)[0] for one in others], "whatever else is in the batch"


def test_times_and_units_of_samples_and_bytes_that_are_no_record_tell_records_apart():
    plain = table([Record("d", 0, 0, {"x": 1.0})])
    variants = [plain, *(changed(plain, **one) for one in ({"unit": "C"}, {"unit": "F"}, {"time": 1}, {"time": 2}))]
    variants += [table([Record("d", 0, 0, rejected=one)]) for one in (b"a", b"b")]
    found = [fingerprints(one) for one in variants]
    assert len({prints[0] for prints, _ in found}) == len(variants)
    assert [timed[0] for _, timed in found] == [False, False, False, True, True, False, False]
