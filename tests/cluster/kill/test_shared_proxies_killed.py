"""Members of one group at two proxies, one of which is killed: nothing is lost, and no session gets a message twice."""

import itertools
import threading
import time
from collections import Counter

import pytest
from paho.mqtt.packettypes import PacketTypes

from tests.support.cluster.local_clusters import until_ready
from tests.support.mqtt.paho_client import TIMEOUT_S, PahoClient, properties
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

COUNT = 2_000
LAST_COUNT = 60
FOREVER = properties(PacketTypes.CONNECT, SessionExpiryInterval=600)


def bodies(member):
    return [message.payload for message in list(member.messages.queue)]


def until_all_came(members, expected):
    wait_until(lambda: expected <= {body for member in members for body in bodies(member)}, "messages are missing")


def groups(port):
    """Returns how many shared subscriptions a proxy knows of."""
    one = PahoClient(port).connect()
    one.subscribe("$SYS/broker/shared_subscriptions/count")
    found = int(one.get().payload)
    one.close()
    return found


@pytest.mark.parametrize("qos", [1, 2])
def test_a_proxy_is_killed_while_its_members_share(running, qos):
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
                time.sleep(0.005)  # so that there is more to come when the proxy is killed

    sender = threading.Thread(target=publish)
    try:
        sender.start()
        wait_until(lambda: sum(one.messages.qsize() for one in members[::2]) >= COUNT // 6)
        running.cluster.stop("proxy-1", kill=True)
        for one in members[::2]:
            flags, _, _ = one.connack.get(timeout=TIMEOUT_S)
            assert flags.session_present
        sender.join()
        for info in infos:
            info.wait_for_publish(TIMEOUT_S)
        until_all_came(members, expected)
        # Messages that the group had to bring a second time would come before those that are published now.
        last = {b"last %d" % number for number in range(LAST_COUNT)}
        for body in last:
            publisher.publish(f"shared/{qos}/x", body, qos)
        until_all_came(members, last)
        got = [Counter(bodies(one)) for one in members]
        assert set().union(*got) == expected | last
        assert all(one for one in got)
        if qos == 2:
            assert [body for one in got for body, times in one.items() if times > 1] == []
        wait_until(lambda: groups(running.other) == before + 1, "the group of a client that is gone is still there")
    finally:
        sender.join()
        for one in (*members, publisher):
            one.paho.on_disconnect = None
            one.close()
        running.cluster.start("proxy-1")
        until_ready(running.cluster, ["proxy-1"])


def test_members_at_two_proxies_share_fairly(running):
    members = [PahoClient(port).connect() for port in (running.one, running.other, running.other)]
    for one in members:
        one.subscribe("$share/fair/fair", qos=1)
    publisher = PahoClient(running.one).connect()

    def counts_of(name, count):
        """Publishes messages, and returns how many of them each member got."""
        sent = {b"%s %d" % (name, number) for number in range(count)}
        for body in sent:
            publisher.publish("fair", body)
        until_all_came(members, sent)
        return [sum(body in sent for body in bodies(one)) for one in members]

    rounds = itertools.count()  # until each proxy knows that the other has members
    wait_until(lambda: all(counts_of(b"round %d" % next(rounds), 30)))
    counts = counts_of(b"fair", 300)
    assert sum(counts) == 300
    assert min(counts) >= 40, counts
    for one in (*members, publisher):
        one.close()
