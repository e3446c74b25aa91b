"""RabbitMQ's client for Java: confirms, consumers, returns, transactions, recovery of what it declared: `make interop`.

It comes from Maven's repository, so this test runs only where HEADGATE_JAVA=1 asks for it and java and mvn are there.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.process.packages import JAVA, class_path, needs_java

CLIENT = "com.rabbitmq:amqp-client:5.26.0"
LOGGING = "org.slf4j:slf4j-api:1.7.36"  # which it needs
PROGRAM = Path(__file__).with_name("amqp") / "Peer.java"
TIMEOUT_S = 200

pytestmark = needs_java()


@pytest.fixture(scope="session")
def jars() -> str:
    """Returns the class path of the client, which is kept with the virtual environment."""
    return class_path("amqp-client", CLIENT, LOGGING)


def test_the_java_client_and_its_recovery(jars: str, new_gateway: Any) -> None:
    gateway = new_gateway().start()
    command = [str(JAVA), "-cp", jars, str(PROGRAM), str(gateway.port("amqp"))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as peer:
        try:
            assert peer.stdout is not None
            ready = peer.stdout.readline()
            if ready == "ready\n":
                gateway.kill()
                gateway.start()
            told, errors = peer.communicate("\n", timeout=TIMEOUT_S)
        finally:
            peer.kill()
    assert ready == "ready\n", errors
    assert peer.returncode == 0, errors
    assert json.loads(told) == {
        "confirmed": True,
        "waiting": 200,
        "all": True,
        "left": 0,
        "returned": 312,
        "typed": True,
        "committed": True,
        "settled": 0,
        "mistake": 404,
        "alive": True,
        "recovered": True,
        "heard": True,
    }
