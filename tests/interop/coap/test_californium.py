"""Californium, the CoAP library of Java: methods, conditions, blocks both ways, Observe, FETCH, ping: `make interop`.

It comes from Maven's repository, so this test runs only where HEADGATE_JAVA=1 asks for it and java and mvn are there.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.mqtt.paho_client import fresh

ARTIFACTS = (
    "org.eclipse.californium:californium-core:3.14.0",
    "org.eclipse.californium:element-connector:3.14.0",
    "org.slf4j:slf4j-api:1.7.36",
    "org.slf4j:slf4j-nop:1.7.36",
)
PROGRAM = Path(__file__).with_name("CaliforniumClient.java")
JAVA, MAVEN = shutil.which("java"), shutil.which("mvn")
TIMEOUT_S = 200

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(JAVA is None or MAVEN is None, reason="java and mvn are not installed"),
    pytest.mark.skipif(not os.environ.get("HEADGATE_JAVA"), reason="needs Maven's repository: make interop"),
]


@pytest.fixture(scope="session")
def jars() -> str:
    """The class path of Californium, which is kept with the virtual environment."""
    home = Path(sys.prefix) / "californium"
    for artifact in ARTIFACTS:
        _, name, version = artifact.split(":")
        if not (home / f"{name}-{version}.jar").is_file():
            command = [str(MAVEN), "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={home}"]
            subprocess.run(command, check=True, timeout=300)
    return f"{home}/*"


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
