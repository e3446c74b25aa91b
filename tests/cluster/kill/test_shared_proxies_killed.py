"""Members of one group at two proxies, one of which is killed: nothing is lost, and no session gets a message twice."""

import threading
import time
from collections import Counter

import pytest
from paho.mqtt.packettypes import PacketTypes
from test_proxies import running  # noqa: F401 - a fixture

from tests.support.cluster.local_clusters import until_ready
from tests.support.mqtt.paho_client import TIMEOUT_S, PahoClient, properties

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

COUNT = 2_000
FOREVER = properties(PacketTypes.CONNECT, SessionExpiryInterval=600)


def bodies(member):
    return [message.payload for message in list(member.messages.queue)]


def settled(members, expected):
    """Until everything expected has come, and nothing more comes."""
    deadline = time.monotonic() + 4 * TIMEOUT_S
    while time.monotonic() < deadline and not expected <= {body for member in members for body in bodies(member)}:
        time.sleep(0.05)
    before = -1
    while before != (before := sum(member.messages.qsize() for member in members)):
        time.sleep(0.5)


def groups(port):
    """Returns how many shared subscriptions a proxy knows of."""
    one = PahoClient(port).connect()
    one.subscribe("$SYS/broker/shared_subscriptions/count")
    found = int(one.get().payload)
    one.close()
    return found


@pytest.mark.parametrize("qos", [1, 2])
def test_a_proxy_is_killed_while_its_members_share(running, qos):  # noqa: F811
    def member(port, name):
        one = PahoClient(port, client_id=f"{name}-{qos}")
        one.connect(clean_start=True, properties=FOREVER)
        # The same client, who knows what it has of QoS 2, goes on elsewhere.
        elsewhere = {"clean_start": False, "properties": FOREVER}
        one.paho.on_disconnect = lambda c, *_: c.connect_async("127.0.0.1", running.other, **elsewhere)
        assert one.subscribe(f"$share/g/shared/{qos}/#", qos=qos) == [qos]
        return one

    before = groups(running.other)
    members = [member(running.one, "a"), member(running.other, "b"), member(running.one, "c")]
    passing = PahoClient(running.one).connect()  # its session ends with its connection, and its group with that
    passing.paho.on_disconnect = lambda c, *_: c.loop_stop()
    passing.subscribe(f"$share/passing/{qos}", qos=1)
    publisher = PahoClient(running.other)
    publisher.paho.max_inflight_messages_set(200)
    publisher.connect()
    expected = {b"%d" % number for number in range(COUNT)}
    infos = []

    def publish():
        for number in range(COUNT):
            infos.append(publisher.paho.publish(f"shared/{qos}/x", b"%d" % number, qos))
            if number % 20 == 0:
                time.sleep(0.005)

    sender = threading.Thread(target=publish)
    try:
        sender.start()
        while sum(one.messages.qsize() for one in members[::2]) < COUNT // 6:
            time.sleep(0.01)
        running.cluster.stop("proxy-1", kill=True)
        for one in members[::2]:
            flags, _, _ = one.connack.get(timeout=TIMEOUT_S)
            assert flags.session_present
        sender.join()
        for info in infos:
            info.wait_for_publish(TIMEOUT_S)
        settled(members, expected)
        got = [Counter(bodies(one)) for one in members]
        assert set().union(*got) == expected
        assert all(one for one in got)
        if qos == 2:
            assert [body for one in got for body, times in one.items() if times > 1] == []
        deadline = time.monotonic() + 4 * TIMEOUT_S
        while (found := groups(running.other)) != before + 1 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert found == before + 1
    finally:
        sender.join()
        for one in (*members, publisher):
            one.paho.on_disconnect = None
            one.close()
        running.cluster.start("proxy-1")
        until_ready(running.cluster, ["proxy-1"])


def test_members_at_two_proxies_share_fairly(running):  # noqa: F811
    members = [PahoClient(port).connect() for port in (running.one, running.other, running.other)]
    for one in members:
        one.subscribe("$share/fair/fair", qos=1)
    time.sleep(1.0)  # until each proxy knows how many members the other has
    publisher = PahoClient(running.one).connect()
    for number in range(300):
        publisher.publish("fair", b"%d" % number)
    settled(members, {b"%d" % number for number in range(300)})
    counts = [one.messages.qsize() for one in members]
    assert sum(counts) == 300
    assert min(counts) >= 40, counts
    for one in (*members, publisher):
        one.close()
