"""amqplib, the client of Node, with confirms, consumers, returns and direct reply-to: `make interop`.

It comes from npm, so these tests run only where HEADGATE_AMQPLIB=1 asks for them and node and npm are there.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.mqtt.paho_client import fresh
from tests.support.process.packages import NODE, beside_package, needs_node

VERSION = "2.3.1"
SCRIPT = Path(__file__).with_name("amqplib.mjs")
TIMEOUT_S = 100

pytestmark = needs_node("HEADGATE_AMQPLIB")


@pytest.fixture(scope="session")
def script() -> Path:
    """Returns the script beside amqplib, which is kept with the virtual environment."""
    return beside_package(SCRIPT, "amqplib", VERSION)


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
