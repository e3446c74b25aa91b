"""The command that starts Spark's workers: this Python, with the installed PySpark instead of Spark's archive of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from spark.job.worker_python import worker_python

ARCHIVE = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
PROGRAM = "import json, sys, pyspark; print(json.dumps([sys.executable, pyspark.__file__, sys.argv, sys.path]))"


@pytest.mark.parametrize("found_archive", [True, False])
def test_a_worker_imports_the_installed_pyspark_and_all_else_as_it_is_told(tmp_path, found_archive):
    own, spaced = tmp_path / "own", tmp_path / "a $HOME * b"
    entries = [str(own), *([str(ARCHIVE)] if found_archive else []), str(spaced)]
    ran = subprocess.run(
        [worker_python(), "-c", PROGRAM, "an argument", "*"],
        env={**os.environ, "PYTHONPATH": ":".join(entries)},
        capture_output=True,
        text=True,
        check=True,
    )
    executable, package, arguments, path = json.loads(ran.stdout)
    assert (executable, package, arguments) == (sys.executable, pyspark.__file__, ["-c", "an argument", "*"])
    assert path[1:3] == [str(own), str(spaced)]
    assert str(ARCHIVE) not in path


def test_a_worker_without_a_path_starts_too():
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run([worker_python(), "-c", "import spark"], env=environ, check=False)
    assert ran.returncode == 0


def test_where_pyspark_is_the_archive_or_temporary_files_cannot_be_run_it_is_this_python(monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert worker_python() == sys.executable
    monkeypatch.undo()
    monkeypatch.setattr(pyspark, "__file__", str(ARCHIVE / "pyspark" / "__init__.py"))
    assert worker_python() == sys.executable
