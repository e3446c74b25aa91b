"""A gateway alone, killed, whose log is damaged meanwhile: it serves, and says exactly what is lost."""

import json

import httpx
import pika

from store.disk.files import OsFiles
from store.integrity.floor import read_floor
from tests.support.http.lost_readers import HURT, body, catch_up, fill, read_around, session
from tests.support.mqtt.paho_client import fresh
from tests.support.process.waiting import wait_until

RETRIES = """
[[queues.policies]]
name = "retries"
pattern = "^retry$"
definition = { "message-ttl" = 1, "dead-letter-exchange" = "", "dead-letter-routing-key" = "dead" }
"""


def test_a_gateway_alone_says_what_damage_has_taken(new_gateway):
    gateway = new_gateway().start()
    name = fresh("away")[-23:]
    away = session(gateway.port("mqtt"), name)
    assert away.subscribe([("plant/#", 1), ("$SYS/session/lost", 0)]) == [1, 0]
    away.close()
    with httpx.Client(base_url=gateway.url, timeout=90) as http:
        fill(http)
        end = json.loads(gateway.admin("/status"))["log"]["end"]
        gateway.kill()
    assert read_floor(OsFiles(), gateway.data_dir / "floor") == end
    path = max((gateway.data_dir / "log").iterdir())
    assert path.stat().st_size == end
    gateway.start().stop()  # now the views know of all of it
    data = bytearray(path.read_bytes())
    data[data.index(body(HURT))] ^= 1
    path.write_bytes(data)

    gateway.start()
    status = wait_until(lambda: (found := json.loads(gateway.admin("/status")))["damages"] and found["lost"] and found)
    assert status["ready"]
    (lost,) = status["lost"]
    assert lost["topic"] == "plant"
    assert lost["next"] == lost["first"] + 1
    (damage,) = status["damages"]
    assert gateway.admin("/readyz") == (
        f"degraded\nthe log is damaged: {damage['end'] - damage['start']} bytes in 1 ranges are lost; "
        f"plant, queue {lost['queue']}, offsets {lost['first']} to {lost['first']}\n"
    )
    metrics = gateway.admin("/metrics")
    assert "headgate_log_damages 1.0" in metrics
    assert "headgate_log_damages_repaired_total 0.0" in metrics
    with httpx.Client(base_url=gateway.url, timeout=90) as http:
        read_around(http, lost["queue"])
    (lost,) = [json.loads(one) for one in catch_up(gateway.port("mqtt"), name)]
    assert lost == {"from": f"{damage['start']:x}.0", "to": f"{damage['end']:x}.0"}


def test_messages_behind_a_lost_one_are_retried(new_gateway):
    """A queue that retries by its time to live stood still for good."""
    gateway = new_gateway().start()
    where = pika.ConnectionParameters("127.0.0.1", gateway.port("amqp"))
    with pika.BlockingConnection(where) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for name in ("retry", "dead"):
            channel.queue_declare(name, durable=True)
        for n in range(3):
            channel.basic_publish("", "retry", b"retried %04d" % n)
    gateway.kill()
    path = max((gateway.data_dir / "log").iterdir())
    gateway.start().stop()  # now the views know of all of it
    data = bytearray(path.read_bytes())
    data[data.index(b"retried 0000")] ^= 1
    path.write_bytes(data)
    file = gateway.data_dir.with_suffix(".toml")
    file.write_text(RETRIES)
    gateway.arguments = ("--config", str(file))  # the policy: without it the messages stay
    gateway.start()
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", gateway.port("amqp"))) as connection:
        channel = connection.channel()
        found = []
        for _, _, body in channel.consume("dead", auto_ack=True, inactivity_timeout=100):
            found.append(body)
            if len(found) == 2:
                break
        channel.cancel()
        assert found == [b"retried 0001", b"retried 0002"]
        assert channel.queue_declare("retry", durable=True, passive=True).method.message_count == 0
    assert "headgate_messages_lost_total 1.0" in gateway.admin("/metrics")
