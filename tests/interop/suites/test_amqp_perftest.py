"""RabbitMQ's PerfTest against the gateway: everything it publishes is confirmed and consumed: `make interop`.

It comes from Maven's repository, so this test runs only where HEADGATE_JAVA=1 asks for it and java and mvn are there.
Rates are not looked at: figures are those of `make bench`.
"""

import re
import subprocess
from typing import Any

import pytest

from tests.support.amqp.pika_queues import connect, count, fresh
from tests.support.process.packages import JAVA, class_path_with_dependencies, needs_java

PERF_TEST = "com.rabbitmq:perf-test:2.22.1"
TIMEOUT_S = 400
MESSAGES = 1_000  # of each publisher

pytestmark = needs_java()


@pytest.fixture(scope="module")
def jars() -> str:
    """Returns the class path of PerfTest, which is kept with the virtual environment."""
    return class_path_with_dependencies(PERF_TEST)


@pytest.mark.parametrize(
    ("options", "publishers"),
    [
        (("--confirm", "100", "--qos", "200", "--multi-ack-every", "10"), 1),
        (("--confirm", "20", "--qos", "50", "--queue-args", "x-queue-type=quorum"), 2),
        # One consumer, as PerfTest loses what comes to a consumer that has had its share and acknowledges by itself.
        (("--confirm", "50", "--type", "topic", "--routing-key", "a.b", "--autoack"), 2),
        (("--ptxsize", "50", "--ctxsize", "50"), 1),
    ],
)
def test_what_is_published_is_confirmed_and_consumed(
    jars: str, shared_gateway: Any, options: tuple[str, ...], publishers: int
) -> None:
    queue, port = fresh("perf"), shared_gateway.port("amqp")
    command = [str(JAVA), "-cp", jars, "com.rabbitmq.perf.PerfTest", "--uri", f"amqp://guest:guest@127.0.0.1:{port}"]
    command += ["--queue", queue, "--auto-delete", "false", "--flag", "persistent", "--exchange", fresh("perf")]
    command += ["--producers", str(publishers), "--size", "200", "--time", "240"]
    command += ["--pmessages", str(MESSAGES), "--cmessages", str(MESSAGES * publishers), *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "exception" not in said.lower(), said
    assert re.search(r"receiving rate avg: \d+", said), said
    with connect(shared_gateway) as connection:
        assert count(connection.channel(), queue) == 0
