"""Californium, the CoAP library of Java: methods, conditions, blocks both ways, Observe, FETCH, ping: `make interop`.

It comes from Maven's repository, so this test runs only where HEADGATE_JAVA=1 asks for it and java and mvn are there.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.mqtt.paho_client import fresh
from tests.support.process.packages import JAVA, class_path, needs_java

ARTIFACTS = (
    "org.eclipse.californium:californium-core:3.14.0",
    "org.eclipse.californium:element-connector:3.14.0",
    "org.slf4j:slf4j-api:1.7.36",
    "org.slf4j:slf4j-nop:1.7.36",
)
PROGRAM = Path(__file__).with_name("CaliforniumClient.java")
TIMEOUT_S = 200

pytestmark = needs_java()


@pytest.fixture(scope="session")
def jars() -> str:
    """Returns the class path of Californium, which is kept with the virtual environment."""
    return class_path("californium", *ARTIFACTS)


def test_californium(jars: str, shared_gateway: Any) -> None:
    arguments = [str(shared_gateway.port("coap")), fresh("californium")]
    command = [str(JAVA), "-cp", jars, str(PROGRAM), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert dict(line.split("=", 1) for line in done.stdout.splitlines()) == {
        "missing": "4.04",
        "created": "2.01",
        "changed": "2.04",
        "value": "2.05 2",
        "same": "2.03",
        "unacceptable": "4.06",
        "none_match": "4.12",
        "match": "2.04",
        "large": "2.01",
        "read": "true",
        "pinged": "true",
        "notified": "2 3",
        "fetched": "2.05 true",
        "deleted": "2.02",
        "gone": "4.04",
    }
