"""The broker suites of aio-pika and aiormq, run from their source distributions: `make interop`.

They are fetched from where packages come from, so they run only where HEADGATE_AMQP_SUITES asks for them. pika's source
distribution carries no tests: test_pika_adapters.py has its cases.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.amqp.client_suites import installed_beside, run, unpacked
from tests.support.process.gateways import GatewayProcess

# The plug-ins of pytest and the helpers that the suites import, as their projects name them.
PACKAGES = ("aiomisc-pytest==2.0.0", "shortuuid==1.0.13", "timeout-decorator==0.5.0")
TIMEOUT_S = 3_600
BODY_BYTES_MAX = 128 << 20  # as the suites' own broker is configured

# Cases that the gateway does not pass, and why.
DIFFERENT = {
    # Connections are cut by the byte. It waits for ever for a delivery where that comes between a confirm and its
    # delivery: RabbitMQ sends the delivery first, the gateway the confirm (docs/amqp.md).
    "tests/test_connection.py::test_connection_close_stairway": "awaits its own message, which a cut has kept back",
    "tests/test_connection.py::test_bad_channel": "opens channel 65535, and the gateway tunes 2,047 (docs/amqp.md)",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * TIMEOUT_S + 600),
    pytest.mark.skipif(not os.environ.get("HEADGATE_AMQP_SUITES"), reason="needs packages: make interop"),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Yields a gateway with the certificates of aiormq's suite, which asks clients for one and does without."""
    certificates = unpacked("aiormq") / "tests" / "certs"
    gateway = GatewayProcess(
        tmp_path_factory.mktemp("suites") / "data",
        environ={
            "HEADGATE__TLS__CERT_FILE": str(certificates / "server.pem"),
            "HEADGATE__TLS__KEY_FILE": str(certificates / "server.key"),
            "HEADGATE__TLS__CLIENT_CERTIFICATES": "optional",
            "HEADGATE__TLS__CLIENT_CA_FILE": str(certificates / "ca.pem"),
            "HEADGATE__TLS__CLIENT_USER_AGREES": "false",
            "HEADGATE__GATEWAY__MAX_MESSAGE_BYTES": str(BODY_BYTES_MAX),
            "HEADGATE__ADAPTERS__AMQP__MESSAGE_BYTES_MAX": str(BODY_BYTES_MAX),
        },
    )
    yield gateway.start()
    gateway.close()


@pytest.mark.parametrize(("client", "least"), [("aio-pika", 600), ("aiormq", 200)])
def test_the_suite_of_a_client_passes(broker: Any, tmp_path: Path, client: str, least: int) -> None:
    suite, beside = unpacked(client), installed_beside("client-suites", *PACKAGES)
    options: dict[str, Any] = {
        "ports": (broker.port("amqp"), broker.port("amqps")),
        "own": GatewayProcess(tmp_path / "own"),
        "timeout_s": TIMEOUT_S,
    }
    result = run(suite, beside, tmp_path / "report.xml", **options)
    failed = {name: why for name, why in result.failed.items() if name.partition("[")[0] not in DIFFERENT}
    if failed:  # some wait for a fifth of a second and no longer: what fails twice does not fail by chance
        failed = run(suite, beside, tmp_path / "again.xml", *failed, **options).failed
    assert failed == {}
    assert len(result.passed) >= least
