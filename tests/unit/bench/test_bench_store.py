"""The store's figures: every study still runs, and what is kept of it is shown."""

import inspect
from importlib import import_module

import pytest

from tests.bench import __main__ as program
from tests.bench import report
from tests.bench.cluster.studies import CLUSTER_STUDIES
from tests.bench.machine import describe
from tests.bench.result import spread
from tests.bench.store.kept import Kept, lines, load_kept
from tests.bench.store.studies import STUDIES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("study", [*STUDIES.values(), *CLUSTER_STUDIES.values()], ids=lambda study: study.name)
def test_every_case_names_options_that_there_are(study):
    options = inspect.signature(import_module(study.program).measure_case).parameters
    passed_on = any(option.kind is option.VAR_KEYWORD for option in options.values())
    for case in study.cases:
        assert passed_on or {*case, *study.smoke} <= set(options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["append", "visible", "fetch", "length"])
def test_a_study_from_start_to_end(name, tmp_path):
    words = ["store", name, "--smoke", "--results", str(tmp_path / "kept"), "--dir", str(tmp_path)]
    assert program.main(words) == 0
    (kept,) = load_kept(tmp_path / "kept")
    shown = set(STUDIES[name].columns)
    assert kept.rows
    assert all(shown <= set(quantities) for quantities in kept.rows.values())
    assert f"### {kept.title}" in report.store_section([kept])


@pytest.mark.slow
def test_a_study_of_a_cluster_from_start_to_end(tmp_path):
    words = ["cluster", "rebuild", "--smoke", "--results", str(tmp_path / "kept"), "--dir", str(tmp_path)]
    assert program.main(words) == 0
    (kept,) = load_kept(tmp_path / "kept")
    assert all(set(CLUSTER_STUDIES["rebuild"].columns) <= set(quantities) for quantities in kept.rows.values())
    assert f"### {kept.title}" in report.store_section([kept], "cluster", list(CLUSTER_STUDIES))


def test_a_case_that_fails_is_said_to_have(tmp_path):
    words = ["store", "fetch", "--smoke", "--set", "no_such=1", "--results", str(tmp_path)]
    assert program.main(words) == 1
    (kept,) = load_kept(tmp_path)
    assert not kept.rows
    assert all("no_such" in why for why in kept.failed.values())


def test_a_figure_nobody_knows_is_wrong_usage(capsys):
    assert program.main(["store", "appendix"]) == 2
    assert program.main(["store", "append", "--set", "mb"]) == 2
    assert "appendix" in capsys.readouterr().err


def test_rows_show_what_they_have(tmp_path):
    kept = Kept(
        figure="append",
        title="Appends",
        about="",
        columns={"per_s": "a second", "peak_mb": "peak"},
        version="1",
        date="2030-01-01T00:00:00+00:00",
        machine=describe(tmp_path),
        rows={"three": {"per_s": spread([1.0, 3.0, 2.0])}, "one": {"per_s": spread([5.0]), "peak_mb": spread([7.0])}},
    )
    assert lines(kept)[1:] == [["three", "2", "", "1 to 3"], ["one", "5", "7", ""]]
