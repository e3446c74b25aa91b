"""Exchanges and queues of any name are declared, bound, published to, kept and deleted as those of plain names."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.domain.access_names import VhostPermission, names_of
from gateway.domain.address import check_address
from gateway.domain.vhosts import in_vhost
from gateway.port.queues import (
    BindExchange,
    BindQueue,
    DeclareExchange,
    DeleteExchange,
    DeleteQueue,
    GetMessage,
    address_of,
    exchange_root,
    exchange_root_of,
    routing_of,
)
from tests.support.gateway.queues_rig import QueuesRig, opened_queues
from tests.support.process.examples import examples

BYTES_MAX = 255  # of a short string
WORDS_MAX = 100  # of a name: the levels of an address are limited

names = (
    (st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.text("%2F5Eab./+#*$\0\n", min_size=1))
    .filter(lambda name: len(name.encode()) <= BYTES_MAX and name.count(".") < WORDS_MAX)
    .filter(lambda name: not name.startswith(("amq.", "$share/")))
)
vhosts = st.sampled_from(["/", "shop", "a/b"])


@given(vhosts, names, names | st.just(""))
@example("/", "%2F", "%2E")
@example("/", "a%2Eb", "k")
@example("shop", "%252F.%", "k")
def test_an_address_says_which_exchange_and_key_it_is_for(vhost, exchange, key):
    inside = in_vhost(vhost, exchange)
    address = check_address(address_of(inside, key))
    assert routing_of(address) == (inside, key)
    assert exchange_root_of(address) == exchange_root(inside)


@given(vhosts, names, names)
@example("/", "a.b", "a%2Eb")
@example("/", "a/b", "a%2Fb")
def test_two_exchanges_have_two_addresses(vhost, one, other):
    assert (exchange_root(in_vhost(vhost, one)) == exchange_root(in_vhost(vhost, other))) == (one == other)


@given(vhosts, names)
@example("/", "a%2Fb")
def test_permissions_are_found_in_the_name_itself(vhost, name):
    levels = address_of(in_vhost(vhost, name), "k").split("/")
    said = [VhostPermission(vhost=vhost, write="^" + "".join(rf"\U{ord(c):08x}" for c in name) + r"\Z")]
    assert any(clause.matches(levels) for clause in names_of(said, "publish", "u"))
    other = address_of(in_vhost(vhost, f"{name}%"), "k").split("/")
    assert not any(clause.matches(other) for clause in names_of(said, "publish", "u"))


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(names, min_size=3, max_size=3, unique=True), vhosts)
@example(["%2F", "/", "%252F"], "/")
@example(["a%2Eb", "a.b", "a/b"], "shop")
@example(["\0", "%00", "\x1b[2J\n"], "/")
def test_things_of_any_names_work(three, vhost):
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(use(Path(directory), [in_vhost(vhost, name) for name in three]))


async def use(directory: Path, three: list[str]) -> None:
    async with opened_queues(directory, "$vhost") as rig:
        for vhost in ("shop", "a/b"):
            await rig.queues.registry.make_vhost(vhost)
        await declare_all(rig, three)
        await rig.restart()
        await publish_to_all(rig, three)
        await delete_all(rig, three)


async def declare_all(rig: QueuesRig, three: list[str]) -> None:
    """Declares an exchange and a queue of each name; what comes to the first exchange goes to the second, too."""
    conn = rig.conn()
    for name in three:
        await rig.request(conn, DeclareExchange(name=name, kind="direct", durable=True))
        await rig.declare(conn, name, durable=True)
        await rig.request(conn, BindQueue(queue=name, exchange=name, routing_key="k%"))
    await rig.request(conn, BindExchange(source=three[0], destination=three[1], routing_key="k%"))


async def publish_to_all(rig: QueuesRig, three: list[str]) -> None:
    for at, count in enumerate((2, 1, 1)):
        assert len(await rig.publish(three[at], "k%", three[at].encode())) == count
        assert await rig.publish(three[at], "k%25", b"") == []
    for at, sources in enumerate(([0], [0, 1], [2])):
        for source in sources:
            got = await rig.request(rig.conn(), GetMessage(queue=three[at], settle=True))
            assert got.leased.messages[0].body == three[source].encode()
        assert await rig.request(rig.conn(), GetMessage(queue=three[at])) is None


async def delete_all(rig: QueuesRig, three: list[str]) -> None:
    conn = rig.conn()
    for name in three:
        await rig.request(conn, DeleteExchange(name=name))
        await rig.request(conn, DeleteQueue(name=name))
    await rig.restart()
    assert not rig.queues.registry.queues
    assert not any(name in {one.name for one in rig.queues.registry.exchanges} for name in three)
