"""`headgate serve --workers 2` as clients and an operator meet it."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import paho.mqtt.client as mqtt
import pika
import pytest

from tests.support.amqp.exclusive_queues import LOCKED, codes, connect, take
from tests.support.cluster.senders import MqttSender, stored
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

WORKERS = 2
WAIT_S = 60


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    from tests.support.process.gateways import GatewayProcess

    gateway = GatewayProcess(tmp_path_factory.mktemp("workers") / "data", "--workers", str(WORKERS)).start()
    yield gateway
    gateway.close()


def status(gateway):
    return httpx.get(f"http://127.0.0.1:{gateway.port('admin')}/status").json()


def connections(gateway):
    return [worker["connections"] for worker in status(gateway)["workers"]]


class ReconnectingClient:
    """One that collects what it is sent."""

    def __init__(self, gateway, name, *, clean=True):
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, name, clean_session=clean)
        self.client.reconnect_delay_set(1, 1)
        self.got = []
        self.connects = 0
        self.present = None
        self.drops = 0
        self.subscribed = threading.Event()
        self.client.on_connect = self._connected
        self.client.on_disconnect = self._dropped
        self.client.on_subscribe = lambda *_: self.subscribed.set()
        self.client.on_message = lambda _client, _data, message: self.got.append(message.payload.decode())
        self.client.connect("127.0.0.1", gateway.port("mqtt"))
        self.client.loop_start()
        wait_until(lambda: self.connects, f"{name} is not let in")

    def _connected(self, _client, _data, flags, *_):
        self.present = flags.session_present
        self.connects += 1

    def _dropped(self, *_):
        self.drops += 1

    def subscribe(self, pattern):
        self.client.subscribe(pattern, 1)
        assert self.subscribed.wait(WAIT_S)
        return self

    def publish(self, topic, body):
        self.client.publish(topic, body, qos=1).wait_for_publish(WAIT_S)

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()


def connect_until_all_serve(gateway, clients, make):
    """Connects clients until every worker has some of them; chance spreads them."""

    def everywhere():
        clients.append(make(len(clients)))
        wait_until(lambda: status(gateway)["connections"].get("mqtt", 0) >= len(clients), "connections are not counted")
        return all(worker["connections"] for worker in status(gateway)["workers"])

    wait_until(everywhere, "a worker has no connection")


def test_all_workers_serve_what_any_of_them_takes(gateway):
    said = status(gateway)
    assert [worker["ready"] for worker in said["workers"]] == [True] * WORKERS
    names = ("mqtt", "mqtt-ws", "coap", "coap-tcp", "amqp", "http", "rpc", "admin")
    assert {one["name"]: one["port"] for one in said["listeners"]} == {name: gateway.port(name) for name in names}
    clients = []
    connect_until_all_serve(gateway, clients, lambda n: ReconnectingClient(gateway, f"all-{n}").subscribe("all/#"))
    for n, client in enumerate(clients):
        client.publish("all/x", str(n))
    expected = sorted(str(n) for n in range(len(clients)))
    for client in clients:
        wait_until(lambda client=client: len(client.got) >= len(expected), f"{len(client.got)} of {len(expected)}")
        assert sorted(client.got) == expected
    wait_until(lambda: status(gateway)["stored"].get("mqtt", 0) >= len(clients), "stored messages are not counted")
    metrics = gateway.admin("/metrics")
    assert f'headgate_messages_in_total{{protocol="mqtt",status="stored",topic="all"}} {len(clients)}.0' in metrics
    assert f'headgate_connections{{protocol="mqtt"}} {len(clients)}.0' in metrics
    assert f"headgate_workers_serving {WORKERS}.0" in metrics
    for client in clients:
        client.close()


def test_timers_fire_and_wills_are_counted_once_for_all_workers(gateway):
    with httpx.Client(base_url=f"http://127.0.0.1:{gateway.port('http')}") as http:
        assert http.post("/topics/later/x", params={"delay": "1"}, content=b"x").status_code == 201
        wait_until(lambda: http.get("/topics/later/x").status_code == 200, "a delayed message does not come")
    metrics = httpx.get(f"http://127.0.0.1:{gateway.port('admin')}/metrics").text
    assert metrics.count("\nheadgate_wills_undecodable ") == 1


def test_a_client_id_is_connected_once_whichever_worker_it_is_at(gateway):
    holders = [ReconnectingClient(gateway, "same", clean=False)]
    for _ in range(5):
        before = holders[-1]
        before.client.reconnect_delay_set(60, 60)
        holders.append(ReconnectingClient(gateway, "same", clean=False))
        wait_until(lambda before=before: before.drops, "the connection before is still there")
        assert holders[-1].present
    for holder in holders:
        holder.close()


def test_a_worker_that_is_killed_takes_nothing_acknowledged_with_it(gateway):
    clients = []
    connect_until_all_serve(
        gateway, clients, lambda n: ReconnectingClient(gateway, f"kill-{n}", clean=False).subscribe("kept/#")
    )
    senders = [MqttSender(gateway, f"workers-{n}", 0) for n in range(4)]
    for sender in senders:
        sender.start()
    wait_until(lambda: all(len(sender.acked) > 200 for sender in senders), "nothing is acknowledged")
    victim = status(gateway)["workers"][0]
    os.kill(victim["pid"], signal.SIGKILL)
    lost = wait_until(lambda: [one for one in clients if one.drops], "nobody has lost a connection")
    began_s = time.monotonic()
    wait_until(lambda: all(one.connects > one.drops for one in clients), "a client is not let in again")
    assert time.monotonic() - began_s < 8
    assert all(one.present for one in lost)
    clients[0].publish("kept/x", "after")
    for client in clients:
        wait_until(lambda client=client: "after" in client.got, "a session does not go on")
    again = wait_until(
        lambda: (one := status(gateway)["workers"][0])["ready"] and one["pid"] != victim["pid"] and one,
        "the worker is not started again",
    )
    assert again["restarts"] == 1
    for sender in senders:
        sender.stopping = True
    for sender in senders:
        sender.join(WAIT_S)
    found = stored(gateway)
    for sender in senders:
        numbers = found[sender.address]
        assert not set(sender.acked) - set(numbers), "acknowledged, and not there"
    for client in clients:
        client.close()


def test_an_exclusive_queue_is_one_connections_at_all_workers(gateway):
    """The queue ends with its connection, and with the worker that the connection is at."""
    wait_until(lambda: not any(connections(gateway)), "connections of before are still there")
    opened = []
    at = [[], []]
    while sorted(map(len, at)) < [1, 2]:  # as it comes by chance
        before = connections(gateway)
        opened.append(connect(gateway.port("amqp")))
        wait_until(lambda before=before: sum(connections(gateway)) == sum(before) + 1, "a connection is not counted")
        where = next(n for n, count in enumerate(connections(gateway)) if count > before[n])
        at[where].append(opened[-1])
    here = max(range(WORKERS), key=lambda n: len(at[n]))
    (owner, beside, *_), (elsewhere, *_) = at[here], at[1 - here]
    channel = owner.channel()
    channel.queue_declare("own", exclusive=True)
    for other in (beside, elsewhere):
        assert set(codes(other, "own").values()) == {LOCKED}
    channel.basic_publish("", "own", b"gone with it")
    owner.close()
    assert take(beside, "own") == 0
    assert set(codes(elsewhere, "own").values()) == {LOCKED}
    killed = status(gateway)["workers"][here]
    os.kill(killed["pid"], signal.SIGKILL)
    assert take(elsewhere, "own") == 0
    wait_until(
        lambda: (one := status(gateway)["workers"][here])["ready"] and one["pid"] != killed["pid"], "no worker again"
    )
    for one in opened:
        if one.is_open:
            with contextlib.suppress(pika.exceptions.AMQPError):
                one.close()


def test_the_data_directory_is_one_processes_and_its_workers_in_turn(gateway):
    client = ReconnectingClient(gateway, "turns", clean=False).subscribe("turns/#")
    client.close()
    publisher = ReconnectingClient(gateway, "turns-publisher")
    publisher.publish("turns/a", "with workers")
    assert gateway.stop() == 0
    publisher.client.loop_stop()
    assert not (gateway.data_dir / "run").exists()
    workers, gateway.arguments = gateway.arguments, ()
    gateway.start()
    assert {"all", "kill", "kept", "turns"} <= {topic["name"] for topic in status(gateway)["topics"]}
    client = ReconnectingClient(gateway, "turns", clean=False)
    wait_until(lambda: client.got == ["with workers"], client.got)
    client.publish("turns/a", "alone")
    wait_until(lambda: client.got[1:] == ["alone"], client.got)
    client.close()
    publisher = ReconnectingClient(gateway, "turns-publisher")
    publisher.publish("turns/b", "for later")
    publisher.close()
    assert gateway.stop() == 0
    gateway.arguments = workers
    gateway.start()
    client = ReconnectingClient(gateway, "turns", clean=False)
    wait_until(lambda: client.got, "nothing of before")
    client.publish("turns/a", "again")
    wait_until(lambda: "again" in client.got, client.got)
    assert client.got == ["for later", "again"]
    client.close()


def test_ports_and_directory_are_not_shared_with_another_gateway(gateway, tmp_path):
    command = [sys.executable, "-m", "gateway.cli", "serve", "--workers", "2"]
    here = [*command, "--port-offset", str(gateway.offset), "--data-dir", str(tmp_path / "other")]
    for arguments in (here, [*command, "--port-offset", "47000", "--data-dir", str(gateway.data_dir)]):
        taken = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
        assert taken.returncode == 1
        assert "Traceback" not in taken.stderr
        assert "cannot listen on" in taken.stderr or str(gateway.data_dir) in taken.stderr
    assert gateway.answers("/readyz")


def test_workers_end_with_the_process_that_has_started_them(gateway):
    pids = [worker["pid"] for worker in status(gateway)["workers"]]
    gateway.kill()
    for pid in pids:
        wait_until(lambda pid=pid: not _lives(pid), f"worker {pid} is still there")
    gateway.start()


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
