"""The main job in short: all fleets for a few seconds, and the balance."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def demo(*args: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.demo", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


def test_five_protocols_balance(new_gateway, tmp_path):
    offset = str(new_gateway().offset)
    result = demo("--for", "4s", "--no-spark", "--data-dir", str(tmp_path / "demo"), "--port-offset", offset)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "messages published = in the log" in result.stdout
    assert result.stdout.count(" balances") == 5
    for reader in ("MQTT 5 session", "HTTP/2 events", "AMQP queue"):
        assert reader in result.stdout


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
