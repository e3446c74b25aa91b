"""The import of RabbitMQ's definitions: what is made, kept and refused, and that a repetition makes nothing."""

import contextlib
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.client import User
from controller.api.commands import SetUser
from gateway.domain.vhosts import in_vhost
from gateway.port.queues import DeclareExchange
from gateway.queues.importing.definitions_file import DefinitionsFile, read_definitions
from gateway.queues.importing.importer import Importer
from gateway.queues.leaving.policies import Policies, PolicyConfig, QueuesConfig
from gateway.queues.queues import NamedQueues
from gateway.security.passwords import is_match
from tests.support.gateway.queues_rig import opened_queues

pytestmark = pytest.mark.anyio

# An export of RabbitMQ 3.10.8, with queues of all types, policies and users.
REAL = (Path(__file__).parents[3] / "support" / "amqp" / "rabbitmq_definitions.json").read_bytes()


@pytest.fixture
async def rig(tmp_path):
    async with opened_queues(tmp_path, "$vhost", "eu") as rig:
        yield rig


async def run(rig, file, *, dry_run=False, configured=()):
    data = file if isinstance(file, bytes) else json.dumps(file).encode()
    importer = Importer(rig.queues.registry, rig.controller, configured=configured, dry_run=dry_run)
    return await importer.run(read_definitions(data))


def outcomes(report):
    return {step.what: step.outcome for step in report.steps}


def whys(report):
    return {step.what: step.why for step in report.steps if step.why}


async def one(rig, file, **options):
    """Returns the one step of an import."""
    (step,) = (await run(rig, file, **options)).steps
    return step


async def test_a_real_export_is_made_and_a_repetition_makes_nothing(rig):
    dry = await run(rig, REAL, dry_run=True)
    registry = rig.queues.registry
    assert list(registry.vhosts.names) == ["/"]
    assert not registry.queues
    assert not rig.controller.users()
    first = await run(rig, REAL)
    assert first == dry  # which says exactly what is done
    assert {"/", "shop", "a/b"} == set(registry.vhosts.names)
    queue = registry.queues[in_vhost("shop", "orders.eu")]
    assert queue.rules.max_length == 500  # of 1,000 that it was declared with, by the operator's policy
    assert {one.routing_key for one in queue.definition.bindings} == {"eu.#", "a.*"}
    assert registry.exchange("orders").alternate == "unrouted"
    lost = whys(first)["binding of exchange 'audit' in vhost '/' to exchange 'orders' by '#'"]
    assert "RabbitMQ does not export internal exchanges" in lost
    before = {name: one.definition for name, one in registry.queues.items()}, list(registry.exchanges)
    again = await run(rig, REAL)
    assert "made" not in outcomes(again).values()
    assert [one for one in outcomes(again).items() if one[1] == "refused"] == [
        one for one in outcomes(first).items() if one[1] == "refused"
    ]
    assert ({name: one.definition for name, one in registry.queues.items()}, list(registry.exchanges)) == before
    await rig.restart()
    assert rig.queues.registry.queues.keys() == before[0].keys()
    await rig.publish(in_vhost("shop", "orders"), "eu.new", b"1")
    assert (await rig.declare(rig.conn(), in_vhost("shop", "orders.eu"), passive=True, durable=True)).messages == 1


async def test_what_an_export_leaves_out_is_bound_once_it_is_there(rig):
    await rig.request(rig.conn(), DeclareExchange(name="audit", kind="fanout", durable=True, internal=True))
    for outcome in ("made", "kept"):
        report = await run(rig, REAL)
        assert outcomes(report)["binding of exchange 'audit' in vhost '/' to exchange 'orders' by '#'"] == outcome
    (binding,) = rig.queues.registry.exchange("audit").bindings
    assert (binding.exchange, binding.routing_key) == ("orders", "#")


async def test_users_of_a_real_export_log_in_with_their_passwords(rig):
    report = await run(rig, REAL)
    users = {user.name: user for user in rig.controller.users()}
    assert users.keys() == {"root", "app"}
    assert is_match(users["app"].password, b"s3cret")
    assert not is_match(users["app"].password, b"secret")
    assert users["app"].rights["access"]["otherwise"] == "deny"
    assert "auth.guest" in whys(report)["user 'guest'"]
    assert whys(report)["tags of user 'root'"].startswith("administrator")


async def test_limits_of_users_are_not_passed_over(rig):
    user = {"name": "app", "password_hash": "", "limits": {"max-connections": 5}}
    report = await run(rig, {"users": [user, user | {"name": "free", "limits": {}}]})
    assert outcomes(report)["limits of user 'app'"] == "refused"
    assert "limits of user 'free'" not in outcomes(report)


async def test_policies_are_set_and_those_of_another_meaning_stay(rig):
    report = await run(rig, REAL)
    assert "ha-mode" in whys(report)["policy 'ha' in vhost '/'"]
    policies = rig.queues.registry.policies
    assert sorted((one.name, one.operator) for one in policies.stored) == [("cap", True), ("lengths", False)]
    await rig.restart()
    assert rig.queues.registry.queues[in_vhost("shop", "orders.eu")].rules.max_length == 500
    other = {"name": "lengths", "vhost": "shop", "pattern": "x", "definition": {"max-length": 1}}
    step = await one(rig, {"policies": [other]})
    assert (step.outcome, "another one of this name" in step.why) == ("refused", True)
    assert rig.queues.registry.policies.stored == policies.stored


async def test_limits_of_vhosts_are_taken_unless_there_are_others(rig):
    limits = {"component": "vhost-limits", "name": "limits", "vhost": "/", "value": {"max-queues": 5}}
    assert (await one(rig, {"parameters": [limits]}, dry_run=True)).outcome == "made"
    assert rig.queues.registry.vhosts.limits("/").max_queues == -1
    assert [(await one(rig, {"parameters": [limits]})).outcome for _ in range(2)] == ["made", "kept"]
    for value, said in (
        ({"max-queues": 6}, "it has others"),
        ({"max-cats": 1}, "max-cats"),
        ({"max-connections": 1}, "gateway.connections_max"),
    ):
        step = await one(rig, {"parameters": [limits | {"value": value}]})
        assert (step.outcome, said in step.why) == ("refused", True)


async def test_a_policy_of_the_configuration_counts_as_there(rig):
    configured = PolicyConfig(name="p", pattern="x", definition={"max-length": 1})
    policies = Policies(QueuesConfig(policies=(configured,)))
    rig.queues = NamedQueues(rig.store, rig.controller, rig.router, policies=policies, now_ms=lambda: 0)
    await rig.queues.load()
    entry = {"name": "p", "vhost": "/", "pattern": "x", "definition": {"max-length": 1}}
    assert (await one(rig, {"policies": [entry]})).outcome == "kept"
    assert (await one(rig, {"policies": [entry | {"priority": 5}]})).outcome == "refused"


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b"{}", b'{"queues": 1}', b'{"queues": [{"name": 5}]}', b'{"users": [{}]}', b"\xff", b'{"a": 1}'],
)
def test_a_bad_file_is_one_sentence(data):
    with pytest.raises(ValueError, match="this is not a file of RabbitMQ's definitions: ") as error:
        read_definitions(data)
    assert "\n" not in str(error.value)


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_no_file_is_a_bug(data):
    with contextlib.suppress(ValueError):
        assert isinstance(read_definitions(data), DefinitionsFile)


QUEUE = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ({"queues": [QUEUE | {"vhost": "none"}]}, "there is no vhost 'none'"),
        ({"queues": [QUEUE | {"name": "amq.mine"}]}, "reserved"),
        ({"queues": [QUEUE | {"arguments": {"x-max-length": "many"}}]}, "x-max-length"),
        ({"queues": [QUEUE | {"arguments": {"x-max-age": "1h"}}]}, "x-max-age"),
        ({"exchanges": [{"name": "x", "type": "x-unheard-of"}]}, "x-unheard-of"),
        ({"exchanges": [{"name": "amq.direct", "type": "fanout"}]}, "inequivalent"),
        ({"bindings": [{"source": "none", "destination": "q"}]}, "there is no exchange 'none'"),
        ({"bindings": [{"source": "amq.topic", "destination": "q"}]}, "there is no queue 'q'"),
        ({"vhosts": [{"name": "a%b"}]}, "holds no '%'"),
        ({"users": [{"name": "a", "password_hash": "x", "hashing_algorithm": "rabbit_password_hashing_md5"}]}, "md5"),
        ({"users": [{"name": "a", "password_hash": "nonsense"}]}, "hash"),
        ({"users": [{"name": "in the file", "password_hash": ""}]}, "configuration"),
        ({"parameters": [{"component": "shovel", "name": "s", "vhost": "/", "value": {}}]}, "bridges"),
        ({"parameters": [{"component": "operator_policy", "name": "p", "vhost": "/", "value": 5}]}, "not understood"),
        ({"policies": [{"name": "p", "vhost": "/", "pattern": "(", "definition": {"expires": 1}}]}, "expression"),
        ({"policies": [{"name": "p", "vhost": "/", "pattern": "", "definition": {"max-length": "x"}}]}, "max-length"),
        ({"topic_permissions": [{"user": "a", "vhost": "/", "exchange": "x"}]}, "rules"),
        ({"permissions": [{"user": "a", "vhost": "/", "configure": "", "write": "", "read": ""}]}, "does not define"),
        ({"global_parameters": [{"name": "cluster_name", "value": "x"}]}, "parameter"),
    ],
)
async def test_what_cannot_be_taken_is_a_sentence(rig, file, why):
    for dry_run in (True, False):
        step = await one(rig, file, dry_run=dry_run, configured=["in the file"])
        assert step.outcome == "refused"
        assert why in step.why


async def test_bindings_of_headers_keep_the_types_of_their_values(rig):
    wanted = {"x-match": "all", "n": 5, "b": True, "t": "5", "in": {"a": [1, "x"]}, "there": None}
    binding = {"source": "amq.headers", "destination": "q", "arguments": wanted}
    for outcome in ("made", "kept"):
        report = await run(rig, {"queues": [QUEUE], "bindings": [binding]})
        assert set(outcomes(report).values()) == {outcome}
    await rig.restart()
    assert rig.queues.registry.queues["q"].definition.bindings[0].arguments == wanted
    typed = {"n": 5, "b": True, "in": {"a": [1, "x"]}, "there": b"x"}
    for values, count in ((typed, 1), ({**typed, "n": "5"}, 0), ({**typed, "b": 1}, 0), ({**typed, "in": {}}, 0)):
        native = {"amqp": {"properties": b"", "typed": values}}
        found = await rig.publish("amq.headers", "", b"", properties=(("t", "5"),), native=native)
        assert len(found) == count


@pytest.mark.parametrize("name", ["a%b", "%2F", "%252E.x", "\x1b[2J", "ü/+#*"])
async def test_exchanges_and_queues_of_any_name_are_taken(rig, name):
    exchange = {"name": name, "type": "topic"}
    binding = {"source": name, "destination": name, "routing_key": "k.#"}
    for outcome in ("made", "kept"):
        report = await run(rig, {"queues": [QUEUE | {"name": name}], "exchanges": [exchange], "bindings": [binding]})
        assert set(outcomes(report).values()) == {outcome}
    assert await rig.publish(name, "k.1", b"")
    assert await rig.publish("", name, b"")
    assert (await rig.declare(rig.conn(), name, passive=True)).messages == 2


async def test_a_queue_that_is_there_otherwise_stays(rig):
    await rig.declare(rig.conn(), "q", durable=True, arguments={"x-max-length": 3})
    step = await one(rig, {"queues": [QUEUE | {"arguments": {"x-max-length": 4}}]})
    assert step.outcome == "refused"
    assert "inequivalent arg 'x-max-length' for queue 'q' in vhost '/'" in step.why
    assert rig.queues.registry.queues["q"].rules.max_length == 3


async def test_a_bad_permission_gives_nothing(rig):
    said = {"user": "a", "vhost": "/", "configure": "(", "write": ".*", "read": ".*"}
    report = await run(rig, {"users": [{"name": "a", "password_hash": ""}], "permissions": [said]})
    assert "no regular expression" in whys(report)["user 'a'"]
    assert rig.controller.user("a") is None


async def test_another_password_of_the_file_is_taken_and_one_that_was_set_here_stays(rig):
    hashes = [user["password_hash"] for user in msgspec.json.decode(REAL)["users"]]
    for hashed in hashes[:2]:
        assert (await one(rig, {"users": [{"name": "a", "password_hash": hashed}]})).outcome == "made"
    assert rig.controller.user("a").password.endswith(hashes[1])
    await rig.controller.do(SetUser(user=User(name="a", password="$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$aGFzaA")))
    assert (await one(rig, {"users": [{"name": "a", "password_hash": hashes[0]}]})).outcome == "refused"
