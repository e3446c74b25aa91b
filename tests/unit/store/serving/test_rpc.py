"""The gRPC service and its blocking client, over real sockets."""

import contextlib
import random
from functools import partial

import grpc
import msgspec
import numpy as np
import pytest

from controller.api.client import TopicLimit, UnknownTopic
from store.api.message import Message, decode
from store.api.queues import Bounds, Fetched
from store.base.errors import (
    CorruptFrame,
    OffsetOutOfRange,
    RemoteFailure,
    RevisionConflict,
    StoreClosed,
    StoreError,
    StoreOverloaded,
    StoreUnreachable,
)
from store.format.frame import Frame
from store.remoting.reader import RemoteReader
from store.rpc import wire
from store.serving import rpc
from tests.support.store.fake_store import Serving, serving, unplaced


@pytest.fixture
def served():
    with serving({"telemetry": (16, 17), "alarms": (18,)}) as running:
        yield running


@pytest.fixture
def reader(served):
    with RemoteReader(served.target, retry_s=5) as reader:
        yield reader


def fill(served: Serving, count: int, *, a_frame: int = 7, seed: int = 1, body: int = 100) -> dict[int, list[bytes]]:
    """Appends messages to two queues, and returns what each queue should bring."""
    chance = random.Random(seed)
    want: dict[int, list[bytes]] = {16: [], 17: []}
    for start in range(0, count, a_frame):
        batch = []
        for n in range(start, min(start + a_frame, count)):
            queue = chance.choice((16, 17))
            text = b"%d " % n + bytes(body)
            want[queue].append(text)
            batch.append((queue, Message(address="telemetry/d1", body=text, time_ms=n)))
        served.store.log.append(batch, stored_at_ms=start)
    return want


def test_topics_bounds_and_health(served, reader):
    want = fill(served, 100)
    assert reader.topics() == {"telemetry": (16, 17), "alarms": (18,)}
    assert reader.bounds([16, 17, 18]) == {
        16: Bounds(0, len(want[16])),
        17: Bounds(0, len(want[17])),
        18: Bounds(0, 0),
    }
    assert reader.bounds([]) == {}
    assert reader.health() == wire.HealthAnswer(served.store.end, 0)


def test_offset_at_time(served, reader):
    fill(served, 70)
    offset = reader.offset_at_time(16, 35)
    frame, rows, _ = next(reader.fetch(16, offset))
    assert frame.header.stored_at_ms == 35
    assert reader.offset_at_time(16, 10**12) == reader.bounds([16])[16].next
    assert len(rows) > 0


def test_every_record_comes_once_in_order(served, reader):
    want = fill(served, 3_000, body=400)
    for queue in (16, 17):
        got, due = [], 0
        for frame, rows, offset in reader.fetch(queue, 0):
            assert offset == due
            due += len(rows)
            got += [decode(frame.record(row)).body for row in rows]
        assert got == want[queue]


def test_a_range_is_cut_at_the_record(served, reader):
    want = fill(served, 500)
    got = [decode(frame.record(row)).body for frame, rows, _ in reader.fetch(16, 13, 14) for row in rows]
    assert got == want[16][13:14]
    assert list(reader.fetch(16, 5, 5)) == []
    assert list(reader.fetch(18, 0)) == []


def test_chunks_hold_many_frames_and_about_as_many_bytes_as_asked(served):
    fill(served, 4_000, body=300)
    with RemoteReader(served.target, chunk_bytes=wire.CHUNK_BYTES_MIN) as reader:
        chunks = list(reader.fetch_chunks(16, 0))
    assert len(chunks) > 10
    assert all(len(chunk.frames) > 10 for chunk in chunks[:-1])
    assert max(sum(len(frame.data) for frame in chunk.frames) for chunk in chunks) <= wire.CHUNK_BYTES_MIN


def test_sizes_of_records_come_without_their_frames(served):
    count = len(fill(served, 4_000, body=300)[16]) - 16
    with RemoteReader(served.target, chunk_bytes=wire.CHUNK_BYTES_MIN) as reader:
        end = 7 + count
        records = [frame.record(row) for frame, rows, _ in reader.fetch(16, 7, end) for row in rows]
        chunks = list(reader.fetch_sizes(16, 7, end))
        assert [size for chunk in chunks for size in chunk.sizes.tolist()] == [len(record) for record in records]
        assert (len(chunks) > 10, chunks[0].offset, chunks[-1].next) == (True, 7, end)
        with pytest.raises(OffsetOutOfRange):
            list(reader.fetch_sizes(16, 7, 1_000_000))


def test_out_of_range_comes_back_as_the_store_raised_it(served, reader):
    fill(served, 200)
    served.store.first[16] = 50
    next_ = reader.bounds([16])[16].next
    for start, end in ((10, None), (10, 60), (60, next_ + 1), (next_ + 5, next_ + 6)):
        with pytest.raises(OffsetOutOfRange) as caught:
            list(reader.fetch(16, start, end if end is not None else next_))
        assert (caught.value.first, caught.value.next) == (50, next_)


def test_a_fetch_goes_on_where_it_was_when_the_server_went_away(served):
    want = fill(served, 3_000, body=400)
    with RemoteReader(served.target, retry_s=10, chunk_bytes=wire.CHUNK_BYTES_MIN) as reader:
        got = []
        for n, (frame, rows, _) in enumerate(reader.fetch(17, 0)):
            got += [decode(frame.record(row)).body for row in rows]
            if n in (3, 200):
                served.stop()
                served.start()
        assert got == want[17]


def test_an_overloaded_store_is_asked_again(served, reader):
    want = fill(served, 20)
    failures = [StoreOverloaded("full"), StoreClosed("closing")]

    def fail() -> None:
        if failures:
            raise failures.pop()

    served.store.before_fetch = fail
    got = [decode(frame.record(row)).body for frame, rows, _ in reader.fetch(16, 0) for row in rows]
    assert got == want[16]
    assert not failures


def test_nobody_there_is_said_within_the_time_given():
    with RemoteReader("127.0.0.1:1", retry_s=0.3) as reader, pytest.raises(StoreUnreachable, match=r"127\.0\.0\.1:1"):
        reader.topics()


def test_corruption_in_the_store_is_not_retried(served, reader):
    fill(served, 20)

    def fail() -> None:
        raise CorruptFrame(123, "body checksum")

    served.store.before_fetch = fail
    with pytest.raises(CorruptFrame) as caught:
        list(reader.fetch(16, 0))
    assert (caught.value.log_offset, caught.value.why) == (123, "body checksum")


def test_corruption_on_the_way_is_found(served, reader):
    fill(served, 20)
    good = served.store.frames[0]
    bent = bytearray(good.data)
    bent[-1] ^= 1
    served.store.frames[0] = Frame(good.header, bytes(bent))
    with pytest.raises(CorruptFrame, match="body checksum"):
        list(reader.fetch(16, 0))


def test_bad_requests_are_refused_and_hurt_nobody_else(served, reader):
    fill(served, 20)
    with grpc.insecure_channel(served.target) as channel:
        for method in (wire.BOUNDS, wire.OFFSET_AT_TIME):
            call = channel.unary_unary(f"/{wire.SERVICE}/{method}")
            for request in (b"", b"\xc1", b"\x90", msgspec.msgpack.encode([["x"]]), msgspec.msgpack.encode([-1, 0])):
                with pytest.raises(grpc.RpcError) as caught:
                    call(request, timeout=60)
                assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
                assert caught.value.details().startswith("BadRequest: ")
        stream = channel.unary_stream(f"/{wire.SERVICE}/{wire.FETCH}")
        for request in (b"", wire.encode([16, -1, None, wire.CHUNK_BYTES]), wire.encode([16, 0, None, 1 << 30])):
            with pytest.raises(grpc.RpcError) as caught:
                list(stream(request, timeout=60))
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(f"/{wire.SERVICE}/{wire.BOUNDS}")(bytes(wire.REQUEST_BYTES_MAX + 1), timeout=60)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(f"/{wire.SERVICE}/Nonsense")(b"", timeout=60)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert reader.health().confirmed == served.store.end
    too_many = wire.encode([list(range(wire.QUEUES_MAX + 1))])
    with grpc.insecure_channel(served.target) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{wire.SERVICE}/{wire.BOUNDS}")(too_many, timeout=60)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_streams_are_bounded(served, monkeypatch):
    monkeypatch.setattr(rpc, "STREAMS_MAX", 1)
    fill(served, 20_000, a_frame=100, body=400)
    small = wire.CHUNK_BYTES_MIN
    with RemoteReader(served.target, retry_s=0.2, chunk_bytes=small) as one:
        held = one.fetch_chunks(16, 0)
        next(held)  # gRPC's window is smaller than the queue, so this stream stays open
        assert one.health().streams == 1
        with RemoteReader(served.target, retry_s=0.2) as two, pytest.raises(StoreUnreachable, match="TooManyStreams"):
            next(two.fetch_chunks(17, 0))
        held.close()
        with RemoteReader(served.target, retry_s=5) as two:
            assert next(two.fetch_chunks(17, 0)).offset == 0


def test_a_port_in_use_is_an_os_error(served):
    with pytest.raises(OSError, match="it is in use"):
        Serving.start(_again(served))


def _again(served: Serving) -> Serving:
    """Returns the same service once more, which must not get the port."""
    twin = object.__new__(Serving)
    twin.__dict__.update(served.__dict__)
    return twin


def test_an_unknown_failure_is_named():
    with serving({}) as running:

        class NewError(StoreError):
            """Of a later version."""

        def fail() -> None:
            raise NewError("something else")

        running.store.log.append([(16, Message(address="a"))])
        running.store.before_fetch = fail
        with RemoteReader(running.target) as reader, pytest.raises(RemoteFailure, match="INTERNAL: NewError: "):
            list(reader.fetch(16, 0))


# ---- the chunk, without a socket


def chunk() -> tuple[bytes, Fetched]:
    built = unplaced([(16, Message(address="a", body=bytes(n))) for n in range(5)])
    data = built.header(log_offset=640, epoch=1, stored_at_ms=1) + built.rows + built.payload
    frame = Frame.parse(data, log_offset=640)
    fetched = Fetched([frame], [[1, 3]], 10, 12)
    return wire.encode_chunk(fetched), fetched


def test_chunk_round_trip():
    data, want = chunk()
    got = wire.decode_chunk(data, queue=16)
    assert (got.offset, got.next) == (10, 12)
    assert [list(rows) for rows in got.rows] == [[1, 3]]
    assert got.frames[0].data == want.frames[0].data
    sizes = wire.decode_sizes(data)
    assert (sizes.offset, sizes.next) == (10, 12)
    assert sizes.sizes.tolist() == [len(want.frames[0].record(row)) for row in (1, 3)]
    empty = Fetched([], [], 3, 3)
    assert wire.decode_chunk(wire.encode_chunk(empty), queue=1) == empty
    assert len(wire.decode_sizes(wire.encode_chunk(empty)).sizes) == 0


def test_chunk_of_another_queue_is_refused():
    with pytest.raises(wire.BadAnswer, match="queue 17"):
        wire.decode_chunk(chunk()[0], queue=17)


def test_damaged_chunks_raise_one_of_two_errors():
    data, _ = chunk()
    for cut in range(len(data)):
        with pytest.raises((wire.BadAnswer, CorruptFrame)):
            wire.decode_chunk(data[:cut], queue=16)
        with pytest.raises(wire.BadAnswer):
            wire.decode_sizes(data[:cut])
    for decode_ in (partial(wire.decode_chunk, queue=16), wire.decode_sizes):
        with pytest.raises(wire.BadAnswer):
            decode_(data + b"x")
    chance = np.random.default_rng(7)
    for _ in range(300):
        bent = bytearray(data)
        bent[int(chance.integers(len(bent)))] ^= int(chance.integers(1, 256))
        for decode_ in (partial(wire.decode_chunk, queue=16), wire.decode_sizes):
            with contextlib.suppress(wire.BadAnswer, CorruptFrame):
                decode_(bytes(bent))


def test_errors_keep_their_kind_on_the_wire():
    assert wire.ERRORS.status_of(RevisionConflict("k", 1, 2)) == grpc.StatusCode.INTERNAL
    assert wire.ERRORS.status_of(UnknownTopic("x")) == grpc.StatusCode.NOT_FOUND
    assert wire.ERRORS.status_of(TopicLimit("x")) == grpc.StatusCode.FAILED_PRECONDITION
    revived = wire.revive(wire.describe(OffsetOutOfRange(5, 10, 20)))
    assert isinstance(revived, OffsetOutOfRange)
    assert revived.first == 10
    for junk in (b"", b"\x01", wire.encode(("Exception", ("x",))), wire.encode(("OffsetOutOfRange", (1,)))):
        assert wire.revive(junk) is None


def test_the_next_target_is_asked_while_one_is_away(served):
    want = fill(served, 1_000)
    other = Serving(served.store, served.controller)
    try:
        other.start()
        both = f"{served.target},{other.target}"
        with RemoteReader(both, retry_s=30) as reader, RemoteReader(both, retry_s=30, first=1) as from_the_second:
            found = []
            for frame, rows, _ in reader.fetch(16, 0):
                if not found:
                    served.stop()
                found += [decode(frame.record(row)).body for row in rows.tolist()]
            assert found == want[16]
            assert reader.bounds([17])[17].next == from_the_second.bounds([17])[17].next == len(want[17])
            other.stop()
            served.start()
            assert from_the_second.topics() == reader.topics()
            served.stop()
        with (
            RemoteReader(both, retry_s=0.3) as reader,
            pytest.raises(StoreUnreachable, match=f"{served.target},{other.target} cannot be read, UNAVAILABLE"),
        ):
            reader.topics()
    finally:
        other.close()


def test_readers_are_told_whether_first_levels_name_the_topics(served, reader):
    assert not reader.health().by_first_level
    served.service.by_first_level = True
    assert reader.health().by_first_level
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([7, 0]), type=wire.HealthAnswer) == wire.HealthAnswer(7, 0)
