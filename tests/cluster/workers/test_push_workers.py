"""A subscription of several processes: one of them delivers, and when that one is killed another goes on."""

import json
import os
import signal
import urllib.request

import httpx
import pytest

from tests.support.http.webhook_sink import WebhookSink
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

PATIENCE_S = 60
CONFIG = '[subscriptions]\nprivate_sinks = ["127.0.0.1"]\n[proxy]\nttl_s = 2.0\n'


def workers(gateway):
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.port('admin')}/status", timeout=60) as answer:
        return json.loads(answer.read())["workers"]


def test_another_worker_goes_on_when_the_one_that_delivers_is_killed(new_gateway, tmp_path):
    file = tmp_path / "push.toml"
    file.write_text(CONFIG)
    gateway = new_gateway("--config", str(file), "--workers", "2").start()
    sink = WebhookSink()
    sent = set()

    def publish(count):
        with httpx.Client(base_url=gateway.url, timeout=PATIENCE_S, trust_env=False) as client:
            for _ in range(count):
                body = b"%d" % len(sent)
                try:
                    answer = client.post("/topics/push/x", content=body, headers={"ce-id": body.decode()})
                except httpx.TransportError:  # its worker was killed: not acknowledged
                    continue
                if answer.status_code == 201:
                    sent.add(body)

    try:
        wait_until(lambda: all(one["ready"] for one in workers(gateway)), "not all workers are ready")
        with httpx.Client(base_url=gateway.url, timeout=PATIENCE_S, trust_env=False) as client:
            settings = {"retrymin": 0.1, "retrymax": 0.5}
            body = {"sink": sink.url, "protocol": "HTTP", "protocolsettings": settings}
            body["config"] = {"addresses": ["push/#"]}
            made = client.post("/subscriptions", json=body).json()
        publish(20)
        sink.wait_until(lambda: {one.body for one in sink.taken} >= sent)
        for one in workers(gateway):  # whichever of them delivers
            os.kill(one["pid"], signal.SIGKILL)
            publish(20)
            sink.wait_until(lambda: {one.body for one in sink.taken} >= sent)
            wait_until(lambda: all(one["ready"] for one in workers(gateway)), "not all workers are back")
        publish(20)
        sink.wait_until(lambda: {one.body for one in sink.taken} >= sent)
        assert len(sent) > 20
        with httpx.Client(base_url=gateway.url, timeout=PATIENCE_S, trust_env=False) as client:
            wait_until(
                lambda: client.get(f"/subscriptions/{made['id']}").json()["status"]["delivered"] >= len(sent),
                "the status is not that of all",
            )
    finally:
        sink.close()
