"""The options of the measurements: a directory is made, and what cannot be is a sentence."""

import runpy
import sys

import pytest

from tests.bench.__main__ import PROGRAMS
from tests.bench.options import made_directory, scratch


def test_a_directory_that_is_not_there_is_made(tmp_path):
    with scratch(made_directory(str(tmp_path / "a" / "b"))) as where:
        assert where.parent == tmp_path / "a" / "b"
        (where / "log").write_text("x")
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("telemetry --dir {}/file/x", "file/x cannot be used: Not a directory"),
        ("telemetry --devices 1000,many", "'many' is no whole number from 1 on"),
        ("telemetry --devices 2000000", "a batch has at most 1,000,000 records"),
        ("telemetry --batches 2", "'2' is no whole number from 3 on"),
        ("backlog --dir {}/file", "file cannot be used: File exists"),
        ("backlog --records 0", "'0' is no whole number from 1 on"),
        ("backlog --hours nan", "'nan' is no number above 0"),
        ("end-to-end --devices 7", "'7' is no whole number from 8 on"),
        ("end-to-end --seconds -1", "'-1' is no number above 0"),
        ("decoding --formats plain,xml", "'xml' is no format; there are json-flat, json-nested, senml-json"),
        ("workers --workers 1,none", "'none' is no whole number from 1 on"),
    ],
)
def test_a_wrong_option_is_a_sentence(tmp_path, monkeypatch, capsys, command, why):
    for name in ("deltalake", "pyspark", "numpy"):
        pytest.importorskip(name)
    (tmp_path / "file").write_text("x")
    program, *words = command.format(tmp_path).split()
    monkeypatch.setattr(sys, "argv", [program, *words])
    monkeypatch.delitem(sys.modules, PROGRAMS[program], raising=False)  # another test has imported it
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(PROGRAMS[program], run_name="__main__", alter_sys=True)
    assert ended.value.code == 2
    assert why in capsys.readouterr().err
