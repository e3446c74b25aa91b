"""MQTT.js, the client that browsers and Node use, over TCP, TLS, WebSocket and secure WebSocket: `make interop`.

It comes from npm, so these tests run only where HEADGATE_MQTTJS=1 asks for them and node and npm are there.
"""

import json
import subprocess
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509 import DNSName, IPAddress

from tests.support.mqtt.paho_client import fresh
from tests.support.process.certificates import Authority
from tests.support.process.packages import NODE, beside_package, needs_node

VERSION = "5.16.0"
SCRIPT = Path(__file__).with_name("mqttjs.mjs")
SCRAM = Path(__file__).with_name("mqttjs_scram.mjs")
TIMEOUT_S = 100

pytestmark = needs_node("HEADGATE_MQTTJS")


@pytest.fixture(scope="session")
def mqttjs() -> Path:
    """Returns the script beside MQTT.js, which is kept with the virtual environment."""
    beside_package(SCRAM, "mqtt", VERSION)
    return beside_package(SCRIPT, "mqtt", VERSION)


def check(script: Path, url: str, version: int, ca_file: str = "") -> None:
    """Runs the script, and checks what it saw."""
    command = [str(NODE), str(script), url, str(version), fresh("mqttjs"), *([ca_file] if ca_file else [])]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    if version == 5:
        assert seen.pop("properties") == ["text/plain", "r", "c", {"a": ["1", "2"], "b": "3"}]
    assert seen == {
        "granted": [2],
        "qos": [True, True, True],
        "many": True,
        "large": True,
        "retained": ["kept", True],
        "will": "gone",
        "session": [version != 3, "missed"],
    }


@pytest.mark.parametrize("version", [3, 4, 5], ids=["3.1", "3.1.1", "5.0"])
@pytest.mark.parametrize("transport", ["mqtt", "ws"])
def test_mqttjs(mqttjs: Path, shared_gateway: Any, transport: str, version: int) -> None:
    port = shared_gateway.port("mqtt" if transport == "mqtt" else "mqtt-ws")
    check(mqttjs, f"{transport}://127.0.0.1:{port}" + ("/mqtt" if transport == "ws" else ""), version)


def test_mqttjs_over_tls(mqttjs: Path, new_gateway: Callable[..., Any], tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server = authority.issue("localhost", DNSName("localhost"), IPAddress(ip_address("127.0.0.1")), server=True)
    files = {"HEADGATE__TLS__CERT_FILE": str(server.cert_file), "HEADGATE__TLS__KEY_FILE": str(server.key_file)}
    gateway = new_gateway(environ=files).start()
    check(mqttjs, f"mqtts://localhost:{gateway.port('mqtts')}", 5, str(authority.file))
    check(mqttjs, f"wss://localhost:{gateway.port('mqtt-wss')}/mqtt", 5, str(authority.file))


def test_mqttjs_proves_its_password(mqttjs: Path, new_gateway: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "password").write_text("pencil\n")
    file = {"HEADGATE__AUTH__USERS__ALICE__PASSWORD_FILE": str(tmp_path / "password")}
    gateway = new_gateway(environ=file).start()

    def told(*credentials: str) -> Any:
        command = [
            str(NODE),
            str(mqttjs.with_name(SCRAM.name)),
            f"mqtt://127.0.0.1:{gateway.port('mqtt')}",
            *credentials,
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert told("alice", "pencil") == {"code": 0, "proven": True}
    assert told("alice", "guess") == {"code": 0x87, "proven": False}
    assert told("nobody", "pencil") == {"code": 0x87, "proven": False}
