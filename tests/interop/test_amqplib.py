"""amqplib, the client of Node, with confirms, consumers, returns and direct reply-to: `make interop`.

It comes from npm, so these tests run only where HEADGATE_AMQPLIB=1 asks for them and node and npm are there.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.mqtt.paho_client import fresh

VERSION = "2.3.1"
SCRIPT = Path(__file__).with_name("amqplib.mjs")
NODE, NPM = shutil.which("node"), shutil.which("npm")
TIMEOUT_S = 100

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NODE is None or NPM is None, reason="node and npm are not installed"),
    pytest.mark.skipif(not os.environ.get("HEADGATE_AMQPLIB"), reason="needs npm's registry: make interop"),
]


@pytest.fixture(scope="session")
def script() -> Path:
    """The script beside amqplib, which is kept with the virtual environment."""
    home = Path(sys.prefix) / "amqplib" / VERSION
    if not (home / "node_modules" / "amqplib").is_dir():
        home.mkdir(parents=True, exist_ok=True)
        command = [str(NPM), "install", "--prefix", str(home), "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run([*command, f"amqplib@{VERSION}"], check=True, timeout=300)
    return Path(shutil.copy(SCRIPT, home / SCRIPT.name))


def test_amqplib(script: Path, shared_gateway: Any) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{shared_gateway.port('amqp')}"
    command = [str(NODE), str(script), url, fresh("amqplib")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "confirmed": True,
        "returned": "back",
        "properties": {
            "headers": {"text": "x", "number": 5, "nested": {"list": [1, "two"]}, "flag": True},
            "contentType": "text/plain",
            "messageId": "m1",
            "correlationId": "c1",
            "replyTo": "answers",
            "type": "reading",
            "appId": "node",
            "deliveryMode": 2,
        },
        "all": True,
        "ordered": True,
        "redelivered": True,
        "large": True,
        "empty": False,
        "answer": "re: ping",
        "cancelled": True,
        "mistake": 404,
        "deleted": 0,
    }
