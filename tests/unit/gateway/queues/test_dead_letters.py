"""Dead letters: the account they carry, the frame they are stored in, and what happens when the store refuses."""

import asyncio
from types import SimpleNamespace

import pytest
from pamqp.commands import Basic

from adapters.amqp.codec.properties import properties_of
from adapters.amqp.codec.wire import read_table, write_table
from gateway.port.adapter import Disposition, SettleLeased
from gateway.port.queues import BindQueue, DeclareExchange, GetMessage
from gateway.publishing.moving import Mover
from gateway.queues.dead_letters import DeadLetters
from gateway.queues.leaving.deaths import DEATHS_COUNT_MAX, dead_letter, is_cycle, known_deaths
from gateway.queues.leaving.policies import PolicyConfig, StoredPolicy
from gateway.queues.leaving.reading import Letter
from gateway.queues.leaving.upkeep import OWNER
from store.api.log import Appended
from store.api.message import Message
from store.base.errors import LeaseLost, StoreOverloaded
from store.format.frame import ROW, Position
from store.format.records import LEASES_QUEUE
from tests.support.gateway.queues_rig import opened_queues, settle

pytestmark = pytest.mark.anyio

NOW_MS = 1_700_000_000_000


@pytest.fixture
async def rig(tmp_path):
    async with opened_queues(tmp_path, queues=2) as rig:
        yield rig


async def source(rig, name="q", **arguments):
    await rig.declare(rig.conn(), "dead")
    said = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    said |= {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    await rig.declare(rig.conn(), name, arguments=said)


async def waiting(rig, queue):
    return (await rig.declare(rig.conn(), queue, passive=True)).messages


def died(message, reason="expired", queue="q", **options):
    options = {"exchange": "", "routing_key": None, "now_ms": NOW_MS, **options}
    return dead_letter(message, queue=queue, reason=reason, **options)


# ---- the account


@pytest.mark.parametrize(
    ("queue", "deaths", "circle"),
    [
        ("q", [], False),
        ("q", [("other", "expired")], False),
        ("q", [("q", "expired")], True),
        ("q", [("q", "rejected")], False),
        ("q", [("other", "expired"), ("q", "maxlen")], True),
        ("q", [("other", "rejected"), ("q", "expired")], False),
        ("q", [("other", "expired"), ("q", "expired"), ("other", "rejected")], True),
    ],
)
def test_a_circle_is_one_that_nobody_has_rejected_in(queue, deaths, circle):
    account = [{"queue": name, "reason": reason} for name, reason in deaths]
    assert is_cycle(queue, account) is circle


def test_an_account_has_a_limit_and_forgets_the_oldest():
    message = Message("$amqp//k")
    for n in range(DEATHS_COUNT_MAX + 5):
        message = died(message, queue=f"q{n}")
    account = known_deaths(message.native["amqp"]["deaths"])
    assert [one["queue"] for one in account] == [f"q{n}" for n in range(DEATHS_COUNT_MAX + 4, 4, -1)]
    assert dict(message.properties)["x-first-death-queue"] == "q0"


@pytest.mark.parametrize("number", [(1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_an_account_with_numbers_that_no_header_holds_ends_no_dead_letter(number):
    """A client may publish one, by a timestamp, which has no sign."""
    said = [{"queue": "q", "reason": "rejected", "count": number}, {"queue": "p", "reason": "maxlen", "time": number}]
    letter = died(Message("$amqp//k", native={"amqp": {"deaths": said}}), queue="q", reason="rejected")
    (death,) = _headers(letter)["x-death"]
    assert (death["queue"], death["count"]) == ("q", 1)
    assert read_table(write_table({"n": number}), 0)[0] == {"n": number}


def test_a_dead_letter_expires_no_more_and_is_not_retained():
    message = Message("a/b", b"x", expires_at_ms=5, deliver_at_ms=4, retain=True, key="k", properties=(("p", "1"),))
    letter = died(message, exchange="dlx")
    assert (letter.address, letter.body, letter.key) == ("$amqp/dlx/a/b", b"x", "k")
    assert (letter.expires_at_ms, letter.deliver_at_ms, letter.retain) == (None, None, False)
    assert letter.properties[0] == ("p", "1")


def test_what_came_by_another_protocol_has_the_headers_too():
    letter = died(Message("a/b", properties=(("p", "1"),), protocol="mqtt"), routing_key="k")
    headers = _headers(letter)
    (death,) = headers["x-death"]
    assert death == {
        "count": 1,
        "reason": "expired",
        "queue": "q",
        "time": NOW_MS // 1000,
        "exchange": "amq.topic",
        "routing-keys": ["a.b"],
    }
    assert (headers["x-first-death-exchange"], headers["p"]) == ("amq.topic", "1")


def _headers(message):
    raw = properties_of(message, now_ms=NOW_MS)
    properties = Basic.Properties()
    properties.unmarshal(int.from_bytes(raw[:2], "big"), raw[2:])
    assert properties.expiration is None
    headers = dict(properties.headers)
    for death in headers["x-death"]:
        death["time"] = int(death["time"].timestamp())
    return headers


# ---- moving


async def test_a_dead_letter_and_the_settlement_of_its_source_are_one_frame(rig):
    await source(rig)
    conn = rig.conn()
    await rig.publish("", "q", b"1", b"2")
    await rig.consume(conn, "q")
    await conn.has(2)
    before = rig.store.log.confirmed
    await rig.settle(conn, "q", "reject", *[offset for _, offset, _ in conn.taken])
    frames, _ = await rig.store.log.scan(Position(before, 0), None, max_bytes=1 << 20)
    (frame,) = [frame for frame in frames if frame.start >= before]
    queues = [int(queue) for queue in frame.rows["queue"]]
    dead = rig.queues.registry.queues["dead"].number
    assert (queues.count(dead), queues.count(LEASES_QUEUE)) == (2, 1)
    assert await waiting(rig, "dead") == 2


@pytest.mark.parametrize("error", [StoreOverloaded("no room"), LeaseLost("leased to somebody else")])
async def test_what_the_store_refuses_to_move_is_leased_again(rig, monkeypatch, error):
    await source(rig)
    conn = rig.conn()
    await rig.publish("", "q", b"1")
    await rig.consume(conn, "q")
    await conn.has(1)

    async def refuse(*_args, **_options):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(rig.store.leases, "forward", refuse)
        if isinstance(error, LeaseLost):
            await rig.settle(conn, "q", "reject", 0)
        else:
            with pytest.raises(StoreOverloaded):
                await rig.settle(conn, "q", "reject", 0)
    assert await waiting(rig, "dead") == 0
    rig.queues.wake()
    assert await conn.has(2) == [b"1", b"1"]


async def test_consumed_messages_do_not_wait_for_dead_letters_of_the_same_read(rig):
    await source(rig)
    await rig.publish("", "q", b"consumed", b"rejected")
    conn = rig.conn()
    await rig.consume(conn, "q")
    await conn.has(2)
    (_, consumed, _), (_, rejected, _) = conn.taken
    dispositions = [
        Disposition(offsets=[rejected], outcome="reject"),
        Disposition(offsets=[consumed], outcome="ack"),
    ]
    settling = asyncio.ensure_future(settle(rig.queues, conn, SettleLeased(queue="q", dispositions=dispositions)))
    for _ in range(3):  # until both have begun
        await asyncio.sleep(0)
    await rig.lose(conn)
    await settling
    assert await waiting(rig, "q") == 0
    assert await waiting(rig, "dead") == 1


async def test_a_missing_topic_is_made_for_dead_letters(rig):
    await rig.declare(rig.conn(), "q", arguments={"x-dead-letter-exchange": "amq.topic"})
    dead = await rig.declare(rig.conn(), "dead")
    await rig.request(rig.conn(), BindQueue(queue=dead.name, exchange="amq.topic", routing_key="fresh.#"))
    await rig.request(rig.conn(), DeclareExchange(name="in", kind="fanout"))
    await rig.request(rig.conn(), BindQueue(queue="q", exchange="in"))
    conn = rig.conn()
    await rig.publish("in", "fresh.a", b"1")
    await rig.consume(conn, "q")
    await conn.has(1)
    await rig.settle(conn, "q", "reject", 0)
    assert rig.controller.topic("fresh") is not None
    assert await waiting(rig, "dead") == 1


async def test_the_keeper_moves_what_has_expired_and_says_when_to_look_again(rig):
    await source(rig, message_ttl=50)
    rig.now_ms = NOW_MS
    await rig.publish("", "q", b"1", expires_at_ms=NOW_MS + 10)
    number = rig.queues.registry.queues["q"].number
    stored_at = (await rig.store.queues.fetch(number, 0, max_bytes=9)).frames[0].header.stored_at_ms
    rig.now_ms = 0
    assert await rig.queues.keeper.look_after(number) == min(NOW_MS + 10, stored_at + 50)
    rig.now_ms = stored_at + 50
    assert await rig.queues.keeper.look_after(number) is None
    assert (await waiting(rig, "q"), await waiting(rig, "dead")) == (0, 1)


class Elsewhere:
    """A store whose queue of dead letters lies in another group than the source."""

    def __init__(self, fails):
        self.calls = []
        self.fails = fails
        self.log = SimpleNamespace(append=self.append)
        self.leases = SimpleNamespace(settle=self.settle, forward=self.forward, requeue=self.requeue)

    def append(self, frame, done):
        self.calls.append(("append", [row[0] for row in ROW.iter_unpack(frame.rows)]))
        done(StoreOverloaded("no room") if self.fails else Appended(0))

    async def settle(self, queue, owner, offsets):
        self.calls.append(("settle", list(offsets)))

    async def forward(self, queue, owner, offsets, rows, payload):
        self.calls.append(("forward", [row[0] for row in ROW.iter_unpack(rows)]))

    def requeue(self, queue, owner, offsets, *, delivered):
        self.calls.append(("requeue", list(offsets)))


@pytest.mark.parametrize("fails", [False, True])
async def test_another_group_has_its_dead_letter_before_the_source_is_settled(rig, fails):
    await source(rig)
    queues = rig.queues.registry
    dead, one = queues.queues["dead"], queues.queues["q"]
    store = Elsewhere(fails)
    mover = Mover(
        store=store,
        controller=rig.controller,
        router=rig.router,
        appended=lambda _numbers: None,
        creates_topics=True,
    )
    letters = DeadLetters(mover, bodies=rig.queues.bodies, queue_of=queues.by_number.get, now_ms=lambda: NOW_MS)
    topic = rig.router.resolve("$amqp//dead").queues
    rig.router.groups[dead.number] = 1
    letter = Letter(0, Message("$amqp//q", b"1"))
    if fails:
        with pytest.raises(StoreOverloaded):
            await letters.dead_letter(one, 1, [letter], "expired")
        assert store.calls == [("append", [dead.number]), ("requeue", [0])]
    else:
        await letters.dead_letter(one, 1, [letter], "expired")
        (append, forward) = store.calls
        assert append == ("append", [dead.number])
        assert (forward[0], set(forward[1]) <= set(topic)) == ("forward", True)


async def test_what_is_moved_again_is_not_stored_again_in_groups_that_have_it(rig, monkeypatch):
    """Two groups have a queue of dead letters each; the second refuses at first, and then the source's own."""
    await source(rig)
    await rig.declare(rig.conn(), "more")
    await rig.request(rig.conn(), DeclareExchange(name="x", kind="fanout"))
    for queue in ("dead", "more"):
        await rig.request(rig.conn(), BindQueue(queue=queue, exchange="x"))
    await rig.declare(rig.conn(), "p", arguments={"x-dead-letter-exchange": "x"})
    await rig.publish("", "p", b"1", expires_at_ms=500)
    queues = rig.queues.registry.queues
    for address in ("$amqp/x/p", "$amqp//dead"):
        rig.router.resolve(address, inside=True)
    rig.router.groups[queues["dead"].number], rig.router.groups[queues["more"].number] = 1, 2
    append, forward = rig.store.log.append, rig.store.leases.forward

    def refuses(frame, done):
        if any(row[0] == queues["more"].number for row in ROW.iter_unpack(frame.rows)):
            done(StoreOverloaded("no room"))
        else:
            append(frame, done)

    async def full(*_, **__):
        raise StoreOverloaded("no room")

    async def counts():
        return [await waiting(rig, queue) for queue in ("dead", "more")]

    monkeypatch.setattr(rig.store.log, "append", refuses)
    await refused_looks(rig, "p")
    assert await counts() == [1, 0]
    monkeypatch.setattr(rig.store.log, "append", append)
    monkeypatch.setattr(rig.store.leases, "forward", full)
    await refused_looks(rig, "p")
    assert await counts() == [1, 1]
    monkeypatch.setattr(rig.store.leases, "forward", forward)
    await rig.queues.keeper.look_after(queues["p"].number)
    assert await counts() == [1, 1]
    assert await rig.store.leases.unsettled(queues["p"].number) == 0


async def refused_looks(rig, queue):
    for _ in range(2):
        with pytest.raises(StoreOverloaded):
            await rig.queues.keeper.look_after(rig.queues.registry.queues[queue].number)


# ---- expiry around what consumers hold


@pytest.mark.parametrize("held_until_ms", [2_000, 9_000])
async def test_what_expires_behind_held_messages_is_looked_at_in_its_time(rig, held_until_ms):
    """A consumer holds a message between those that expire: neither its time nor its place counts."""
    await rig.declare(rig.conn(), "q")
    conn = rig.conn()
    await rig.publish("", "q", b"0", b"1", expires_at_ms=2_000)
    await rig.publish("", "q", b"2", expires_at_ms=held_until_ms)
    await rig.publish("", "q", b"3", expires_at_ms=2_000)
    await rig.publish("", "q", b"4", expires_at_ms=5_000)
    offsets = []
    for _ in range(3):
        offsets += (await rig.request(conn, GetMessage(queue="q"))).leased.offsets
    await rig.settle(conn, "q", "requeue", *offsets[:2])
    rig.now_ms = 3_000
    queue = rig.queues.registry.queues["q"]
    assert await queue.pump.head.trim(OWNER) == 5_000
    assert await rig.store.leases.waiting(queue.number) == 1


# ---- order


async def test_messages_become_dead_letters_in_the_order_of_their_rejection(rig):
    await source(rig)
    await rig.publish("", "q", *(b"%d" % number for number in range(5)))
    conn = rig.conn()
    await rig.consume(conn, "q")
    await conn.has(5)
    await rig.settle(conn, "q", "reject", *(conn.taken[number][1] for number in (3, 0, 4)))
    await rig.settle(conn, "q", "reject", *(conn.taken[number][1] for number in (2, 1)))
    dead = rig.conn()
    await rig.consume(dead, "dead")
    assert await dead.has(5) == [b"3", b"0", b"4", b"2", b"1"]


async def test_a_rejection_that_is_read_slowly_is_not_overtaken_by_the_next_ones(rig, monkeypatch):
    await source(rig)
    await rig.publish("", "q", *(b"%d" % number for number in range(6)))
    conn, other = rig.conn(credit=4), rig.conn()
    await rig.consume(conn, "q")
    await conn.has(4)
    await rig.consume(other, "q")
    await other.has(2)
    fetch, forward = rig.store.queues.fetch, rig.store.leases.forward
    begun, go_on, moved = asyncio.Event(), asyncio.Event(), []

    async def slow(number, offset, **options):
        if offset == conn.taken[0][1]:
            begun.set()
            await go_on.wait()
        return await fetch(number, offset, **options)

    async def noted(queue, owner, offsets, *args, **options):
        moved.append(list(offsets))
        await forward(queue, owner, offsets, *args, **options)

    monkeypatch.setattr(rig.store.queues, "fetch", slow)
    monkeypatch.setattr(rig.store.leases, "forward", noted)
    first, *later = [rig.settle(conn, "q", "reject", offset, number=conn.number) for _, offset, _ in conn.taken]
    rejections = [asyncio.create_task(first)]
    await asyncio.wait_for(begun.wait(), 60)
    rejections += [asyncio.create_task(one) for one in later]
    await rig.settle(other, "q", "reject", *(offset for _, offset, _ in other.taken))
    assert moved == [[4, 5]], "owners do not wait for each other"
    finished = asyncio.create_task(rig.queues.keeper.finished(conn.id))
    await asyncio.sleep(0)
    assert not finished.done()
    go_on.set()
    await asyncio.gather(*rejections, finished)
    assert moved == [[4, 5], [0], [1, 2, 3]]
    dead = rig.conn()
    await rig.consume(dead, "dead")
    assert await dead.has(6) == [b"4", b"5", b"0", b"1", b"2", b"3"]


async def test_of_rejections_that_fail_all_come_back(rig, monkeypatch):
    await source(rig)
    await rig.publish("", "q", b"1", b"2", b"3")
    conn = rig.conn()
    await rig.consume(conn, "q")
    await conn.has(3)
    forward, begun, go_on = rig.store.leases.forward, asyncio.Event(), asyncio.Event()

    async def once(*args, **options):
        if begun.is_set() and not go_on.is_set():
            go_on.set()
            raise StoreOverloaded("full")
        begun.set()
        await forward(*args, **options)

    monkeypatch.setattr(rig.store.leases, "forward", once)
    first, *later = [rig.settle(conn, "q", "reject", offset, number=conn.number) for _, offset, _ in conn.taken]
    rejections = [asyncio.create_task(first)]
    await asyncio.wait_for(begun.wait(), 60)
    found = await asyncio.gather(*rejections, *later, return_exceptions=True)
    assert [type(one) for one in found] == [type(None), StoreOverloaded, StoreOverloaded]
    rig.queues.wake()
    assert await conn.has(5) == [b"1", b"2", b"3", b"2", b"3"]


async def test_expired_messages_leave_in_their_order_whoever_finds_them(rig, monkeypatch):
    await source(rig, message_ttl=100)
    queue = rig.queues.registry.queues["q"]
    letters = [Letter(nth, Message("$amqp//q", b"%d" % nth)) for nth in range(2)]
    go_on, moved = asyncio.Event(), []

    async def settling(number, owner, offsets, *args, **options):
        if offsets == [0]:
            await go_on.wait()
        moved.extend(offsets)

    monkeypatch.setattr(rig.store.leases, "forward", settling)
    tasks = [
        asyncio.create_task(rig.queues.keeper.dead_letter(queue.number, owner, [letter], "expired"))
        for owner, letter in enumerate(letters, 1)
    ]
    for _ in range(10):
        await asyncio.sleep(0)
    assert not moved
    go_on.set()
    await asyncio.gather(*tasks)
    assert moved == [0, 1]


async def test_a_policy_cleared_while_dead_letters_wait_drops_them_and_ends_nothing(rig, monkeypatch):
    await rig.declare(rig.conn(), "dead")
    await rig.declare(rig.conn(), "q")
    queue = rig.queues.registry.queues["q"]
    said = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
    policy = StoredPolicy(policy=PolicyConfig(name="p", pattern="q", apply_to="queues", definition=said))
    await rig.queues.registry.set_policy(policy)
    await rig.publish("", "q", b"0", b"1")
    conn = rig.conn()
    await rig.consume(conn, "q")
    await conn.has(2)
    forward, begun, go_on = rig.store.leases.forward, asyncio.Event(), asyncio.Event()

    async def slow(*args, **options):
        begun.set()
        await go_on.wait()
        await forward(*args, **options)

    monkeypatch.setattr(rig.store.leases, "forward", slow)
    letters = [Letter(offset, Message("$amqp//q", b"expired")) for _, offset, _ in conn.taken]
    tasks = [
        asyncio.create_task(rig.queues.keeper.dead_letter(queue.number, conn.id, [letter], "expired"))
        for letter in letters
    ]
    await asyncio.wait_for(begun.wait(), 60)
    await rig.queues.registry.clear_policy(policy.place)
    go_on.set()
    await asyncio.gather(*tasks)
    assert (await waiting(rig, "dead"), await waiting(rig, "q")) == (1, 0)
    assert (rig.queues.keeper.dropped, conn.cancelled) == (1, [])
