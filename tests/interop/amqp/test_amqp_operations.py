"""`headgate amqp` against a whole gateway, of one process and of several, while pika and aio-pika are connected."""

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import pika
import pytest

from tests.support.amqp.pika_queues import TIMEOUT_S
from tests.support.process.gateways import GatewayProcess
from tests.support.process.program import headgate
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

DEFINITIONS = Path(__file__).parents[2] / "support" / "amqp" / "rabbitmq_definitions.json"  # of RabbitMQ 3.10.8
PASSWORD = "s3cret"  # of the user "app" in it

CONFIG = """
[queues]
vhosts = ["shop"]
"""


@pytest.fixture(scope="module", params=[(), ("--workers", "2")], ids=["alone", "workers"])
def gateway(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("operations")
    (home / "headgate.toml").write_text(CONFIG)
    config = ("--config", str(home / "headgate.toml"))
    with contextlib.closing(GatewayProcess(home / "data", *config, *request.param)) as one:
        yield one.start()


def command(gateway: GatewayProcess, *arguments: str, status: int = 0) -> list[str]:
    """Runs `headgate amqp`; returns its lines."""
    done = headgate("amqp", *arguments, "--admin-port", str(gateway.port("admin")))
    assert done.returncode == status, done.stderr
    return done.stdout.decode().splitlines()


def rows(gateway: GatewayProcess, what: str, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in command(gateway, what, "--json", *arguments)]


def listed(gateway: GatewayProcess, what: str, vhost: str | None = None) -> list[dict[str, Any]]:
    """Returns the same rows from the page itself, which is quicker."""
    query = "" if vhost is None else f"?vhost={vhost}"
    found: list[dict[str, Any]] = json.loads(gateway.admin(f"/amqp/{what}{query}"))["rows"]
    return found


@contextlib.contextmanager
def connected(gateway: GatewayProcess, vhost: str = "/", user: str = "guest") -> Iterator[pika.BlockingConnection]:
    credentials = pika.PlainCredentials(user, "guest" if user == "guest" else PASSWORD)
    parameters = pika.ConnectionParameters(
        "127.0.0.1", gateway.port("amqp"), vhost, credentials, socket_timeout=TIMEOUT_S
    )
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


def test_queues_and_bindings_are_listed(gateway: GatewayProcess) -> None:
    with connected(gateway) as one, connected(gateway, "shop") as two:
        for connection, count in ((one, 1), (two, 2)):
            channel = connection.channel()
            channel.confirm_delivery()
            channel.exchange_declare("orders", "topic")
            channel.exchange_declare("all", "fanout")
            channel.queue_declare("q", durable=True, arguments={"x-max-length": 10})
            channel.queue_bind("q", "orders", "eu.*", {"x": 1})
            channel.exchange_bind("all", "orders", "#")
            for _ in range(count):
                channel.basic_publish("orders", "eu.new", b"1")
        two.channel().basic_consume("q", lambda *_: None)
        two.channel()  # an answer: the consumer has begun

        def found() -> list[Any]:
            return [
                (row["vhost"], row["name"], row["messages"], row["consumers"], row["durable"], row["arguments"])
                for row in rows(gateway, "queues")
            ]

        wanted = [("/", "q", 1, 0, True, {"x-max-length": 10}), ("shop", "q", 0, 1, True, {"x-max-length": 10})]
        wait_until(lambda: found() == wanted)
        (row,) = rows(gateway, "queues", "--vhost", "shop")
        assert row["vhost"] == "shop"
        made = {
            (row["vhost"], row["source"], row["destination_type"], row["destination"], row["routing_key"])
            for row in rows(gateway, "bindings")
        }
        assert made == {
            (vhost, "orders", *bound)
            for vhost in ("/", "shop")
            for bound in (("queue", "q", "eu.*"), ("exchange", "all", "#"))
        }
        assert command(gateway, "queues", "--vhost", "/") == ['/\tq\t1\t0\t0\tdurable\t{"x-max-length": 10}']
        assert command(gateway, "bindings", "--vhost", "none") == []


def test_a_connection_is_closed_with_320(gateway: GatewayProcess) -> None:
    with connected(gateway) as stays, connected(gateway, "shop") as goes:
        goes.channel().queue_declare("", exclusive=True)
        (row,) = wait_until(lambda: rows(gateway, "connections", "--vhost", "shop"))
        assert (row["user"], row["channels"], row["consumers"], row["listener"]) == ("guest", 1, 0, "amqp")
        assert row["peer"].startswith("127.0.0.1:")
        assert command(gateway, "close", row["id"], "--reason", "for a test") == [row["id"]]
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            goes.process_data_events(TIMEOUT_S)
        assert (closed.value.reply_code, closed.value.reply_text) == (320, "CONNECTION_FORCED - for a test")
        wait_until(lambda: rows(gateway, "connections", "--vhost", "shop") == [])
        assert command(gateway, "close", row["id"], status=1) == []
        assert stays.channel().queue_declare("", exclusive=True).method.queue


@pytest.mark.anyio
async def test_connections_of_a_user_are_closed_and_come_again(gateway: GatewayProcess) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{gateway.port('amqp')}/shop"
    connection = await aio_pika.connect_robust(url, timeout=TIMEOUT_S, reconnect_interval=0.05)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("robust", durable=True)
        again = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_: again.set())
        closed = await asyncio.to_thread(command, gateway, "close", "--user", "guest", "--vhost", "shop")
        assert len(closed) == 1
        async with asyncio.timeout(TIMEOUT_S):
            await again.wait()
        await channel.default_exchange.publish(aio_pika.Message(b"1"), "robust")
        message = await queue.get(timeout=TIMEOUT_S)
        await message.ack()


def test_nothing_is_closed_that_was_not_named(gateway: GatewayProcess) -> None:
    assert command(gateway, "close", status=2) == []
    assert command(gateway, "close", "none", "1.99999", status=1) == []


# ---- policies


def test_a_policy_holds_for_queues_that_are_there_and_that_come(gateway: GatewayProcess) -> None:
    with connected(gateway) as connection:
        channel = connection.channel()
        channel.confirm_delivery()

        def count(name: str) -> int:
            return int(channel.queue_declare(name, durable=True).method.message_count)

        def fill(name: str) -> None:
            count(name)
            for _ in range(3):
                channel.basic_publish("", name, b"x")

        fill("ruled.1")
        definition = '{"max-length": 1, "alternate-exchange": "amq.fanout"}'
        assert command(gateway, "set-policy", "short", "^ruled", definition) == ["policy short is set"]
        wait_until(lambda: count("ruled.1") == 1)  # a worker hears of it from another
        fill("ruled.2")
        wait_until(lambda: count("ruled.2") == 1)
        command(gateway, "set-policy", "cap", "1$", '{"max-length": 0}', "--operator", "--apply-to", "queues")
        wait_until(lambda: count("ruled.1") == 0)
        (row,) = [row for row in listed(gateway, "queues") if row["name"] == "ruled.1"]
        assert (row["policy"], row["operator_policy"]) == ("short", "cap")
        assert row["effective_policy"] == {"max-length": 0}
        assert [(row["name"], row["operator"]) for row in listed(gateway, "policies")] == [
            ("short", False),
            ("cap", True),
        ]
        assert command(gateway, "clear-policy", "cap", "--operator") == ["operator policy cap is removed"]
        assert command(gateway, "clear-policy", "cap", "--operator", status=1) == []
        assert command(gateway, "set-policy", "p", "(", definition, status=1) == []
        assert command(gateway, "set-policy", "p", "q", "max-length", status=2) == []
        assert command(gateway, "policies") == ["/\tshort\t^ruled\tall\t" + definition + "\t0\tuser's"]
        assert command(gateway, "clear-policy", "short") == ["policy short is removed"]
        assert listed(gateway, "policies") == []

        def grows() -> bool:
            fill("ruled.1")
            return count("ruled.1") > 1

        wait_until(grows)


# ---- virtual hosts


def test_a_deleted_vhost_takes_its_queues_connections_and_rights_with_it(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    hashed = next(user for user in json.loads(DEFINITIONS.read_text())["users"] if user["name"] == "app")
    file = tmp_path / "definitions.json"
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    file.write_text(json.dumps({"users": [hashed], "permissions": [{"user": "app", "vhost": "brief", **everything}]}))
    command(gateway, "import-definitions", str(file))
    assert command(gateway, "add-vhost", "brief") == ["virtual host brief is there"]
    wait_until(lambda: [row["vhost"] for row in listed(gateway, "vhosts")] == ["/", "brief", "shop"])
    with connected(gateway, "brief") as goes, connected(gateway, "brief", "app"), connected(gateway) as stays:
        channel = goes.channel()
        channel.queue_declare("q", durable=True)
        channel.exchange_declare("e", "fanout", durable=True)
        channel.queue_bind("q", "e")
        channel.queue_declare("", exclusive=True)
        wait_until(lambda: listed(gateway, "vhosts", "brief")[0]["queues"] == 2)
        assert {row["vhost"]: row["connections"] for row in listed(gateway, "vhosts")} == {
            "/": 1,
            "brief": 2,
            "shop": 0,
        }
        assert command(gateway, "delete-vhost", "brief") == ["virtual host brief is deleted"]
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            goes.process_data_events(TIMEOUT_S)
        assert (closed.value.reply_code, closed.value.reply_text) == (
            320,
            "CONNECTION_FORCED - vhost 'brief' is deleted",
        )
        assert stays.channel().queue_declare("", exclusive=True).method.queue

    def is_refused(vhost: str, user: str = "guest") -> bool:
        try:
            with connected(gateway, vhost, user):
                return False
        except pika.exceptions.ProbableAccessDeniedError:
            return True

    wait_until(lambda: is_refused("brief"))
    assert command(gateway, "delete-vhost", "brief", status=1) == []
    assert command(gateway, "delete-vhost", "shop", status=1) == []  # the configuration has it
    command(gateway, "add-vhost", "brief")
    assert listed(gateway, "queues", "brief") == []
    wait_until(lambda: not is_refused("brief"))
    assert is_refused("brief", "app")  # allowed before it was deleted
    command(gateway, "delete-vhost", "brief")
    command(gateway, "remove-user", "app")


def test_a_vhost_is_limited_in_queues_and_connections(gateway: GatewayProcess) -> None:
    command(gateway, "add-vhost", "small")
    limits = '{"max-queues": 1, "max-connections": 1}'
    assert command(gateway, "set-vhost-limits", limits, "--vhost", "small") == ["virtual host small is limited"]
    refused = r"access to vhost 'small' refused for user 'guest': connection limit \(1\) is reached"

    def second_is_refused() -> bool:
        try:
            with connected(gateway, "small"):
                return False
        except pika.exceptions.ProbableAccessDeniedError as error:
            return re.search(refused, str(error)) is not None

    wait_until(lambda: _is_limited(gateway, "small"))
    with connected(gateway, "small") as connection:
        connection.channel().queue_declare("a")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            connection.channel().queue_declare("b")
        assert (closed.value.reply_code, closed.value.reply_text) == (
            406,
            "PRECONDITION_FAILED - cannot declare queue 'b': queue limit in vhost 'small' (1) is reached",
        )
        wait_until(second_is_refused)  # another worker counts a moment later
    assert command(gateway, "clear-vhost-limits", "--vhost", "small") == ["virtual host small has no limits"]
    assert command(gateway, "set-vhost-limits", '{"max-cats": 1}', "--vhost", "small", status=1) == []
    command(gateway, "delete-vhost", "small")


def _is_limited(gateway: GatewayProcess, vhost: str) -> bool:
    return bool(listed(gateway, "vhosts", vhost)[0]["max_connections"] == 1)


# ---- RabbitMQ's definitions


def test_definitions_of_rabbitmq_are_imported_and_their_user_logs_in(gateway: GatewayProcess) -> None:
    dry = command(gateway, "import-definitions", str(DEFINITIONS), "--dry-run")
    assert "would make queue 'orders.eu' in vhost 'shop'" in dry
    assert rows(gateway, "queues", "--vhost", "a/b") == []
    assert not [row for row in rows(gateway, "queues") if row["name"] == "orders.eu"]
    made = command(gateway, "import-definitions", str(DEFINITIONS))
    assert [line.replace("would make", "made") for line in dry if line.startswith("would make")] == [
        line for line in made if line.startswith("made")
    ]
    assert {row["name"]: row["operator"] for row in listed(gateway, "policies")} == {"lengths": False, "cap": True}
    again = command(gateway, "import-definitions", str(DEFINITIONS))
    assert not [line for line in again if line.startswith("made ") and "there already" not in line]

    def connect_app(vhost: str) -> pika.BlockingConnection:
        credentials = pika.PlainCredentials("app", PASSWORD)
        parameters = pika.ConnectionParameters("127.0.0.1", gateway.port("amqp"), vhost, credentials=credentials)
        return pika.BlockingConnection(parameters)

    def code_of(work: Callable[[Any], object]) -> int:
        channel = connection.channel()
        try:
            work(channel)
        except pika.exceptions.ChannelClosedByBroker as error:
            return int(error.reply_code)
        return 0

    with contextlib.closing(connect_app("shop")) as connection:  # by patterns of the file
        asked: dict[str, Callable[[Any], object]] = {
            "write": lambda one: (one.confirm_delivery(), one.basic_publish("orders", "eu.new", b"1")),
            "read": lambda one: one.basic_get("orders.eu"),
            "configure": lambda one: one.queue_declare("orders.us"),
            "write elsewhere": lambda one: (one.confirm_delivery(), one.basic_publish("events", "", b"1")),
            "read elsewhere": lambda one: one.basic_get("dead"),
            "configure elsewhere": lambda one: one.queue_declare("other"),
        }
        allowed = {"write", "read", "configure"}
        assert {name: code_of(work) for name, work in asked.items()} == {
            name: 0 if name in allowed else 403 for name in asked
        }
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=r"\(530\)"):
        connect_app("a/b")
    assert command(gateway, "remove-user", "app") == ["user app is removed"]
    assert command(gateway, "remove-user", "app", status=1) == []
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect_app("shop")


def test_a_bad_file_is_one_error(gateway: GatewayProcess, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    for data, status in (("{", 2), ("[]", 2), ("{}", 1), ('{"queues": [{"name": 5}]}', 1)):
        bad.write_text(data)
        done = headgate("amqp", "import-definitions", str(bad), "--admin-port", str(gateway.port("admin")))
        assert done.returncode == status
        assert done.stdout == b""
        (line,) = done.stderr.decode().splitlines()
        assert "this is not a file of RabbitMQ's definitions" in line
    assert command(gateway, "import-definitions", str(tmp_path / "none.json"), status=1) == []
