"""Streams: what is kept, what is passed over, and who may consume."""

import pytest

from gateway.domain.errors import Cause, Refusal
from gateway.port.streams import AGE_MS_MAX, StreamRead, age_ms
from gateway.queues.streams import pump
from store.base.errors import ReplicaIncomplete
from store.format.queue_config import QueueConfig
from tests.support.gateway.queues_rig import opened_queues
from tests.support.process.waiting import until

STREAM = {"x-queue-type": "stream"}


@pytest.fixture
async def rig(tmp_path):
    async with opened_queues(tmp_path) as rig:
        yield rig


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("5s", 5_000),
        ("2m", 120_000),
        ("1h", 3_600_000),
        ("7D", 604_800_000),
        ("1M", 2_592_000_000),
        ("1Y", 31_536_000_000),
        ("0s", 0),
        ("999999999999Y", AGE_MS_MAX),
        ("", None),
        ("5", None),
        ("h", None),
        ("-1h", None),
        ("1 h", None),
        ("1w", None),
        (5, None),
        (None, None),
    ],
)
def test_intervals_have_the_units_of_rabbitmq(text, ms):
    assert age_ms(text) == ms


@pytest.mark.anyio
async def test_a_stream_is_kept_as_it_says_and_not_until_it_is_consumed(rig):
    arguments = {**STREAM, "x-max-age": "1h", "x-max-length-bytes": 5_000}
    await rig.declare(rig.conn(), "s", durable=True, arguments=arguments)
    number = rig.queues.registry.queues["s"].number
    wanted = QueueConfig(number, retention_ms=3_600_000, retention_bytes=5_000)
    assert rig.store.queues.config(number) == wanted
    await rig.restart()
    assert rig.store.queues.config(number) == wanted


@pytest.mark.anyio
async def test_nothing_is_settled_in_a_stream(rig):
    await rig.declare(rig.conn(), "s", durable=True, arguments=STREAM)
    await rig.publish("", "s", b"1", b"2", b"3")
    for how in ("ack", "reject", "requeue"):
        conn = rig.conn()
        await rig.consume(conn, "s", credit=2, limited=True, stream=StreamRead(place="first"))
        assert await conn.has(2) == [b"1", b"2"]
        await rig.settle(conn, "s", how, 0, 1, number=conn.number)
        rig.ready(conn, 2, named=True)
        assert await conn.has(3) == [b"1", b"2", b"3"]
        await rig.lose(conn)


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_filter_passes_over_what_is_not_wanted(rig):
    await rig.declare(rig.conn(), "s", durable=True, arguments=STREAM)
    for number in range(600):
        await rig.publish("", "s", b"%d" % number, properties=(("x-stream-filter-value", f"{number % 300}"),))
    conn = rig.conn()
    await rig.consume(conn, "s", credit=1, limited=True, stream=StreamRead(place="first", wanted=["7"]))
    assert await conn.has(1) == [b"7"]
    rig.ready(conn, 5, named=True)
    assert await conn.has(2) == [b"7", b"307"]
    assert [offset for _, offset, _ in conn.taken] == [7, 307]


@pytest.mark.anyio
@pytest.mark.parametrize("options", [{"limited": False}, {"limited": True, "settle_on_delivery": True}])
async def test_who_may_not_consume_a_stream(rig, options):
    await rig.declare(rig.conn(), "s", durable=True, arguments=STREAM)
    with pytest.raises(Refusal) as refused:
        await rig.consume(rig.conn(), "s", **options)
    assert refused.value.cause is Cause.PRECONDITION


@pytest.mark.anyio
async def test_a_consumer_beyond_the_end_begins_there(rig):
    await rig.declare(rig.conn(), "s", durable=True, arguments=STREAM)
    await rig.publish("", "s", b"1")
    conn = rig.conn()
    await rig.consume(conn, "s", credit=9, limited=True, stream=StreamRead(place="offset", value=9))
    await rig.publish("", "s", b"2")
    assert await conn.has(1) == [b"2"]


@pytest.mark.anyio
async def test_a_consumer_whose_messages_cannot_be_read_keeps_no_others_waiting(rig, monkeypatch):
    """Consumers behind it in the list got nothing for as long as its messages were being repaired."""
    monkeypatch.setattr(pump, "RETRY_S", 0.01)
    await rig.declare(rig.conn(), "s", durable=True, arguments=STREAM)
    await rig.publish("", "s", b"0", b"1", b"2", b"3")
    fetch, asked, broken = rig.store.queues.fetch, [], [True]

    async def damaged(queue, at, **options):
        asked.append(at)
        if broken and at < 2:
            raise ReplicaIncomplete("damaged; it is being repaired from another replica")
        return await fetch(queue, at, **options)

    monkeypatch.setattr(rig.store.queues, "fetch", damaged)
    first, second, third = rig.conn(), rig.conn(), rig.conn()
    for conn, offset in ((first, 0), (second, 1), (third, 2)):
        read = StreamRead(place="offset", value=offset)
        await rig.consume(conn, "s", credit=9, limited=True, stream=read)
    assert await third.has(2) == [b"2", b"3"]
    await rig.publish("", "s", b"4")
    assert await third.has(3) == [b"2", b"3", b"4"]
    asked.clear()
    await until(lambda: {0, 1} <= set(asked))  # each is tried again
    assert not first.taken
    broken.clear()
    assert await first.has(5) == [b"0", b"1", b"2", b"3", b"4"]
    assert await second.has(4) == [b"1", b"2", b"3", b"4"]
    await rig.publish("", "s", b"5")
    assert (await first.has(6))[5:] == (await second.has(5))[4:] == [b"5"]
