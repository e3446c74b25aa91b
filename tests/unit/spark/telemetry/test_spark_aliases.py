"""Aliases of Sparkplug's metrics: each sample has the name that the newest BIRTH before it gave, however it was cut."""

import itertools

import pytest

pa = pytest.importorskip("pyarrow")
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from spark.telemetry.aliases import ALIASES, NAMED, placed, resolve  # noqa: E402
from spark.telemetry.forgetting import trimmed_aliases  # noqa: E402

DEVICES, NUMBERS, NAMES = ("d", "e"), (1, 2, -3), ("temp", "hum", "run")
GIVEN = st.lists(st.tuples(st.sampled_from(NUMBERS), st.sampled_from(NAMES)), max_size=3)
SAID = st.tuples(st.sampled_from(DEVICES), GIVEN, st.lists(st.sampled_from(NUMBERS), max_size=3))
CUTS = st.sets(st.integers(0, 30))


def resolved(known: "pa.Table", records: list) -> tuple[list[str], "pa.Table"]:
    """Returns the metrics of samples of ((device, names, aliases), place), each with a sample by its own name, too."""
    told = [(device, a, name, *place) for (device, names, _), place in records for a, name in names]
    rows = [(device, a, f"alias/{a}", *place) for (device, _, used), place in records for a in used]
    rows += [(device, None, "own", *place) for (device, _, _), place in records]
    named, asking = (
        pa.table([pa.array([row[k] for row in some], field.type) for k, field in enumerate(NAMED)], schema=NAMED)
        for some in (told, rows)
    )
    found, after = resolve(known, named, asking)
    metrics = found.to_pylist()
    assert metrics[len(rows) - len(records) :] == ["own"] * len(records)
    return metrics[: len(rows) - len(records)], after


def one_queue(*records: tuple) -> list:
    return [(record, (n, 16, n)) for n, record in enumerate(records)]


def naive(records: list) -> list[str]:
    known, found = {}, []
    for (device, names, used), _ in records:
        known |= {(device, alias): name for alias, name in names}
        found += [known.get((device, alias), f"alias/{alias}") for alias in used]
    return found


def names_of(known: "pa.Table") -> dict:
    return {(row["device"], row["alias"]): row["metric"] for row in known.to_pylist()}


def pieces(records: list, cuts: set[int]) -> list[list]:
    bounds = [0, *sorted(cut for cut in cuts if cut < len(records)), len(records)]
    return [records[low:high] for low, high in itertools.pairwise(bounds)]


def test_values_of_before_a_rebirth_keep_their_names():
    records = one_queue(("d", [(1, "temp")], []), ("d", [], [1]), ("d", [(1, "hum")], []), ("d", [], [1]))
    metrics, known = resolved(ALIASES.empty_table(), records)
    assert (metrics, names_of(known)) == (["temp", "hum"], {("d", 1): "hum"})
    same, after = resolved(known, [(("d", [], [1, 2]), (9, 16, 9)), (("e", [], [1]), (9, 16, 10))])
    assert (same, after is known) == (["hum", "alias/2", "alias/1"], True)


@given(st.lists(st.tuples(SAID, st.integers(0, 3))), CUTS)
def test_how_the_log_was_cut_does_not_show(records, cuts):
    """Of one queue; times may be any, where a clock has been set back."""
    log = [(said, (stored, 16, n)) for n, (said, stored) in enumerate(records)]
    known, found = ALIASES.empty_table(), []
    for piece in pieces(log, cuts):
        metrics, known = resolved(known, piece)
        found += metrics
    assert found == naive(log)
    assert names_of(known) == {(d, a): name for (d, names, _), _ in log for a, name in names}


@given(st.lists(st.tuples(SAID, st.integers(1, 3))), CUTS)
def test_how_a_log_of_several_queues_was_cut_does_not_show(records, cuts):
    log = [(said, (n // 2, queue, n)) for n, (said, queue) in enumerate(records)]
    log.sort(key=lambda record: record[1])
    known, found = ALIASES.empty_table(), []
    for piece in pieces(log, cuts):
        metrics, known = resolved(known, piece)
        found += metrics
    assert found == naive(log)


@given(st.lists(st.tuples(SAID, st.integers(1, 3))), CUTS)
def test_a_queue_that_lags_changes_no_newer_name(records, cuts):
    """Each queue is read in its order, and the one behind the other."""
    log = [(said, (n, queue, n)) for n, (said, queue) in enumerate(records)]
    known = ALIASES.empty_table()
    for piece in pieces(sorted(log, key=lambda record: record[1][1]), cuts):
        _, known = resolved(known, piece)
    assert names_of(known) == {(d, a): name for (d, names, _), _ in log for a, name in names}


@pytest.mark.parametrize(("again", "metric"), [("temp", "temp"), ("hum", "alias/1")])
def test_rows_of_a_queue_that_lags_take_no_newer_name(again, metric):
    """One that gives the same name leaves it as it was before."""
    said = [("d", [(1, "temp")], []), ("d", [(1, again)], []), ("d", [], [1]), ("d", [], [1])]
    places = [(10, 16, 0), (30, 17, 0), (20, 16, 1), (40, 16, 2)]
    _, known = resolved(ALIASES.empty_table(), list(zip(said[:2], places[:2], strict=True)))
    found, after = resolved(known, list(zip(said[2:], places[2:], strict=True)))
    assert (found, after is known) == ([metric, again], True)


def test_names_of_an_older_version_are_before_all_others():
    older = pa.table({"device": ["d", "d"], "alias": [1, 2], "metric": ["temp", "hum"]})
    known = placed(pa.concat_tables([ALIASES.empty_table(), older], promote_options="default"))
    records = one_queue(("d", [], [1]), ("d", [(1, "run")], [1, 2]))
    metrics, after = resolved(known, records)
    assert (metrics, names_of(after)) == (["temp", "run", "hum"], {("d", 1): "run", ("d", 2): "hum"})
    assert not any(column.null_count for column in after.columns)


def test_the_names_given_last_stay():
    records = [("d", [(9, "nine")], []), ("d", [(n, "m") for n in (1, 5)], []), ("e", [(7, "e")], [])]
    _, known = resolved(ALIASES.empty_table(), one_queue(*records, ("d", [(8, "eight")], [])))
    assert trimmed_aliases(known, 4, 100) is known
    assert set(names_of(trimmed_aliases(known, 3, 100))) == {("d", 1), ("d", 5), ("d", 8), ("e", 7)}
    assert set(names_of(trimmed_aliases(known, 1, 100))) == {("d", 8), ("e", 7)}
