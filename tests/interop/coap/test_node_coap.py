"""node-coap, the CoAP client of Node: methods, blocks both ways, Observe, discovery: `make interop`.

It comes from npm, so this test runs only where HEADGATE_NODE_COAP=1 asks for it and node and npm are there.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.mqtt.paho_client import fresh
from tests.support.process.packages import NODE, beside_package, needs_node

VERSION = "1.5.0"
SCRIPT = Path(__file__).with_name("node_coap.mjs")
TIMEOUT_S = 100

pytestmark = needs_node("HEADGATE_NODE_COAP")


@pytest.fixture(scope="session")
def script() -> Path:
    """Returns the script beside node-coap, which is kept with the virtual environment."""
    return beside_package(SCRIPT, "coap", VERSION)


def test_node_coap(script: Path, shared_gateway: Any) -> None:
    command = [str(NODE), str(script), str(shared_gateway.port("coap")), fresh("node")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "missing": "4.04",
        "created": "2.01",
        "changed": "2.04",
        "value": ["2.05", "2"],
        "unacceptable": "4.06",
        "large": "2.01",
        "read": True,
        "notified": ["2", "3"],
        "deleted": "2.02",
        "gone": "4.04",
        "links": True,
    }
