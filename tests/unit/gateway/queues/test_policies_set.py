"""Policies that are set while queues are in use: what is there gets their rules at once, and loses them."""

import itertools
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import in_vhost
from gateway.port.queues import DeclareExchange, GetMessage
from gateway.queues.leaving import policies as limits
from gateway.queues.leaving.policies import (
    Policies,
    PolicyConfig,
    PolicyPlace,
    QueuesConfig,
    StoredPolicy,
    check_stored,
)
from gateway.queues.queues import NamedQueues
from store.base.errors import StoreFull
from tests.support.gateway.queues_rig import opened_queues
from tests.support.process.examples import examples

pytestmark = pytest.mark.anyio

KEYS = ("message_ttl", "max_length", "delivery_limit")


@pytest.fixture
async def rig(tmp_path):
    async with opened_queues(tmp_path, "$vhost") as rig:
        yield rig


def made(pattern=".*", *, name="p", vhost="/", apply_to="all", priority=0, operator=False, **definition):
    definition = {key.replace("_", "-"): value for key, value in definition.items()}
    policy = PolicyConfig(
        name=name, vhost=vhost, pattern=pattern, apply_to=apply_to, priority=priority, definition=definition
    )
    return check_stored(StoredPolicy(policy=policy, operator=operator))


async def put(rig, *arguments, **named):
    policy = made(*arguments, **named)
    await rig.queues.registry.set_policy(policy)
    return policy.place


async def refused(work):
    with pytest.raises(Refusal) as error:
        await work
    return error.value


def rules(rig, name):
    return rig.queues.registry.queues[name].rules


async def waiting(rig, name):
    return (await rig.declare(rig.conn(), name, passive=True)).messages


async def test_a_queue_that_is_there_gets_the_limit_and_loses_it(rig):
    await rig.declare(rig.conn(), "q", durable=True)
    await rig.publish("", "q", b"1", b"2", b"3")
    place = await put(rig, "^q$", max_length=2)
    assert await waiting(rig, "q") == 2
    await put(rig, "^q$", max_length=1)  # in the place of the other
    assert await waiting(rig, "q") == 1
    await rig.restart()
    assert rules(rig, "q").max_length == 1
    await rig.queues.registry.clear_policy(place)
    await rig.publish("", "q", b"4", b"5")
    assert await waiting(rig, "q") == 3
    await rig.restart()
    assert not rules(rig, "q").watched


async def test_expired_messages_of_a_queue_that_is_there_go_where_the_policy_says(rig):
    await rig.declare(rig.conn(), "q")
    await rig.declare(rig.conn(), "dead")
    await rig.publish("", "q", b"1", b"2")
    await put(rig, "^q$", message_ttl=5, dead_letter_exchange="", dead_letter_routing_key="dead")
    rig.now_ms = 1 << 50
    assert await waiting(rig, "q") == 0
    assert await waiting(rig, "dead") == 2
    message = (await rig.request(rig.conn(), GetMessage(queue="dead"))).leased.messages[0]
    assert message.body == b"1"


async def test_an_unused_queue_goes_when_a_policy_says_so(rig):
    await rig.declare(rig.conn(), "q")
    number = rig.queues.registry.queues["q"].number
    rig.now_ms += 100_000
    await put(rig, "^q$", expires=1_000)
    await rig.queues.keeper.look_after(number)
    assert "q" in rig.queues.registry.queues  # its time begins with the policy
    rig.now_ms += 1_001
    await rig.queues.keeper.look_after(number)
    assert "q" not in rig.queues.registry.queues


async def test_a_full_queue_refuses_as_long_as_the_policy_is_there(rig):
    await rig.declare(rig.conn(), "q")
    queue = rig.queues.registry.queues["q"]
    await rig.publish("", "q", b"1")
    place = await put(rig, "^q$", max_length=1, overflow="reject-publish")
    await rig.queues.keeper.look_after(queue.number)
    gate = rig.router.gates[queue.number]
    message = (await rig.request(rig.conn(), GetMessage(queue="q"))).leased.messages[0]
    await rig.publish("", "q", b"2")
    await rig.queues.keeper.look_after(queue.number)
    assert not gate.admit(message)
    await rig.queues.registry.clear_policy(place)
    assert all(gate.admit(message) for _ in range(3))
    await put(rig, "^q$", max_length=5, overflow="reject-publish")
    assert rig.router.gates[queue.number] is gate  # a message in flight through it arrives there
    gate.landed(gate.admitted)
    await rig.queues.keeper.look_after(queue.number)
    assert [gate.admit(message) for _ in range(5)] == [True] * 4 + [False]


def kept(rig, name):
    config = rig.store.queues.config(rig.queues.registry.queues[name].number)
    return config.retention_ms, config.retention_bytes


async def test_a_stream_is_kept_as_long_as_the_policy_says_whatever_its_arguments_are(rig):
    arguments = {"x-queue-type": "stream", "x-max-age": "1h"}
    await rig.declare(rig.conn(), "s", durable=True, arguments=arguments)
    await rig.declare(rig.conn(), "q", durable=True)
    place = await put(rig, "^.$", max_age="2h", max_length_bytes=5_000)
    await put(rig, "^s", name="cap", operator=True, max_length_bytes=4_000)
    assert kept(rig, "s") == (7_200_000, 4_000)  # in RabbitMQ, too, a stream's policy comes before its arguments
    assert not rules(rig, "q").watched
    await rig.declare(rig.conn(), "t", durable=True, arguments={"x-queue-type": "stream"})
    assert kept(rig, "t") == (7_200_000, 5_000)
    await rig.restart()
    assert kept(rig, "s") == (7_200_000, 4_000)
    await rig.queues.registry.clear_policy(place)
    assert (kept(rig, "s"), kept(rig, "t")) == ((3_600_000, 4_000), (None, None))


async def test_streams_follow_their_policy_when_the_store_takes_it(rig, monkeypatch):
    await rig.declare(rig.conn(), "s", durable=True, arguments={"x-queue-type": "stream"})
    with monkeypatch.context() as refusing:

        async def refuse(configs):
            raise StoreFull("no room")

        refusing.setattr(rig.store.queues, "configure", refuse)
        await put(rig, "^s$", max_age="1h")
        assert not await rig.queues.registry.finish()
    assert kept(rig, "s") == (None, None)
    assert await rig.queues.registry.finish()
    assert kept(rig, "s") == (3_600_000, None)


async def test_an_exchange_that_is_there_gets_an_alternate(rig):
    await rig.request(rig.conn(), DeclareExchange(name="e", kind="direct"))
    await rig.declare(rig.conn(), "q")
    place = await put(rig, "^e$", apply_to="exchanges", alternate_exchange="")
    assert await rig.publish("e", "q", b"1")
    await rig.queues.registry.clear_policy(place)
    assert not await rig.publish("e", "q", b"1")


async def test_a_policy_is_for_its_vhost_alone_and_only_where_there_is_one(rig):
    await rig.queues.registry.make_vhost("shop")
    for name in ("q", in_vhost("shop", "q")):
        await rig.declare(rig.conn(), name)
    await put(rig, "^q$", vhost="shop", max_length=1)
    assert (rules(rig, "q").max_length, rules(rig, in_vhost("shop", "q")).max_length) == (None, 1)
    refusal = await refused(put(rig, vhost="none", max_length=1))
    assert (refusal.cause, refusal.detail) == (Cause.NOT_FOUND, "there is no virtual host 'none'")


async def test_an_operators_policy_and_a_users_of_one_name_are_two(rig):
    await rig.declare(rig.conn(), "q")
    await put(rig, max_length=5)
    place = await put(rig, max_length=3, operator=True)
    assert rules(rig, "q").max_length == 3
    applied = rig.queues.registry.policies.applied("q", {})
    assert [one.definition["max-length"] for one in applied] == [5, 3]
    assert applied.effective == {"max-length": 3}
    await rig.queues.registry.clear_policy(place)
    assert rules(rig, "q").max_length == 5


async def test_what_the_configuration_says_is_changed_there(rig):
    configured = made(max_length=7).policy
    policies = Policies(QueuesConfig(policies=(configured,)))
    rig.queues = NamedQueues(rig.store, rig.controller, rig.router, policies=policies, now_ms=lambda: rig.now_ms)
    await rig.queues.load()
    await rig.declare(rig.conn(), "q")
    for work in (put(rig, max_length=1), rig.queues.registry.clear_policy(PolicyPlace("/", "p", False))):
        refusal = await refused(work)
        assert (refusal.cause, "configuration" in refusal.detail) == (Cause.CONFLICT, True)
    await rig.queues._registry._settings.put_policy(made(max_length=1))  # set before the configuration said it
    await rig.queues.registry._take_stock()
    assert rules(rig, "q").max_length == 7
    await rig.queues.registry.clear_policy(PolicyPlace("/", "p", False))  # that one can be removed
    assert rules(rig, "q").max_length == 7


async def test_there_is_a_limit_and_what_is_not_there_is_not_removed(rig, monkeypatch):
    monkeypatch.setattr("gateway.queues.topology.settings_registry.POLICIES_COUNT_MAX", 2)
    for name in ("a", "b", "a"):
        await put(rig, name=name, max_length=1)
    assert (await refused(put(rig, name="c", max_length=1))).cause is Cause.QUOTA
    refusal = await refused(rig.queues.registry.clear_policy(PolicyPlace("/", "c", False)))
    assert (refusal.cause, refusal.detail) == (Cause.NOT_FOUND, "there is no policy 'c' in vhost '/'")


async def test_a_stored_policy_that_is_not_understood_has_no_effect(rig, caplog):
    await put(rig, max_length=3)
    await rig.store.keys.put("amqp/policies/users/x", b"\x00")
    await rig.queues._registry._settings.put_policy(
        StoredPolicy(policy=PolicyConfig(name="later", pattern="(", definition={"max-length": 1}))
    )
    await rig.restart()
    await rig.declare(rig.conn(), "q")
    assert rules(rig, "q").max_length == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"pattern": "("}, "pattern: '(' is no regular expression"),
        ({"priority": 1 << 70}, "priority is a number"),
        ({"name": ""}, "has a name"),
        ({"name": "n" * (limits.NAME_CHARS_MAX + 1)}, "at most 255 letters"),
        ({"max_age": "1w"}, "max-age is a number and a unit"),
        ({"max_age": "1h", "operator": True}, "'max-age' is not among"),
        ({"max_priority": 5}, "'max-priority' is not among"),
        ({"operator": True, "overflow": "drop-head"}, "'overflow' is not among"),
        ({"message_ttl": -1}, "x-message-ttl"),
        ({}, "definition is empty"),
    ],
)
def test_a_mistake_is_named(wrong, said):
    with pytest.raises(ValueError, match=r"\w") as error:
        made(**wrong, **({"max_length": 1} if {"pattern", "name", "priority"} & wrong.keys() else {}))
    assert said in str(error.value)


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("set"),
            st.sampled_from("abc"),
            st.sampled_from(["", "^q", "1$", "[02]"]),
            st.integers(0, 2),
            st.booleans(),
            st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3), min_size=1),
        ),
        st.tuples(st.just("clear"), st.sampled_from("abc"), st.booleans()),
        st.tuples(st.just("declare"), st.integers(0, 3), st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3))),
        st.tuples(st.just("restart")),
    ),
    max_size=12,
)


@given(steps=STEPS)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_after_any_history_each_queue_has_the_rules_that_were_set_last(rig, steps):
    told, queues, fresh = {}, {}, next(_numbers)
    for step in steps:
        match step:
            case ("set", name, pattern, priority, operator, definition):
                place = await put(rig, pattern, name=name, priority=priority, operator=operator, **definition)
                told[place] = (pattern, priority, definition)
            case ("clear", name, operator):
                place = PolicyPlace("/", name, operator)
                if told.pop(place, None) is None:
                    assert (await refused(rig.queues.registry.clear_policy(place))).cause is Cause.NOT_FOUND
                else:
                    await rig.queues.registry.clear_policy(place)
            case ("declare", number, arguments) if number not in queues:
                queues[number] = arguments
                said = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
                said["x-queue-type"] = "quorum"  # policies with a delivery limit are for no others
                await rig.declare(rig.conn(), f"q{fresh}.{number}", durable=True, arguments=said)
            case ("restart",):
                await rig.restart()
        for number, arguments in queues.items():
            name = f"q{fresh}.{number}"
            wanted = naive(name, arguments, told)
            found = rules(rig, name)
            got = {"message_ttl": found.message_ttl_ms, "max_length": found.max_length}
            assert {**got, "delivery_limit": found.delivery_limit} == wanted
    for place in told:
        await rig.queues.registry.clear_policy(place)


_numbers = itertools.count()


def naive(name, arguments, told):
    """Returns the limits that count for a queue: the smallest of the arguments, its policy and the operators'
    policy.
    """
    said = [arguments]
    for operator in (False, True):
        matching = [
            (-priority, place.name, definition)
            for place, (pattern, priority, definition) in told.items()
            if place.operator is operator and re.search(pattern, name)
        ]
        if matching:
            said.append(min(matching, key=lambda one: one[:2])[2])
    return {key: min((one[key] for one in said if key in one), default=None) for key in KEYS}
