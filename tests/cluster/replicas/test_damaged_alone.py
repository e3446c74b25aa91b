"""A gateway alone, killed, whose log is damaged meanwhile: it serves, and says exactly what is lost."""

import base64
import json

import httpx
import pika
from paho.mqtt.packettypes import PacketTypes

from store.disk.files import OsFiles
from store.integrity.floor import read_floor
from tests.support.mqtt.paho_client import PahoClient, fresh, properties
from tests.support.process.waiting import wait_until

COUNT = 20
HURT = 7
RETRIES = """
[[queues.policies]]
name = "retries"
pattern = "^retry$"
definition = { "message-ttl" = 1, "dead-letter-exchange" = "", "dead-letter-routing-key" = "dead" }
"""


def session(gateway, name):
    """Returns a connected client with a durable session."""
    client = PahoClient(gateway.port("mqtt"), client_id=name)
    return client.connect(clean_start=False, properties=properties(PacketTypes.CONNECT, SessionExpiryInterval=3600))


def test_a_gateway_alone_says_what_damage_has_taken(new_gateway):
    gateway = new_gateway().start()
    name = fresh("away")[-23:]
    away = session(gateway, name)
    assert away.subscribe([("plant/#", 1), ("$SYS/session/lost", 0)]) == [1, 0]
    away.close()
    with httpx.Client(base_url=gateway.url, timeout=90) as http:
        for n in range(COUNT):
            assert http.post("/topics/plant/site/dev1", content=b"body %04d" % n).status_code == 201
        end = json.loads(gateway.admin("/status"))["log"]["end"]
        gateway.kill()
    assert read_floor(OsFiles(), gateway.data_dir / "floor") == end
    path = max((gateway.data_dir / "log").iterdir())
    assert path.stat().st_size == end
    gateway.start().stop()  # now the views know of all of it
    data = bytearray(path.read_bytes())
    data[data.index(b"body %04d" % HURT)] ^= 1
    path.write_bytes(data)

    gateway.start()
    status = wait_until(lambda: (found := json.loads(gateway.admin("/status")))["damages"] and found)
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
        member = http.post("/groups/g/members", json={"topic": "plant", "start": "earliest"}).json()["member"]
        path, asked = f"/groups/g/members/{member}", {}
        seen = []
        while (answer := http.get(f"{path}/messages", params={"max": 3, **asked})).status_code == 200:
            seen += [one["offset"] for one in answer.json()["messages"]]
            asked = {"after": answer.json()["after"]}
        assert (answer.status_code, seen) == (500, list(range(HURT)))
        assert f"offsets {HURT} to {HURT} of queue {lost['queue']}" in answer.json()["detail"]
        assert f"go on at offset {HURT + 1}" in answer.json()["detail"]
        reset = {"to": "offset", "offsets": {str(lost["queue"]): HURT + 1}}
        assert http.post("/groups/g/reset", json=reset).status_code in {200, 204}
        behind = http.get(f"{path}/messages", params={"max": 100}).json()["messages"]
        assert [one["offset"] for one in behind] == list(range(HURT + 1, COUNT))
        assert http.post("/topics/plant/site/dev1", content=b"later").status_code == 201
        begin = {"last-event-id": "0.0"}
        with http.stream("GET", "/subscribe", params={"filter": "plant/#"}, headers=begin) as stream:
            kinds = [line for line in until_later(stream.iter_lines()) if line.startswith("event: ")]
        assert kinds == ["event: message"] * HURT + ["event: lost"] + ["event: message"] * (COUNT - HURT)
    back = session(gateway, name)
    told = [back.get() for _ in range(COUNT + 1)]
    back.close()
    bodies = [one.payload for one in told if one.topic == "plant/site/dev1"]
    assert bodies == [b"body %04d" % n for n in range(COUNT) if n != HURT] + [b"later"]
    (lost,) = [json.loads(one.payload) for one in told if one.topic == "$SYS/session/lost"]
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


def until_later(lines):
    """Yields the lines of an event stream, up to the message that was published last."""
    for line in lines:
        yield line
        if line.startswith("data: ") and base64.b64encode(b"later").decode() in line:
            return
