"""Virtual hosts over real sockets: pika and aio-pika in two of them, MQTT beside, rights, and a kill."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import httpx
import pika
import pytest

from gateway.domain.access_settings import own_access, rights_of
from gateway.queues.leaving.policies import PolicyConfig, StoredPolicy
from tests.support.amqp.pika_queues import TIMEOUT_S, fresh, get
from tests.support.gateway.ruled_gateway import RuledGateway, UserClient, ruled

pytestmark = pytest.mark.slow

CONFIG = """
[queues]
vhosts = ["shop", "a/b"]

[[queues.policies]]
name = "short"
vhost = "shop"
pattern = "^short"
definition = { "max-length" = 1 }
"""
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.support.process.gateways import GatewayProcess

    home = tmp_path_factory.mktemp("vhosts")
    (home / "headgate.toml").write_text(CONFIG)
    with contextlib.closing(GatewayProcess(home / "data", "--config", str(home / "headgate.toml"))) as one:
        yield one.start()


@pytest.fixture
def connect(gateway: Any) -> Iterator[Connect]:
    with contextlib.ExitStack() as stack:

        def make(vhost: str) -> pika.BlockingConnection:
            parameters = pika.ConnectionParameters("127.0.0.1", gateway.port("amqp"), vhost, socket_timeout=TIMEOUT_S)
            connection = pika.BlockingConnection(parameters)
            stack.callback(_close, connection)
            return connection

        yield make


def _close(connection: pika.BlockingConnection) -> None:
    with contextlib.suppress(pika.exceptions.AMQPError):
        connection.close()


def bodies(channel: Any, name: str) -> list[bytes]:
    return [body for _, _, body in iter(lambda: channel.basic_get(name, auto_ack=True), (None, None, None))]


def test_an_unknown_vhost_is_530(connect: Connect) -> None:
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as closed:
        connect("none")
    assert "(530) 'NOT_ALLOWED - vhost none not found'" in str(closed.value)


def test_one_name_is_two_queues(connect: Connect) -> None:
    ours, theirs = connect("/").channel(), connect("shop").channel()
    name = fresh("q")
    for channel, vhost in ((ours, "/"), (theirs, "shop")):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            channel.connection.channel().queue_declare(name, passive=True)
        assert closed.value.reply_text == f"NOT_FOUND - no queue '{name}' in vhost '{vhost}'"
        assert channel.queue_declare(name, exclusive=True).method.queue == name
        channel.confirm_delivery()
        channel.basic_publish("", name, vhost.encode(), mandatory=True)
    assert bodies(ours, name) == [b"/"]
    method, _, body = theirs.basic_get(name)
    assert (method.exchange, method.routing_key, body) == ("", name, b"shop")


def test_amq_topic_of_a_vhost_is_its_own_and_other_protocols_reach_it(connect: Connect, gateway: Any) -> None:
    ours, theirs = connect("/").channel(), connect("shop").channel()
    for channel in (ours, theirs):
        channel.queue_declare("all", exclusive=True)
        channel.queue_bind("all", "amq.topic", "#")
        channel.confirm_delivery()
    theirs.basic_publish("amq.topic", "eu.new", b"by AMQP")
    with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_S) as http:
        assert http.get("/topics/$vhost/shop/amqp/amq.topic/eu/new").content == b"by AMQP"
        assert http.post("/topics/$vhost/shop/amqp/amq.topic/eu/old", content=b"by HTTP").status_code == 201
        assert http.post("/topics/$vhost/none/amqp/amq.topic/eu/old", content=b"x").status_code == 404
        assert http.post("/topics/$vhost/shop/queue/all", content=b"x").status_code == 403
    assert bodies(ours, "all") == []
    assert [(m.exchange, m.routing_key) for m, _, _ in (get(theirs, "all"), get(theirs, "all"))] == [
        ("amq.topic", "eu.new"),
        ("amq.topic", "eu.old"),
    ]


def test_direct_reply_and_named_queues_stay_in_their_vhost(connect: Connect) -> None:
    caller, server = connect("a/b").channel(), connect("a/b").channel()
    server.queue_declare("calls", exclusive=True)
    caller.basic_consume("amq.rabbitmq.reply-to", lambda *_: None, auto_ack=True)
    properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="1")
    caller.basic_publish("", "calls", b"?", properties)
    _, asked, _ = get(server, "calls")
    heard: list[bytes] = []
    caller.cancel()
    caller = connect("a/b").channel()
    named = caller.queue_declare("", exclusive=True).method.queue
    assert named.startswith("amq.gen-")
    assert asked.reply_to.startswith("amq.rabbitmq.reply-to.")
    caller.basic_consume(named, lambda _c, _m, _p, body: heard.append(body), auto_ack=True)
    server.basic_publish("", named, b"!")
    while not heard:
        caller.connection.process_data_events(1)
    for vhost in ("/", "shop"):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            connect(vhost).channel().queue_declare(named, passive=True)
        assert closed.value.reply_code == 404


def test_policies_and_dead_letters_of_a_vhost(connect: Connect) -> None:
    ours, theirs = connect("/").channel(), connect("shop").channel()
    name, dead = fresh("short"), fresh("dead")
    for channel in (ours, theirs):
        channel.queue_declare(dead, exclusive=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        channel.queue_declare(name, exclusive=True, arguments=arguments)
        channel.confirm_delivery()
        for body in (b"1", b"2"):
            channel.basic_publish("", name, body)
    assert [ours.queue_declare(one, passive=True).method.message_count for one in (name, dead)] == [2, 0]
    assert theirs.queue_declare(name, passive=True).method.message_count == 1
    _, properties, body = get(theirs, dead)
    assert body == b"1"
    (death,) = properties.headers["x-death"]
    assert (death["queue"], death["exchange"], death["reason"]) == (name, "", "maxlen")


@pytest.mark.anyio
async def test_aio_pika_in_a_vhost_with_a_slash(gateway: Any) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{gateway.port('amqp')}/a%2Fb"
    async with await aio_pika.connect_robust(url, timeout=TIMEOUT_S) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(fresh("x"), "topic", auto_delete=True)
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(exchange, "a.*")
        await exchange.publish(aio_pika.Message(b"1"), "a.b")
        message = await queue.get(timeout=TIMEOUT_S)
        assert (message.body, message.exchange, message.routing_key) == (b"1", exchange.name, "a.b")
        await message.ack()


def test_what_a_vhost_has_stored_outlives_a_kill(tmp_path: Path, new_gateway: Any) -> None:
    (tmp_path / "one.toml").write_text(CONFIG)
    gateway = new_gateway("--config", str(tmp_path / "one.toml")).start()

    @contextlib.contextmanager
    def channel_of(vhost: str) -> Iterator[Any]:
        parameters = pika.ConnectionParameters("127.0.0.1", gateway.port("amqp"), vhost, socket_timeout=TIMEOUT_S)
        with contextlib.closing(pika.BlockingConnection(parameters)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            yield channel

    for vhost in ("/", "shop"):
        with channel_of(vhost) as channel:
            channel.queue_declare("q", durable=True)
            channel.exchange_declare("x", "topic", durable=True)
            channel.queue_bind("q", "x", "a.*")
            channel.basic_publish("x", "a.b", vhost.encode(), pika.BasicProperties(delivery_mode=2), mandatory=True)
    gateway.kill()
    gateway.start()
    for vhost in ("/", "shop"):
        with channel_of(vhost) as channel:
            channel.basic_publish("x", "a.c", b"2", mandatory=True)
            assert bodies(channel, "q") == [vhost.encode(), b"2"]


# ---- rights


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuledGateway]:
    with RuledGateway(tmp_path_factory.mktemp("vhost-rights") / "data") as one:
        for vhost in ("shop", "other"):
            one.do(one.gateway.hub.queues.registry.make_vhost(vhost))
        yield one


def login(served: RuledGateway, user: str, vhost: str) -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(user, "a secret")
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", served.ports["amqp"], vhost, credentials=credentials)
    )


def code_of(connection: pika.BlockingConnection, work: Callable[[Any], object]) -> int:
    channel = connection.channel()
    try:
        work(channel)
        channel.basic_qos()
    except pika.exceptions.ChannelClosedByBroker as error:
        return error.reply_code
    return 0


def test_rights_are_for_each_vhost(served: RuledGateway) -> None:
    """Configure is `manage`, write `publish`, read `subscribe`, as everywhere; a deny wins."""
    rights = ("manage:$vhost/shop/#", "publish:$vhost/shop/amqp/orders/#", "subscribe:$vhost/shop/#")
    served.do(served.set_user("clerk", ruled(*rights, denied=("all:$vhost/shop/queue/safe",))))
    connection = login(served, "clerk", "shop")
    letters = {"x-dead-letter-exchange": "amq.topic"}
    asked: dict[str, Callable[[Any], object]] = {
        "exchange": lambda one: one.exchange_declare("orders", "topic"),
        "queue": lambda one: one.queue_declare("q"),
        "bind": lambda one: one.queue_bind("q", "orders", "#"),
        "write": lambda one: (one.confirm_delivery(), one.basic_publish("orders", "k", b"x")),
        "read": lambda one: one.basic_get("q"),
        "write elsewhere": lambda one: (one.confirm_delivery(), one.basic_publish("amq.topic", "k", b"x")),
        "letters elsewhere": lambda one: one.queue_declare("d", arguments=letters),
        "denied": lambda one: one.queue_declare("safe"),
        "denied to read": lambda one: one.basic_get("safe"),
    }
    found = {name: code_of(connection, work) for name, work in asked.items()}
    assert found == {**dict.fromkeys(["exchange", "queue", "bind", "write", "read"], 0)} | dict.fromkeys(
        ["write elsewhere", "letters elsewhere", "denied", "denied to read"], 403
    )
    connection.close()


def test_who_may_write_and_read_binds_and_purges_as_in_rabbitmq(served: RuledGateway) -> None:
    served.do(served.set_user("owner2", ruled("all:$vhost/shop/#")))
    owner = login(served, "owner2", "shop")
    channel = owner.channel()
    channel.exchange_declare("bx", "topic")
    channel.exchange_declare("by", "fanout")
    channel.queue_declare("bq")
    names = {"vhost": "shop", "configure": "", "write": "^b[qxy]$", "read": "^(bq|bx)$"}
    rights = rights_of(own_access({"otherwise": "deny", "rules": [], "vhosts": [names]}))
    served.do(served.set_user("app", dict(rights)))
    connection = login(served, "app", "shop")
    asked: dict[str, Callable[[Any], object]] = {
        "bind": lambda one: one.queue_bind("bq", "bx", "a.#"),
        "bind exchange": lambda one: one.exchange_bind("by", "bx", "a.#"),
        "write": lambda one: (one.confirm_delivery(), one.basic_publish("bx", "a.b", b"x", mandatory=True)),
        "purge": lambda one: one.queue_purge("bq"),
        "unbind": lambda one: one.queue_unbind("bq", "bx", "a.#"),
        "unbind exchange": lambda one: one.exchange_unbind("by", "bx", "a.#"),
        "look": lambda one: one.queue_declare("bq", passive=True),
        "declare": lambda one: one.queue_declare("bq"),
        "delete": lambda one: one.queue_delete("bq"),
        "bind what it may not read": lambda one: one.queue_bind("bq", "by", ""),
        "unbind what it may not read": lambda one: one.queue_unbind("bq", "by", ""),
    }
    refused = {name for name, work in asked.items() if code_of(connection, work) == 403}
    assert refused == {"declare", "delete", "bind what it may not read", "unbind what it may not read"}
    assert channel.queue_declare("bq", passive=True).method.message_count == 0
    for one in (connection, owner):
        one.close()


def test_a_vhost_is_refused_alike_whether_it_is_there_or_not(served: RuledGateway) -> None:
    served.do(served.set_user("clerk2", ruled("all:$vhost/shop/#")))
    said = []
    for vhost in ("other", "nowhere"):
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as closed:
            login(served, "clerk2", vhost)
        said.append(str(closed.value).replace(vhost, "*"))
    assert said[0] == said[1]
    assert "(530) \"NOT_ALLOWED - access to vhost '*' refused for user 'clerk2'\"" in said[0]


def test_rules_for_the_default_vhost_give_nothing_in_another(served: RuledGateway) -> None:
    everything = [f"all:{root}#" for root in ("", "$amqp/", "$queue/", "$exchange/")]
    served.do(served.set_user("all", ruled(*everything)))
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        login(served, "all", "shop")
    client = UserClient(served, "all", "vhost-all")
    client.connect()
    assert client.subscribe("$vhost/shop/#") == [0x87]
    assert client.publish("$vhost/shop/amqp/amq.topic/k", 1) == 0x87
    client.close()


def test_a_policy_leads_messages_where_their_publisher_has_no_right(served: RuledGateway) -> None:
    """An operator's word counts there, as in RabbitMQ; what a declaration says is checked, and a deny is, too."""
    rights = [
        f"{action}:$vhost/shop/{place}" for action in ("manage", "subscribe") for place in ("queue/w", "exchange/w")
    ]
    rights += ["publish:$vhost/shop/amqp/w/#", "subscribe:$vhost/shop/amqp/w/#"]
    served.do(served.set_user("worker", ruled(*rights, denied=("all:$vhost/shop/amqp/safe/#",))))
    served.do(served.set_user("owner", ruled("all:$vhost/shop/#")))
    owner = login(served, "owner", "shop")
    kept = owner.channel()
    kept.exchange_declare("safe", "topic")
    kept.queue_declare("kept")
    kept.queue_bind("kept", "safe", "#")
    worker = login(served, "worker", "shop")
    refused: dict[str, Callable[[Any], object]] = {
        "letters": lambda one: one.queue_declare("w", arguments={"x-dead-letter-exchange": "safe"}),
        "alternate": lambda one: one.exchange_declare("w", "direct", arguments={"alternate-exchange": "safe"}),
        "write": lambda one: (one.confirm_delivery(), one.basic_publish("safe", "k", b"x")),
    }
    assert {name: code_of(worker, work) for name, work in refused.items()} == dict.fromkeys(refused, 403)
    definition = {"dead-letter-exchange": "safe", "alternate-exchange": "safe"}
    policy = PolicyConfig(name="led", vhost="shop", pattern="^w$", definition=definition)
    served.do(served.gateway.hub.queues.registry.set_policy(StoredPolicy(policy=policy)))
    channel = worker.channel()
    channel.confirm_delivery()
    channel.exchange_declare("w", "direct")
    channel.queue_declare("w")
    channel.queue_bind("w", "w", "known")
    channel.basic_publish("w", "unknown", b"alternate", mandatory=True)
    channel.basic_publish("w", "known", b"letter")
    method, _, _ = get(channel, "w", auto_ack=False)
    channel.basic_nack(method.delivery_tag, requeue=False)
    found = [get(kept, "kept") for _ in range(2)]
    assert [(one.exchange, one.routing_key, body) for one, _, body in found] == [
        ("w", "unknown", b"alternate"),
        ("safe", "known", b"letter"),
    ]
    assert code_of(worker, refused["write"]) == 403
    for connection in (worker, owner):
        connection.close()
