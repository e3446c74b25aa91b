"""A store node serves clients that are not well behaved."""

import asyncio
import shutil
import ssl
import subprocess
from types import SimpleNamespace

import grpc
import pytest
from msgspec.structs import replace

from store.api.log import Appended
from store.base.errors import NotMaster, StoreOverloaded, StoreUnreachable, TimersFull
from store.base.streams import ERROR_KEY, open_channel
from store.format.frame import ROW
from store.format.records import TIMERS_QUEUE, TimerSet, encode
from store.local.local import LocalStore
from store.remoting import RemoteStore
from store.remoting.reader import RemoteReader
from store.rpc import calls, frames, wire
from store.rpc.credentials import CredentialFiles
from store.rpc.paths import APPEND, CALLS, MESSAGE_BYTES_MAX, TAIL, TailRequest, path
from store.serving import intake, service, session
from store.serving.rpc import StoreService
from store.timers.timers import TimerLimits
from tests.support.process.waiting import until
from tests.support.store.remote_kit import Node
from tests.support.store.store_kit import append, begin, bodies, frame

pytestmark = pytest.mark.anyio
OPENSSL = shutil.which("openssl")


@pytest.fixture
async def local(tmp_path):
    async with await LocalStore.open(tmp_path / "data") as store:
        yield store


@pytest.fixture
async def node(local):
    node = await Node().start(local)
    yield node
    await node.stop()


@pytest.fixture
async def channel(node):
    async with open_channel(node.target, None, message_bytes_max=MESSAGE_BYTES_MAX) as channel:
        yield channel


def ask(number, method, *arguments):
    return (number, method, arguments)


async def greeted(channel):
    stream = channel.stream_stream(path(CALLS))()
    await stream.write(calls.encode([ask(1, "hello", 0, False)]))
    answers = await hear(stream)
    assert answers[1][0] == calls.VALUE
    return stream


async def hear(stream):
    message = calls.decode_answers(await stream.read())
    return {one.number: (one.kind, one.body) for one in message.answers}


async def status_of(stream):
    try:
        while await stream.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the stream has ended well")


def error(answer):
    kind, body = answer
    assert kind == calls.ERROR
    return wire.revive(body)


# ---- wrong bytes


async def test_wrong_bytes_at_the_port_hurt_nobody_else(node, local):
    async with await RemoteStore.open(0, lambda: node.target) as store:
        for data in (
            b"GET / HTTP/1.1\r\n\r\n",
            bytes(100),
            b"\x16\x03\x01" + bytes(50),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
            writer.write(data + bytes(range(256)))
            await writer.drain()
            writer.close()
            await asyncio.wait_for(reader.read(), 10)
        await store.keys.put("a", b"")


@pytest.mark.parametrize("message", [b"", b"\xc1", b"\x93\x01\x02\x03", calls.encode([(-1, "ping", ())])])
async def test_a_message_that_is_no_calls_ends_its_session(channel, message):
    stream = await greeted(channel)
    await stream.write(message)
    status = await status_of(stream)
    assert status.code() == grpc.StatusCode.INVALID_ARGUMENT
    await greeted(channel)


async def test_a_bad_call_hurts_no_other(channel):
    stream = await greeted(channel)
    good = ask(9, "kv_get", "a", "")
    bad = [
        ask(2, "no_such_method"),
        ask(3, "kv_get", 5, ""),
        ask(4, "kv_get"),
        ask(5, "bounds", -1),
        ask(6, "settle", 1, 1, [(0, 1 << 62)], ""),
        ask(7, "find", 77, 1, 0, 1, None, 1),
        ask(8, "take", 16, 1, 1, 1, "", -5),
    ]
    await stream.write(calls.encode([*bad, good]))
    answers = {}
    while len(answers) < 8:
        answers |= await hear(stream)
    for number in (2, 3, 4, 5, 6):
        assert isinstance(error(answers[number]), wire.BadRequest)
    for number in (7, 8):
        assert isinstance(error(answers[number]), ValueError)
    assert answers[9][0] == calls.VALUE


async def test_nothing_is_answered_before_hello(channel):
    stream = channel.stream_stream(path(CALLS))()
    await stream.write(calls.encode([ask(1, "kv_get", "a", "")]))
    assert "hello" in str(error((await hear(stream))[1]))


async def test_two_calls_of_one_number_end_the_session(channel):
    stream = await greeted(channel)
    await stream.write(calls.encode([ask(2, "fetch", 16, 0, 1, 1, 60_000), ask(2, "ping")]))
    assert (await status_of(stream)).code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_frames_that_are_none_end_the_stream_and_damaged_ones_are_refused(channel, local):
    parts = frames.packed(frame((16, b"abc"), producer_id=3, sequence=1))
    good = frames.packed_message(0, parts)
    for message in (b"", b"\x00", good[:-1], good + b"x", good[:4] + bytes(64)):
        stream = channel.stream_stream(path(APPEND))()
        await stream.write(message)
        assert (await status_of(stream)).code() == grpc.StatusCode.INVALID_ARGUMENT
    stream = channel.stream_stream(path(APPEND))()
    await stream.write(good[:-1] + b"!" + good[4:])
    acks = []
    while len(acks) < 2:
        acks += frames.decode_acks(await stream.read()).acks
    by_number = {ack.number: ack for ack in acks}
    assert "checksum" in str(frames.outcome_of(by_number[0]))
    assert by_number[1].error is None
    assert await bodies(local, 16) == [b"abc"]


async def test_a_tail_that_is_not_asked_for_rightly(channel):
    for request in (b"", b"\xc1", calls.encode([-1])):
        assert (await status_of(channel.unary_stream(path(TAIL))(request))).code() == grpc.StatusCode.INVALID_ARGUMENT


# ---- limits


async def test_a_client_that_floods_is_refused_and_others_are_served(node, channel, local, monkeypatch):
    monkeypatch.setattr(session, "CALLS_COUNT_MAX", 50)
    stream = await greeted(channel)
    await stream.write(calls.encode([ask(n, "fetch", 16, 0, 1, 1, 60_000) for n in range(2, 500)]))
    refused = {}
    while len(refused) < 448:
        refused |= await hear(stream)
    assert all(isinstance(error(answer), StoreOverloaded) for answer in refused.values())
    async with await RemoteStore.open(0, lambda: node.target) as other:
        await other.keys.put("a", b"")
    assert local.arrivals.count == 50
    stream.cancel()
    await until(lambda: not local.arrivals.count)


async def test_answers_that_are_not_read_are_not_gathered(node, local, monkeypatch):
    """Whoever asks for much and reads nothing has a budget; who waits for its own answers is not held up by that."""
    monkeypatch.setattr(session, "ANSWERS_BYTES", 1 << 20)
    for _ in range(8):
        await append(local, frame((16, bytes(1 << 20))))
    reads = 0
    whole = local.queues.fetch

    async def counted(*arguments, **options):
        nonlocal reads
        reads += 1
        return await whole(*arguments, **options)

    monkeypatch.setattr(local.queues, "fetch", counted)
    async with (
        open_channel(node.target, None, message_bytes_max=MESSAGE_BYTES_MAX) as slow,
        await RemoteStore.open(0, lambda: node.target) as other,
    ):
        stream = await greeted(slow)
        await stream.write(calls.encode([ask(n, "fetch", 16, n % 8, 1 << 20, 1, 0) for n in range(2, 200)]))
        await until(lambda: reads > 0)
        await other.keys.put("a", b"")
        before = -1
        while before != reads:  # until it stands still
            before = reads
            await asyncio.sleep(0.1)
        assert reads < 60
        found = 0
        while found < 198:
            found += len(await hear(stream))


async def test_a_slow_reader_of_the_tail_costs_nothing(node, local, monkeypatch):
    monkeypatch.setattr(service, "TAIL_BYTES", 64 << 10)
    scans = 0
    whole = local.log.scan

    async def counted(*arguments, **options):
        nonlocal scans
        scans += 1
        return await whole(*arguments, **options)

    monkeypatch.setattr(local.log, "scan", counted)
    async with open_channel(node.target, None, message_bytes_max=MESSAGE_BYTES_MAX) as slow:
        stream = slow.unary_stream(path(TAIL))(calls.encode(TailRequest(0)))
        for n in range(300):
            await append(local, frame((16, b"%d" % n + bytes(64 << 10))))
        before = -1
        while before != scans:
            before = scans
            await asyncio.sleep(0.1)
        assert scans < 200
        at, found = 0, []
        while at < local.log.confirmed:
            tailed = frames.parse_tailed(await stream.read(), after=at)
            found += tailed.frames
            at = tailed.following
        assert [one.record(0).rstrip(b"\0") for one in found] == [b"%d" % n for n in range(300)]


async def test_appends_wait_for_room_and_are_not_refused(node, local, monkeypatch):
    monkeypatch.setattr(intake, "ACKS_COUNT_MAX", 8)
    node.service.node.budget.size = node.service.node.budget.free = 2_000
    async with await RemoteStore.open(0, lambda: node.target) as store:
        futures = [asyncio.ensure_future(append(store, frame((16, bytes(300))))) for _ in range(200)]
        highest = 0
        while not all(future.done() for future in futures):
            highest = max(highest, local.log.pending_bytes)
            await asyncio.sleep(0)
        await asyncio.gather(*futures)
        assert 0 < highest <= 2_000
        assert node.service.node.budget.free == 2_000


async def test_streams_are_bounded(channel, monkeypatch):
    monkeypatch.setattr(service, "STREAMS_COUNT_MAX", 1)
    stream = await greeted(channel)
    second = channel.stream_stream(path(CALLS))()
    await second.write(calls.encode([ask(1, "hello", 0, False)]))
    assert (await status_of(second)).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    stream.cancel()


async def test_silent_streams_take_no_place_of_others(node, channel, local, monkeypatch):
    monkeypatch.setattr(service, "STREAMS_COUNT_MAX", 1)
    silent = [channel.stream_stream(path(method))() for method in (APPEND, CALLS) for _ in range(3)]
    await asyncio.gather(*(stream.wait_for_connection() for stream in silent))
    async with await RemoteStore.open(0, lambda: node.target) as client:
        await append(client, frame((16, b"x")))
    for stream in silent:
        stream.cancel()


async def test_a_client_that_says_nothing_is_given_up(channel, node, monkeypatch):
    monkeypatch.setattr(service, "SILENCE_S", 0.1)
    stream = await greeted(channel)
    assert "nothing was heard" in (await status_of(stream)).details()
    await until(lambda: node.service.node.sessions == 0)


async def test_a_client_has_so_many_watches_and_owners(channel, monkeypatch, local):
    monkeypatch.setattr(session, "WATCHES_COUNT_MAX", 2)
    monkeypatch.setattr(session, "OWNERS_COUNT_MAX", 2)
    await append(local, frame(*((16, b"x") for _ in range(9))))
    stream = await greeted(channel)
    watches = [ask(n, "kv_watch", "", None, "", 1) for n in (2, 3, 4)]
    takes = [ask(n, "take", 16, n, 1, 100, "", None) for n in (5, 6, 7)]
    await stream.write(calls.encode([*watches, *takes]))
    answers = {}
    while len(answers) < 6:
        answers |= await hear(stream)
    for number in (4, 7):
        assert isinstance(error(answers[number]), StoreOverloaded)
    await stream.write(calls.encode([ask(0, "kv_unwatch", 2), ask(0, "release", 5), watches[2], takes[2]]))
    answers = {}
    while len(answers) < 2:
        answers |= await hear(stream)
    assert all(kind == calls.VALUE for kind, _ in answers.values())


async def test_timers_that_a_client_has_admitted_refuse_no_messages_beside_them(tmp_path):
    """A frame with one was refused, and those behind it: for a clock a little ahead, or a count a little behind."""
    limits = TimerLimits(timers=1, horizon_ms=60_000)
    async with await LocalStore.open(tmp_path / "data", timer_limits=limits) as local:
        node = await Node().start(local, timers=limits)
        async with await RemoteStore.open(0, lambda: node.target, now_ms=lambda: local.core.now_ms() + 1_000) as store:
            due_ms = store.timers._now_ms() + limits.horizon_ms
            record = encode(TimerSet(due_ms, ROW.pack(16, 0, 1, 0, 0, 0, 0, 0), b"x"))
            timer = (TIMERS_QUEUE, record)
            frames = [frame((16, b"1"), timer), frame((16, b"2"), timer), frame((16, b"3"))]
            store.timers.admit(due_ms, len(record))
            outcomes = begin(store, *[replace(one, producer_id=7, sequence=n) for n, one in enumerate(frames, 1)])
            assert [type(one) for one in await asyncio.gather(*outcomes)] == [Appended] * 3
            assert await bodies(store, 16) == [b"1", b"2", b"3"]
            with pytest.raises(TimersFull):
                store.timers.admit(due_ms, len(record))
        await node.stop()


async def test_a_budget_is_shared_in_turn():
    budget = intake.Budget(10)
    assert await budget.acquire(100) == 10
    order = []

    async def use(n, size):
        held = await budget.acquire(size)
        order.append(n)
        await asyncio.sleep(0)
        budget.release(held)

    waiting = [asyncio.ensure_future(use(n, size)) for n, size in enumerate((10, 3, 3, 9, 1))]
    await asyncio.sleep(0)
    waiting[0].cancel()
    budget.release(10)
    await asyncio.wait(waiting)
    assert order == [1, 2, 3, 4]
    assert budget.free == 10


# ---- roles


async def test_a_node_without_a_role_says_so(tmp_path):
    node = await Node(group=2).start(None)
    async with open_channel(node.target, None, message_bytes_max=MESSAGE_BYTES_MAX) as channel:
        await node.service.node.stand_down("host:1")
        stream = channel.stream_stream(path(CALLS))()
        status = await status_of(stream)
        assert status.code() == grpc.StatusCode.UNAVAILABLE
        refused = wire.revive(dict(status.trailing_metadata())[ERROR_KEY])
        assert isinstance(refused, NotMaster)
        assert refused.master == "host:1"
    await node.stop()


async def test_a_node_is_read_only_for_spark_unless_it_is_asked_for_more(local):
    plain = await StoreService.start(local, None, "127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{plain.port}") as channel:
        assert (await status_of(channel.stream_stream(path(CALLS))())).code() == grpc.StatusCode.UNIMPLEMENTED
    await plain.stop(0)
    nothing = await StoreService.start(None, None, "127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{nothing.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{wire.SERVICE}/{wire.HEALTH}")(b"")
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    await nothing.stop(0)


# ---- TLS


def _certificates(directory):
    """Returns a CA, two certificates of it, and one of another CA."""

    def run(*arguments):
        subprocess.run([OPENSSL, *arguments], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    for name in ("ca", "stranger"):
        run("req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for name in ("node", "proxy"):
        run("req", *key[:5], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        run(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-out", f"{name}.pem", "-days", "2", "-extfile", "names"),
        )
    return lambda name: CredentialFiles(directory / f"{name}.pem", directory / f"{name}.key", directory / "ca.pem")


@pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")
async def test_only_who_has_a_certificate_of_the_cluster_is_served(local, tmp_path):
    directory = tmp_path / "tls"
    directory.mkdir()
    files = _certificates(directory)
    node = await Node().start(local, credentials=files("node").server())
    async with await RemoteStore.open(0, lambda: node.target, credentials=files("proxy").channel()) as store:
        await append(store, frame((16, b"x")))
    with RemoteReader(node.target, credentials=files("proxy").channel(), retry_s=5) as reader:
        assert (await asyncio.to_thread(reader.bounds, [16]))[16] == (0, 1)
    anonymous = SimpleNamespace(tls=ssl.create_default_context(cafile=directory / "ca.pem"))
    for credentials in (None, files("stranger").channel(), anonymous):
        with pytest.raises(StoreUnreachable):
            await RemoteStore.open(0, lambda: node.target, credentials=credentials, budget_s=0.5)
    with pytest.raises(FileNotFoundError):
        files("nobody").server()
    await node.stop()
