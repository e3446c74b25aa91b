"""kill -9 of the master while a body in parts goes into a replicated group: what is confirmed is whole afterwards."""

import random
import threading
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from gateway.process.local_cluster import ClusterPlan, LocalCluster
from tests.support.cluster.local_clusters import all_groups, on_free_ports, started
from tests.support.cluster.masters import masters
from tests.support.process.ports import PORTS
from tests.support.process.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

MiB = 1 << 20
SIZE = 24 * MiB
PARTS_BEFORE = 2 * MiB  # of the log, of a body that is under way when its master is killed
PROXY = "\n[gateway]\nmax_message_bytes = 134_217_728\n[adapters.amqp]\nmessage_bytes_max = 134_217_728\n"


@pytest.fixture
def cluster(tmp_path) -> Iterator[LocalCluster]:
    with started(on_free_ports(ClusterPlan(tmp_path, 1, 1, 3, 2, 1)), all_groups, proxies=PROXY) as cluster:
        yield cluster


def body_of(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


def connect(cluster: LocalCluster) -> pika.BlockingConnection:
    (proxy,) = [node for node in cluster.nodes if node.role == "proxy"]
    port = proxy.port - PORTS["mqtt"] + PORTS["amqp"]
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, socket_timeout=60, heartbeat=0))


class Publisher(threading.Thread):
    """Publishes bodies with confirms, each again until it is confirmed."""

    def __init__(self, cluster: LocalCluster, count: int) -> None:
        super().__init__()
        self.connection = connect(cluster)
        self.channel: Any = self.connection.channel()
        self.channel.queue_declare("bodies", durable=True)
        self.channel.confirm_delivery()
        self.count = count
        self.sending = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for number in range(1, self.count + 1):
                body, self.sending = body_of(number), number
                while not self._is_confirmed(number, body):
                    pass
        except pika.exceptions.AMQPError as error:
            self.error = error
        else:
            self.connection.close()

    def _is_confirmed(self, number: int, body: bytes) -> bool:
        try:
            self.channel.basic_publish("", "bodies", body, pika.BasicProperties(message_id=str(number)))
        except pika.exceptions.NackError:
            return False
        return True


def test_a_killed_master_loses_nothing_of_a_confirmed_body(cluster):
    (master,) = masters(cluster)
    publisher = Publisher(cluster, 3)
    publisher.start()
    wait_until(lambda: publisher.sending == 2)
    path = cluster.plan.directory / "data" / master / "log"
    before = size_of(path)
    wait_until(lambda: size_of(path) > before + PARTS_BEFORE)
    cluster.stop(master, kill=True)
    publisher.join(200)
    assert not publisher.is_alive()
    if publisher.error is not None:
        raise publisher.error
    assert masters(cluster) != [master]
    connection = connect(cluster)
    channel, found = connection.channel(), []
    while (got := channel.basic_get("bodies", auto_ack=True))[0] is not None:
        number = int(got[1].message_id)
        assert got[2] == body_of(number)
        found.append(number)
    connection.close()
    assert sorted(set(found)) == [1, 2, 3]


def size_of(path: Any) -> int:
    return sum(one.stat().st_size for one in path.iterdir())
