"""The main job in short: all fleets for a few seconds, and the balance."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


# Read by every process at its start: one acknowledged message of QoS 1 is gone from the log as it is read back, and two
# others from what the session was sent.
DROPPING = """
import sys
from deploy.demo.plan import Seen
from deploy.demo.session_seen import SessionSeen

marks = Seen._marks

def kept(self, data):
    gone = (30, 31) if isinstance(self, SessionSeen) else (20,)
    return (mark for mark in marks(self, data) if mark[:2] != (b"mqtt", b"2") or mark[2] not in gone)

Seen._marks = kept
if "deploy.demo" in sys.orig_argv:
    from deploy.demo import show
    show.LOGGED_S = show.READ_S = 2.0
"""


def demo(*args: str, timeout: float = 800, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.demo", *args]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False, env={**os.environ, **environ}
    )


def test_five_protocols_balance(new_gateway, tmp_path):
    offset = str(new_gateway().offset)
    result = demo("--for", "4s", "--no-spark", "--data-dir", str(tmp_path / "demo"), "--port-offset", offset)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "messages published = in the log" in result.stdout
    assert result.stdout.count(" balances") == 5
    assert "from the start: " in result.stdout.splitlines()[-1]
    for reader in ("MQTT 5 session", "HTTP/2 events", "AMQP queue"):
        assert reader in result.stdout


def test_a_record_that_is_dropped_on_purpose_is_said(new_gateway, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(DROPPING)
    offset = str(new_gateway().offset)
    only = ("--fleets", "mqtt", "--no-spark", "--for", "3s")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    result = demo(*only, "--data-dir", str(tmp_path / "demo"), "--port-offset", offset, PYTHONPATH=path)
    assert result.returncode == 1, result.stdout + result.stderr
    faults = [line for line in result.stdout.splitlines() if line.startswith("does not balance: ")]
    assert any("mqtt: 1 acknowledged messages are not in the log" in line for line in faults), faults
    assert any("MQTT 5 session: read " in line for line in faults), faults


def test_an_earlier_run_is_not_balanced_over(tmp_path):
    (tmp_path / "demo" / "gateway").mkdir(parents=True)
    result = demo("--for", "4s", "--data-dir", str(tmp_path / "demo"))
    assert result.returncode == 2
    assert "holds an earlier run" in result.stderr


def test_a_gateway_that_does_not_start_is_said_in_a_line(shared_gateway, tmp_path):
    offset = str(shared_gateway.offset)
    result = demo("--for", "4s", "--no-spark", "--data-dir", str(tmp_path / "demo"), "--port-offset", offset)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("demo: ")
