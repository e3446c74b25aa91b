"""`make test`: all of its parts run, whatever becomes of one, and its exit status is of all."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
COMPILING = "--collect-only"
TOOLS = ("ruff", "mypy", "lint-imports", "python")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")


def make(directory: Path, fails: str, *args: str) -> tuple[int, list[str], str]:
    """Runs a target over tools that note only how they were called; returns its exit status, the calls, and its
    errors. Compiling the modules, which a tree does once where Python may write them, is left out.
    """
    noted = directory / "noted"
    for tool in TOOLS:
        file = directory / tool
        file.write_text(
            f'#!/bin/sh\necho "{tool} $*" >> {noted}\ncase "{tool} $*" in {fails or "never"}) exit 1;; esac\n'
        )
        file.chmod(0o755)
    stamp = directory / "stamp"
    stamp.touch()
    command = ["make", "-C", str(ROOT), *args, f"BIN={directory}", f"STAMP={stamp}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    calls = [call for call in noted.read_text().splitlines() if "--collect-only" not in call]  # in a fresh clone alone
    return done.returncode, calls, done.stderr


BY_FILE = "--dist loadfile --no-loadscope-reorder"
PARTS = [
    "ruff check",
    "ruff format --check",
    "mypy ",
    "lint-imports ",
    f"python -m pytest -n 4 {BY_FILE}",
]


def test_all_parts_run(tmp_path):
    assert make(tmp_path, "", "test") == (0, PARTS, "")


@pytest.mark.parametrize("target", ["test", "check"])
@pytest.mark.parametrize("fails", PARTS)
def test_a_part_that_fails_leaves_no_other_out(tmp_path, target, fails):
    parts = PARTS if target == "test" else PARTS[:4]
    status, noted, errors = make(tmp_path, f'"{fails}"', target)
    assert noted == parts
    assert (status != 0) == (fails in parts)
    assert ("failed:" in errors and fails.strip() in errors) == (fails in parts)


def test_arguments_name_the_tests(tmp_path):
    status, noted, _ = make(tmp_path, "", "test", "ARGS=tests/unit -k x")
    assert (status, noted) == (0, [*PARTS[:4], "python -m pytest tests/unit -k x"])
    assert make(tmp_path, "python*", "test", "ARGS=tests/unit")[0] != 0


def test_the_fast_run_leaves_slow_tests_out(tmp_path):
    status, noted, _ = make(tmp_path, "", "test-fast")
    assert status == 0
    assert noted == [f"python -m pytest -q -n 3 {BY_FILE} -m not slow and not spark tests/unit"]
