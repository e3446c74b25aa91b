"""Two proxies as processes over one store group: a client finds its session at either, and its will when one dies."""

import contextlib
import itertools
import threading
import time
import tomllib

import httpx
import pika
import pytest
from paho.mqtt.packettypes import PacketTypes
from typer.testing import CliRunner

from gateway.cli.commands import app
from gateway.process.backend import kept_for
from tests.support.amqp.exclusive_queues import LOCKED, codes, connect, take
from tests.support.cluster.local_clusters import PATIENCE_S, until_ready
from tests.support.mqtt.paho_client import connected, properties
from tests.support.process.commands import headgate
from tests.support.process.ports import PORTS, free_port
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

TIMEOUT_S = 60


def amqp(port):
    return connect(port - PORTS["mqtt"] + PORTS["amqp"])


def test_a_session_is_taken_over_between_proxies(running):
    first = connected(running.one, "mover", will=b"mover")
    first.subscribe("t/#", 1)
    publisher = connected(running.other, "publisher", clean=True)
    publisher.publish("t/1", b"1")
    assert first.body() == b"1"
    second = connected(running.other, "mover")
    assert second.present
    assert first.left.get(timeout=TIMEOUT_S) == "Session taken over"
    publisher.publish("t/2", b"2")
    assert second.body() == b"2"
    for client in (second, publisher):
        client.close()
    third = connected(running.one, "mover")
    assert third.present
    third.close()


def test_queues_are_those_of_all_proxies(running):
    with amqp(running.one) as one, amqp(running.other) as other:
        here, there = one.channel(), other.channel()
        here.queue_declare("work", durable=True)
        there.queue_bind("work", "amq.topic", "jobs.*")
        got = []
        there.basic_consume("work", lambda _c, _m, _p, body: got.append(body), auto_ack=True)
        deadline = time.monotonic() + TIMEOUT_S
        while not got and time.monotonic() < deadline:
            here.basic_publish("amq.topic", "jobs.1", b"1")  # the binding is known here a moment later
            other.process_data_events(0.05)
        assert got
        seen = len(got)
        began = time.monotonic()
        here.basic_publish("", "work", b"now")
        while b"now" not in got and time.monotonic() < deadline:
            other.process_data_events(0.05)
        assert b"now" in got[seen - 1 :]
        assert time.monotonic() - began < 2
        here.queue_declare("mine", exclusive=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            there.queue_declare("mine", exclusive=True)
        assert refused.value.reply_code == 405


def test_an_exclusive_queue_is_one_connections_at_all_proxies(running):
    owner, beside, elsewhere = (amqp(port) for port in (*[running.one] * 2, running.other))
    channel = owner.channel()
    channel.queue_declare("own", exclusive=True)
    channel.confirm_delivery()
    channel.basic_publish("", "own", b"of the owner")
    for connection in (beside, elsewhere):
        assert set(codes(connection, "own").values()) == {LOCKED}
    assert channel.basic_get("own", auto_ack=True)[2] == b"of the owner"
    channel.basic_publish("", "own", b"gone with it")
    owner.close()
    assert take(elsewhere, "own") == 0
    assert set(codes(beside, "own").values()) == {LOCKED}
    for connection in (beside, elsewhere):
        connection.close()


def test_an_exclusive_queue_of_a_killed_proxy_is_free_for_connections_of_others(running):
    owner, elsewhere = (amqp(port) for port in (running.one, running.other))
    channel = owner.channel()
    channel.queue_declare("left", durable=True, exclusive=True)
    channel.confirm_delivery()
    channel.basic_publish("", "left", b"gone with it", pika.BasicProperties(delivery_mode=2))
    assert set(codes(elsewhere, "left").values()) == {LOCKED}
    running.cluster.stop("proxy-1", kill=True)
    try:
        assert take(elsewhere, "left") == 0
    finally:
        running.cluster.start("proxy-1")
        until_ready(running.cluster, ["proxy-1"])
    with amqp(running.one) as back:
        assert set(codes(back, "left").values()) == {LOCKED}
    elsewhere.close()
    with pytest.raises(pika.exceptions.StreamLostError):
        owner.process_data_events()


def in_shop(port, user="guest", password="guest"):
    credentials = pika.PlainCredentials(user, password)
    port += PORTS["amqp"] - PORTS["mqtt"]
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, "shop", credentials))


def is_let_in(port, *user):
    with contextlib.suppress(pika.exceptions.ProbableAccessDeniedError):  # 530
        in_shop(port, *user).close()
        return True
    return False


def test_a_virtual_host_keeps_names_and_rights_apart_at_all_proxies(running, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a long secret")
    at_one = ("--admin-port", str(running.admin_port))
    headgate("amqp", "add-vhost", "shop", *at_one)
    controllers = ("--controllers", ",".join(running.cluster.plan.addresses.values()))
    for user, rule in (("clerk", "all:$vhost/shop/#"), ("stranger", "all:#")):
        headgate("cluster", "users", "set", user, "--password-file", str(secret), "--allow", rule, *controllers)
    clerk, stranger = ("clerk", "a long secret"), ("stranger", "a long secret")
    for port in (running.one, running.other):  # which hears of the virtual host and its users a moment later
        wait_until(lambda port=port: is_let_in(port, *clerk))
        assert not is_let_in(port, *stranger)
    with in_shop(running.one, *clerk) as one, in_shop(running.other, *clerk) as other, amqp(running.other) as default:
        here, there, outside = one.channel(), other.channel(), default.channel()
        here.queue_declare("kept", durable=True)
        here.queue_bind("kept", "amq.fanout")
        assert there.queue_declare("kept", passive=True).method.message_count == 0
        outside.queue_declare("kept", exclusive=True)  # another one, of its own virtual host
        for channel in (there, outside):
            channel.confirm_delivery()
        there.basic_publish("", "kept", b"of the shop", mandatory=True)
        outside.basic_publish("amq.fanout", "", b"bound in the shop alone")
        assert here.basic_get("kept", auto_ack=True)[2] == b"of the shop"
        there.basic_publish("", "kept", b"goes with it")
        assert outside.queue_declare("kept", passive=True).method.message_count == 0
        headgate("amqp", "delete-vhost", "shop", *at_one)
        for connection in (one, other):
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
                connection.process_data_events(TIMEOUT_S)
            assert (closed.value.reply_code, closed.value.reply_text) == (
                320,
                "CONNECTION_FORCED - vhost 'shop' is deleted",
            )
        assert outside.queue_declare("kept", passive=True).method.message_count == 0
    for port in (running.one, running.other):
        assert not is_let_in(port, *clerk)
    headgate("amqp", "add-vhost", "shop", *at_one)
    wait_until(lambda: is_let_in(running.other))
    assert not is_let_in(running.other, *clerk)  # a right goes with what it was for
    with in_shop(running.other) as again, pytest.raises(pika.exceptions.ChannelClosedByBroker) as missing:
        again.channel().queue_declare("kept", passive=True)
    assert missing.value.reply_code == 404
    headgate("amqp", "delete-vhost", "shop", *at_one)


def round_of(publisher, reader, number):
    """Returns what a reader hears of two messages, of which the second comes in any case."""
    mark = b"mark %d of %s" % (number, reader.paho._client_id)
    publisher.publish("rules/a", b"no")
    publisher.publish("rules/b", mark)
    heard = [reader.body()]
    while heard[-1] != mark:
        heard.append(reader.body())
    before = [n for n, body in enumerate(heard[:-1]) if body.startswith(b"mark")]
    return heard[before[-1] + 1 if before else 0 :]


def test_rules_of_a_user_count_at_all_proxies(running, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a long secret")
    controllers = ",".join(running.cluster.plan.addresses.values())

    def users(*arguments):
        done = CliRunner().invoke(app, ["cluster", "users", *arguments, "--controllers", controllers])
        assert done.exit_code == 0, done.output

    users("set", "ada", "--password-file", str(secret), "--allow", "subscribe:rules/#")
    readers = []
    deadline = time.monotonic() + TIMEOUT_S
    for number, port in enumerate((running.one, running.other)):
        while len(readers) == number:  # a proxy hears of a new user a moment later
            with contextlib.suppress(AssertionError):
                readers.append(connected(port, f"reader{number}", clean=True, user=("ada", "a long secret")))
            assert time.monotonic() < deadline
        readers[-1].subscribe("#", 1)
    publisher = connected(running.one, "publisher", clean=True)
    publisher.publish("other", b"never")
    publisher.publish("rules/a", b"a")
    assert [reader.body() for reader in readers] == [b"a", b"a"]
    users("rules", "ada", "--allow", "subscribe:rules/#", "--deny", "all:rules/a")
    for reader in readers:
        for number in itertools.count():  # until its proxy has heard
            assert time.monotonic() < deadline
            if b"no" not in round_of(publisher, reader, number):
                break
    for number in range(100, 103):
        publisher.publish("rules/a", b"no")
        publisher.publish("rules/b", b"%d" % number)
    for reader in readers:
        heard = [reader.body()]
        while heard[-1] != b"102":
            heard.append(reader.body())
        assert b"no" not in heard[-3:]
    for client in (*readers, publisher):
        client.close()


def test_a_command_by_http_hears_an_answer_that_another_proxy_has_stored(running):
    device = connected(running.other, "device", clean=True)
    device.subscribe("commands/d1", 1)

    def answer():
        for _ in range(10):
            command = device.get().properties
            said = properties(PacketTypes.PUBLISH, CorrelationData=command.CorrelationData)
            device.publish(command.ResponseTopic, command.CorrelationData, properties=said)

    answering = threading.Thread(target=answer)
    answering.start()
    url = f"http://127.0.0.1:{running.one - PORTS['mqtt'] + PORTS['http']}"
    with httpx.Client(base_url=url, trust_env=False, timeout=TIMEOUT_S) as client:
        for number in range(10):
            said = {"prefer": "wait=60", "ce-correlationid": f"c{number}"}
            done = client.post("/topics/commands/d1", headers=said)
            assert (done.status_code, done.text) == (200, f"c{number}")
    answering.join(TIMEOUT_S)
    device.close()


def test_what_a_killed_proxy_has_left_is_done_by_the_other(running):
    watcher = connected(running.other, "watcher", clean=True)
    watcher.subscribe("wills", 1)
    clients = [connected(running.one, f"c{n}", will=b"%d" % n, expiry_s=600 * (n % 2)) for n in range(10)]
    clients[1].subscribe("t/#", 1)
    running.cluster.stop("proxy-1", kill=True)
    try:
        assert sorted(watcher.body() for _ in clients) == sorted(b"%d" % n for n in range(10))
        moved = connected(running.other, "c1")
        assert moved.present
        watcher.publish("t/x", b"x")
        assert moved.body() == b"x"
        watcher.publish("wills", b"last")  # a will that was published twice would come before it
        assert watcher.body() == b"last"
        for client in (moved, watcher):
            client.close()
    finally:
        running.cluster.start("proxy-1")
        until_ready(running.cluster, ["proxy-1"])
        for client in clients:
            with contextlib.suppress(Exception):
                client.paho.loop_stop()


def test_a_proxy_finds_controllers_that_its_configuration_does_not_name_any_more(running, tmp_path):
    cluster, controllers = running.cluster, running.cluster.plan.addresses[1]
    file, state = cluster.plan.directory / "proxy-1.toml", tmp_path / "state" / "of the proxy"
    before = file.read_text()
    gone = before.replace(controllers, f"127.0.0.1:{free_port()}") + f'\n[proxy]\nstate_dir = "{state}"\n'
    try:
        cluster.stop("proxy-1")
        file.write_text(f'{before}\n[proxy]\nstate_dir = "{state}"\n')
        cluster.start("proxy-1")
        until_ready(cluster, ["proxy-1"], timeout_s=PATIENCE_S)
        (kept,) = state.iterdir()
        assert kept.read_text() == f"{controllers}\n"
        cluster.stop("proxy-1")
        file.write_text(gone)
        named = tomllib.loads(gone)["cluster"]["controllers"].values()
        kept.rename(kept_for(state, named))  # as if these had been there, and were replaced
        cluster.start("proxy-1")
        until_ready(cluster, ["proxy-1"], timeout_s=PATIENCE_S)
        client = connected(running.one, "found", clean=True)
        client.subscribe("t/#", 1)
        client.publish("t/found", b"1")
        assert client.body() == b"1"
        client.close()
    finally:
        cluster.stop("proxy-1")
        file.write_text(before)
        cluster.start("proxy-1")
        until_ready(cluster, ["proxy-1"], timeout_s=PATIENCE_S)
