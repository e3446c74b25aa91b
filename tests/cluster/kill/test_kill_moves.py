"""kill -9 of stores and proxies while a queue is moved between store groups, and clients publish and consume.

What is confirmed is consumed, and what was acknowledged does not come back where nothing was killed.
"""

import json
import os
import random
import threading
import time

import pika
import pytest

from gateway.process.local_cluster import ClusterPlan
from tests.support.cluster.local_clusters import all_groups, on_free_ports, started, until_ready
from tests.support.process.commands import headgate
from tests.support.process.ports import PORTS
from tests.support.process.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

QUEUE = "orders"
TIMEOUT_S = 240
PAUSE_S = 0.05
PREFETCH = 20
MOVES = 3 if os.environ.get("HEADGATE_NIGHTLY") else 1
AT_LEAST = 60  # messages confirmed, and consumed, between two moves


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    plan = ClusterPlan(tmp_path_factory.mktemp("cluster"), 1, 2, replicas=1, min_in_sync=1, proxies=2)
    with started(on_free_ports(plan), all_groups) as cluster:
        yield cluster


class Clients:
    """A publisher with confirms and a consumer that acknowledges, each at any proxy, again where one is gone."""

    def __init__(self, ports):
        self.ports, self.chance = ports, random.Random(1)
        self.stopping, self.publishing, self.next = False, True, 0
        self.confirmed, self.consumed, self.again = set(), set(), []
        self.calm = True  # no process was killed a moment ago
        self.threads = [threading.Thread(target=self._keep, args=(one,)) for one in (self._publish, self._consume)]
        for one in self.threads:
            one.start()

    def _keep(self, work):
        while not self.stopping:
            try:
                port = self.chance.choice(self.ports)
                with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
                    work(connection.channel())
            except (pika.exceptions.AMQPError, OSError):
                time.sleep(PAUSE_S)

    def _publish(self, channel):
        channel.confirm_delivery()
        while not self.stopping:
            if not self.publishing:
                channel.connection.sleep(PAUSE_S)
                continue
            number, self.next = self.next, self.next + 1
            channel.basic_publish("", QUEUE, b"%d" % number, pika.BasicProperties(delivery_mode=2))
            self.confirmed.add(number)

    def _consume(self, channel):
        channel.basic_qos(prefetch_count=PREFETCH)
        for method, _, body in channel.consume(QUEUE, inactivity_timeout=PAUSE_S):
            if method is not None:
                number = int(body)
                if number in self.consumed and self.calm:
                    self.again.append(number)
                channel.basic_ack(method.delivery_tag)
                channel.basic_qos(prefetch_count=PREFETCH)  # its answer: the acknowledgement was read
                self.consumed.add(number)
            if self.stopping:
                return

    def progress(self):
        confirmed, consumed = len(self.confirmed) + AT_LEAST, len(self.consumed) + AT_LEAST
        wait_until(lambda: len(self.confirmed) >= confirmed and len(self.consumed) >= consumed, timeout_s=TIMEOUT_S)

    def stop(self):
        self.stopping = True
        for one in self.threads:
            one.join(TIMEOUT_S)


def test_a_queue_is_moved_there_and_back_while_its_stores_and_proxies_are_killed(cluster):
    proxies = [node for node in cluster.nodes if node.role == "proxy"]
    ports = [node.port + PORTS["amqp"] - PORTS["mqtt"] for node in proxies]
    at = ("--admin-port", str(proxies[0].admin_port))
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", ports[0])) as connection:
        connection.channel().queue_declare(QUEUE, durable=True)

    def place():
        row = json.loads(headgate("amqp", "queues", "--json", *at))  # a line for each
        return row["group"], row.get("former_group")

    def killed(name):
        clients.calm = False
        cluster.stop(name, kill=True)
        cluster.start(name)
        until_ready(cluster, [node.name for node in cluster.nodes])
        clients.progress()  # until all that came back has come
        clients.calm = True

    here, _ = place()
    clients = Clients(ports)
    try:
        for victim in (f"store-{here}-1", "proxy-2", f"store-{1 - here}-1")[:MOVES]:
            clients.progress()
            here = 1 - here
            words = headgate("amqp", "move-queue", QUEUE, str(here), *at)
            assert f"is written to in store group {here}; what lies in store group {1 - here}" in words
            killed(victim)
            wait_until(lambda: place()[1] is None, timeout_s=TIMEOUT_S)  # the former group has forgotten it
        clients.publishing = False
        wait_until(lambda: clients.confirmed <= clients.consumed, timeout_s=TIMEOUT_S)
    finally:
        clients.stop()
    assert clients.again == []
