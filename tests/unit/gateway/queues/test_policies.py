"""Policies: which one applies to a name, and what it adds to the arguments of a declaration."""

import pytest

from controller.api.commands import CreateTopic
from controller.node.local import LocalController
from gateway.domain.errors import Refusal
from gateway.queues.leaving.policies import Policies, PolicyConfig, QueuesConfig, policy_mistakes, policy_mistakes_of
from gateway.queues.leaving.rules import check_queue_arguments
from gateway.queues.queues import NamedQueues
from store.local.local import LocalStore
from tests.support.gateway.queues_rig import QueuesRig

pytestmark = pytest.mark.anyio


def policy(pattern=".*", *, name="p", apply_to="all", priority=0, **definition):
    definition = {key.replace("_", "-"): value for key, value in definition.items()}
    return PolicyConfig(name=name, pattern=pattern, apply_to=apply_to, priority=priority, definition=definition)


def rules(name, arguments, *policies, operators=()):
    return Policies(QueuesConfig(policies=policies, operator_policies=tuple(operators))).rules(name, arguments)


@pytest.mark.parametrize(
    ("arguments", "user", "operator", "ttl_ms"),
    [
        ({}, None, None, None),
        ({"x-message-ttl": 5}, None, None, 5),
        ({}, 7, None, 7),
        ({"x-message-ttl": 5}, 7, None, 5),
        ({"x-message-ttl": 9}, 7, None, 7),
        ({"x-message-ttl": 9}, 7, 3, 3),
        ({}, None, 3, 3),
        ({"x-message-ttl": 0}, 7, 3, 0),
    ],
)
def test_of_limits_the_smallest_counts(arguments, user, operator, ttl_ms):
    users = [] if user is None else [policy(message_ttl=user)]
    operators = [] if operator is None else [policy(message_ttl=operator)]
    assert rules("q", arguments, *users, operators=operators).message_ttl_ms == ttl_ms


@pytest.mark.parametrize(
    ("argument", "user", "operator", "limit"),
    [
        (-1, None, None, None),
        (None, -1, None, None),
        (-1, 3, None, 3),
        (4, -1, None, 4),
        (-1, -1, 2, 2),
        (0, -1, -1, 0),
    ],
)
def test_minus_one_is_no_delivery_limit(argument, user, operator, limit):
    arguments = {"x-queue-type": "quorum"} | ({} if argument is None else {"x-delivery-limit": argument})
    check_queue_arguments(arguments)
    users = [] if user is None else [policy(delivery_limit=user)]
    operators = [] if operator is None else [policy(delivery_limit=operator)]
    assert rules("q", arguments, *users, operators=operators).delivery_limit == limit
    for one in (*users, *operators):
        assert not list(policy_mistakes_of(one, operator=False))


def test_less_than_minus_one_is_no_limit_at_all():
    with pytest.raises(Refusal, match="x-delivery-limit"):
        check_queue_arguments({"x-delivery-limit": -2})


@pytest.mark.parametrize(
    ("apply_to", "definition", "of"),
    [
        ("all", {"max_length_bytes": 1}, "classic quorum stream"),
        ("queues", {"max_length_bytes": 1}, "classic quorum stream"),
        ("classic_queues", {"max_length_bytes": 1}, "classic"),
        ("quorum_queues", {"max_length_bytes": 1}, "quorum"),
        ("streams", {"max_length_bytes": 1}, "stream"),
        ("exchanges", {"max_length_bytes": 1}, ""),
        ("all", {"max_age": "1h"}, "stream"),
        ("queues", {"max_age": "1h", "max_length_bytes": 1}, "stream"),
        ("queues", {"max_length_bytes": 1, "overflow": "drop-head"}, "classic quorum"),
        ("streams", {"max_length": 1}, ""),
        ("all", {"max_age": "1h", "max_length": 1}, ""),
    ],
)
def test_a_policy_is_for_the_types_of_queues_that_have_all_it_says(apply_to, definition, of):
    lower = policy(name="lower", max_length_bytes=9)
    policies = Policies(QueuesConfig(policies=(lower, policy(apply_to=apply_to, priority=1, **definition))))
    for queue_type in ("classic", "quorum", "stream"):
        applied = policies.applied("q", {"x-queue-type": queue_type})
        assert applied.user is not None
        assert (applied.user is not lower) == (queue_type in of.split())
    assert policies.applied("q", {}) == policies.applied("q", {"x-queue-type": "classic"})


def test_a_policy_with_a_delivery_limit_is_not_for_classic_queues_as_in_rabbitmq():
    one = policy(delivery_limit=3, max_length=5)
    assert rules("q", {}, one).max_length is None
    assert rules("q", {"x-queue-type": "classic"}, one).delivery_limit is None
    assert rules("q", {"x-queue-type": "quorum"}, one).delivery_limit == 3


def test_the_declaration_comes_before_the_policy():
    one = policy(dead_letter_exchange="theirs", dead_letter_routing_key="k", overflow="reject-publish")
    found = rules("q", {"x-dead-letter-exchange": "ours"}, one)
    assert (found.dead_letter_exchange, found.dead_letter_key) == ("ours", "k")  # each for itself, as in RabbitMQ
    assert found.overflow == "reject-publish"
    found = rules("q", {"x-overflow": "drop-head"}, one)
    assert (found.dead_letter_exchange, found.dead_letter_key, found.overflow) == ("theirs", "k", "drop-head")


def test_the_highest_priority_that_matches_applies_alone():
    policies = [
        policy("^work", priority=1, max_length=1),
        policy("^work\\.fast", priority=2, message_ttl=2),
        policy("fast$", apply_to="exchanges", priority=3, max_length=3),
    ]
    found = rules("work.fast", {}, *policies)
    assert (found.max_length, found.message_ttl_ms) == (None, 2)
    assert rules("work.slow", {}, *policies).max_length == 1
    assert rules("other", {}, *policies).watched is False


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (policy("("), "queues.policies.p.pattern"),
        (policy(message_ttl="5"), "x-message-ttl"),
        (policy(ha_mode="all"), "'ha-mode' is not among"),
        (policy(alternate_exchange=5), "alternate-exchange"),
        (policy(dead_letter_routing_key="k"), "x-dead-letter-routing-key"),
    ],
)
def test_a_mistake_is_named(wrong, said):
    ((key, mistake),) = policy_mistakes(QueuesConfig(policies=(wrong,)))
    assert said in f"{key}: {mistake}"


def test_an_operator_sets_limits_only():
    config = QueuesConfig(operator_policies=(policy(dead_letter_exchange="x"),))
    ((key, mistake),) = policy_mistakes(config)
    assert key == "queues.operator_policies.p.definition"
    assert "'dead-letter-exchange' is not among" in mistake


async def test_policies_hold_for_queues_and_exchanges_that_match(tmp_path):
    store = await LocalStore.open(tmp_path / "store")
    controller = LocalController.open(tmp_path / "controller", now_ms=lambda: 0)
    await controller.do(CreateTopic(name="$amqp", queues=1))
    rig = QueuesRig(store, controller)
    config = QueuesConfig(
        policies=(
            policy("^short$", apply_to="queues", max_length=1),
            policy("^amq\\.direct$", apply_to="exchanges", alternate_exchange="amq.fanout"),
        )
    )
    rig.queues = NamedQueues(store, controller, rig.router, now_ms=lambda: rig.now_ms, policies=Policies(config))
    await rig.queues.load()
    await rig.declare(rig.conn(), "short")
    await rig.publish("", "short", b"1", b"2")
    assert (await rig.declare(rig.conn(), "short")).messages == 1  # a policy is no argument: nothing contradicts it
    assert rig.router._alternates == {"amq.direct": "amq.fanout"}
    await rig.queues.close()
    await controller.close()
    await store.close()
