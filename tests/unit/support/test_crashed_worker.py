"""A run of tests ends although a worker that had done many files has crashed."""

import subprocess
import sys

from tests.support.repository.import_graph import ROOT

CONFTEST = """
from tests.conftest import ByFile

def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log)
"""
CRASH = """
import os
from pathlib import Path

def test_that_crashes_once():
    crashed = Path("crashed")
    if not crashed.exists():
        crashed.touch()
        os._exit(1)
"""
SHORT, LONG = "def test_a(): pass\n", "import time\n\ndef test_a(): time.sleep(0.2)\n"


def test_the_files_of_a_crashed_worker_do_not_keep_the_others_waiting(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number in range(60):
        (tmp_path / f"test_a{number:02}.py").write_text(SHORT)
    (tmp_path / "test_b.py").write_text(CRASH)
    for number in range(8):
        (tmp_path / f"test_c{number}.py").write_text(LONG)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "loadfile", "-p", "no:cacheprovider", "."]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 1
    assert "1 failed, 69 passed" in done.stdout.splitlines()[-1], done.stdout[-2000:] + done.stderr[-2000:]
