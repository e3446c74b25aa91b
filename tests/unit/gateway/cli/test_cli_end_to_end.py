"""The command line against a real gateway: what a person sees who follows the README."""

import json
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def headgate(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", *args], input=stdin, capture_output=True, timeout=60, check=False
    )


def test_a_command_loads_nothing_that_only_others_need():
    """Two thirds of the time in which a command started went by for these."""
    slow = ("numpy", "httpx", "ssl", "rich.console", "asyncio", "grpc", "cryptography", "importlib.metadata")
    program = f"import sys, gateway.cli.commands; print([name for name in {slow} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    assert ran.stdout == b"[]\n"


@pytest.fixture
def offset(shared_gateway) -> tuple[str, str]:
    return ("--port-offset", str(shared_gateway.offset))


def test_what_pub_publishes_sub_prints(offset):
    assert headgate("pub", "other", "", *offset).returncode == 0  # "0.0" is the first of all; what follows it is wanted
    first = headgate("pub", "clitest/a b", '{"v":1}', "-t", "application/json", *offset)
    assert (first.returncode, first.stderr) == (0, b"")
    listening = [sys.executable, "-m", "gateway.cli", "sub", "clitest/#", "-n", "2", "-v", "--from", "0.0", *offset]
    with subprocess.Popen(listening, stdout=subprocess.PIPE) as sub:
        try:
            assert headgate("pub", "clitest/b", "-", "-t", "text/plain", *offset, stdin=b"from a pipe").returncode == 0
            out, _ = sub.communicate(timeout=90)
        finally:
            sub.kill()
    lines = [line.split(b"\t")[1:] for line in out.splitlines()]
    assert lines == [[b"clitest/a b", b'{"v":1}'], [b"clitest/b", b"from a pipe"]]


def test_topics_have_their_records(offset):
    assert headgate("pub", "clitopics/x", "1", "--count", "3", *offset).returncode == 0
    listed = headgate("topics", *offset)
    assert (listed.returncode, listed.stderr) == (0, b"")
    assert "clitopics\t8\t3" in listed.stdout.decode().splitlines()


def test_a_refusal_is_one_line(offset):
    refused = headgate("pub", "cli/+/x", "1", *offset)
    assert refused.returncode == 1
    assert refused.stderr == b"headgate: 400 Bad Request: the address holds '+', which no address may\n"


def test_a_data_directory_in_use_is_one_line(shared_gateway):
    second = headgate("serve", "--data-dir", str(shared_gateway.data_dir), "--port-offset", "50000")
    assert second.returncode == 1
    (line,) = second.stderr.decode().splitlines()
    assert line.startswith(f"headgate: {shared_gateway.data_dir} is in use")


def test_a_port_in_use_is_one_line(shared_gateway, tmp_path):
    second = headgate("serve", "--data-dir", str(tmp_path / "d"), "--port-offset", str(shared_gateway.offset))
    assert second.returncode == 1
    assert second.stderr.decode().splitlines()[-1].startswith("headgate: ")
    assert "Traceback" not in second.stderr.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_ends_in_order_and_logs_json(new_gateway, number):
    gateway = new_gateway().start()
    assert gateway.stop(number) == 0
    lines = [json.loads(line) for line in gateway.log.read_text().splitlines()]
    events = [line["event"] for line in lines]
    assert {"ready", "listening", "stopping", "stopped"} <= set(events)
    assert not [line for line in lines if line["level"] in {"warning", "error"}]
