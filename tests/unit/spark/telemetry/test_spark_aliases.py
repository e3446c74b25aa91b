"""Aliases of Sparkplug's metrics: each sample has the name that the newest BIRTH before it gave, however it was cut."""

import itertools

import pytest

pa = pytest.importorskip("pyarrow")
import numpy as np  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from spark.telemetry.aliases import ALIASES, resolve  # noqa: E402

DEVICES, NUMBERS, NAMES = ("d", "e"), (1, 2, -3), ("temp", "hum", "run")
NAMED = st.lists(st.tuples(st.sampled_from(NUMBERS), st.sampled_from(NAMES)), max_size=3)
RECORDS = st.lists(st.tuples(st.sampled_from(DEVICES), NAMED, st.lists(st.sampled_from(NUMBERS), max_size=3)))


def resolved(known: "pa.Table", records: list) -> tuple[list[str], "pa.Table"]:
    """Returns the metrics of samples of (device, names, aliases), each record with a sample by its own name, too."""
    told = [(device, alias, name, n) for n, (device, names, _) in enumerate(records) for alias, name in names]
    rows = [(d, f"alias/{a}", a, n) for n, (d, _, used) in enumerate(records) for a in used]
    rows += [(device, "own", None, n) for n, (device, _, _) in enumerate(records)]
    names = pa.table([pa.array([one[k] for one in told], ALIASES.field(k).type) for k in range(3)], schema=ALIASES)
    device, metric, alias = (
        pa.array([row[k] for row in rows], kind) for k, kind in enumerate((pa.string(), pa.string(), pa.int64()))
    )
    places = [np.array([one[3] for one in some], np.int64) for some in (told, rows)]
    found, after = resolve(known, names, places[0], (device, metric, alias), places[1])
    metrics = found.to_pylist()
    assert metrics[len(rows) - len(records) :] == ["own"] * len(records)
    return metrics[: len(rows) - len(records)], after


def naive(records: list) -> list[str]:
    known, found = {}, []
    for device, names, used in records:
        known |= {(device, alias): name for alias, name in names}
        found += [known.get((device, alias), f"alias/{alias}") for alias in used]
    return found


def test_values_of_before_a_rebirth_keep_their_names():
    records = [("d", [(1, "temp")], []), ("d", [], [1]), ("d", [(1, "hum")], []), ("d", [], [1])]
    metrics, known = resolved(ALIASES.empty_table(), records)
    assert metrics == ["temp", "hum"]
    assert known.to_pylist() == [{"device": "d", "alias": 1, "metric": "hum"}]
    same, after = resolved(known, [("d", [(1, "hum")], [1, 2]), ("e", [], [1])])
    assert (same, after is known) == (["hum", "alias/2", "alias/1"], True)


@given(RECORDS, st.sets(st.integers(0, 30)))
def test_how_the_log_was_cut_does_not_show(records, cuts):
    known, found = ALIASES.empty_table(), []
    bounds = [0, *sorted(cut for cut in cuts if cut < len(records)), len(records)]
    for low, high in itertools.pairwise(bounds):
        metrics, known = resolved(known, records[low:high])
        found += metrics
    assert found == naive(records)
    names = {(d, a): name for d, names, _ in records for a, name in names}
    assert {(row["device"], row["alias"]): row["metric"] for row in known.to_pylist()} == names
