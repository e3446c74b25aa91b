"""`headgate serve` as an operator meets it: starting, stopping, and saying what is wrong."""

import signal
import socket
import ssl
import subprocess
import sys
import threading

import httpx
import paho.mqtt.client as mqtt
import pytest

from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow


def publisher(gateway, **options):
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, **options)
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    client.connect("127.0.0.1", gateway.port("mqtt"))
    client.loop_start()
    assert connected.wait(10)
    return client


def test_it_says_what_listens_and_that_it_is_ready(new_gateway):
    gateway = new_gateway().start()
    assert "ok" in gateway.admin("/healthz").lower()
    status = httpx.get(f"http://127.0.0.1:{gateway.port('admin')}/status").json()
    assert status["ready"]
    listening = {entry["name"]: entry["port"] for entry in status["listeners"]}
    names = ("mqtt", "mqtt-ws", "coap", "coap-tcp", "amqp", "http", "rpc", "admin")
    assert listening == {name: gateway.port(name) for name in names}
    assert "headgate_connections" in gateway.admin("/metrics")
    assert gateway.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_everything_acknowledged_is_there_afterwards(new_gateway, number):
    gateway = new_gateway().start()
    client = publisher(gateway)
    acknowledged = []
    client.on_publish = lambda _client, _data, mid, *_: acknowledged.append(mid)
    said = threading.Event()
    client.on_disconnect = lambda *_: said.set()
    for n in range(2000):
        client.publish("drain/x", str(n), qos=1)
    wait_until(lambda: acknowledged)
    assert gateway.stop(number) == 0
    assert said.wait(10)
    client.loop_stop()
    gateway.start()
    topics = {
        topic["name"]: topic["records"]
        for topic in httpx.get(f"http://127.0.0.1:{gateway.port('admin')}/status").json()["topics"]
    }
    assert topics["drain"] >= len(acknowledged)


def test_a_second_signal_does_not_wait(new_gateway):
    gateway = new_gateway(environ={"HEADGATE__GATEWAY__SHUTDOWN_GRACE_S": "60"}).start()
    # A peer that does not read its answer keeps a polite shutdown waiting.
    with socket.create_connection(("127.0.0.1", gateway.port("http"))) as slow:
        slow.sendall(b"POST /topics/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\nhalf")
        gateway.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "stopping" in gateway.log.read_text())
        assert gateway.stop(signal.SIGTERM) in {-signal.SIGTERM, 0}


def test_a_data_directory_has_one_owner_and_a_port_too(new_gateway, tmp_path):
    gateway = new_gateway().start()
    command = [sys.executable, "-m", "gateway.cli", "serve", "--port-offset", str(gateway.offset)]
    locked = subprocess.run(
        [*command, "--data-dir", str(gateway.data_dir)], capture_output=True, text=True, timeout=90, check=False
    )
    assert locked.returncode != 0
    assert "Traceback" not in locked.stderr
    assert str(gateway.data_dir) in locked.stderr
    taken = subprocess.run(
        [*command, "--data-dir", str(tmp_path / "other")], capture_output=True, text=True, timeout=90, check=False
    )
    assert taken.returncode != 0
    assert "Traceback" not in taken.stderr
    assert "cannot listen on" in taken.stderr
    assert gateway.answers("/readyz")


def test_tls_offers_the_protocols_by_alpn(new_gateway, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    gateway = new_gateway(environ={"HEADGATE__TLS__CERT_FILE": str(cert), "HEADGATE__TLS__KEY_FILE": str(key)}).start()
    trust = ssl.create_default_context(cafile=str(cert))
    with httpx.Client(http2=True, verify=trust) as client:
        answer = client.post(f"https://127.0.0.1:{gateway.port('https')}/topics/tls/a", content=b"x")
    assert (answer.status_code, answer.http_version) == (201, "HTTP/2")
    with httpx.Client(verify=ssl.create_default_context(cafile=str(cert))) as client:
        answer = client.get(f"https://127.0.0.1:{gateway.port('https')}/topics/tls/a")
    assert (answer.content, answer.http_version) == (b"x", "HTTP/1.1")
    secure = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    secure.tls_set(ca_certs=str(cert))
    got = threading.Event()
    secure.on_connect = lambda *_: secure.subscribe("tls/#", 1)
    secure.on_subscribe = lambda *_: secure.publish("tls/b", "y", qos=1)
    secure.on_message = lambda *_: got.set()
    secure.connect("127.0.0.1", gateway.port("mqtts"))
    secure.loop_start()
    assert got.wait(10)
    secure.disconnect()
    secure.loop_stop()
