"""Messages between a client and a store node come back as they were, and broken bytes raise one of two errors."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.api.handle import Grant
from store.api.keys import Delete, Put
from store.api.leases import Lease
from store.api.log import Appended
from store.api.queues import Fetched
from store.api.timers import TimersHeld
from store.base import errors
from store.base.errors import CorruptFrame, StoreError
from store.format.frame import FRAME_ZSTD, ROW, Frame, LogOffset, QueueNumber, QueueOffset, UnplacedFrame
from store.rpc import arguments, calls, frames, wire
from store.rpc.calls import CallAnswer, CallAnswers, Notice, SessionGreeting, TimerAdmission
from store.rpc.table import CALLS
from tests.support.process.examples import examples

u32 = st.integers(0, (1 << 32) - 1)
u63 = st.integers(0, (1 << 63) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
texts = st.text(max_size=20)
bodies = st.lists(st.binary(max_size=60), min_size=1, max_size=6)


def unplaced(records, *, producer_id=0, sequence=0, compress=False):
    rows, payload = b"", b""
    for n, record in enumerate(records):
        rows += ROW.pack(16 + n % 2, len(payload), len(record), 0, n, 0, 0, 0)
        payload += record
    return UnplacedFrame.build(
        rows, payload, producer_id=producer_id, sequence=sequence, compress_bytes_min=1 if compress else 0
    )


def placed(records, at):
    one = unplaced(records)
    frame = Frame.parse(one.header(log_offset=at, epoch=1, stored_at_ms=5) + one.rows + one.payload, log_offset=at)
    assert frame is not None
    return frame


def in_a_row(many):
    found, at = [], 64
    for records in many:
        found.append(placed(records, at))
        at = found[-1].end
    return found


# ---- calls

asked = st.one_of(
    st.tuples(st.just("fetch"), st.builds(arguments.Fetch, u32, i64, u63, u63, u63)),
    st.tuples(st.just("scan"), st.builds(arguments.Scan, i64, i64, st.none() | st.lists(u32).map(tuple), u63)),
    st.tuples(
        st.just("kv_put"), st.builds(arguments.PutKey, texts, st.binary(), st.none() | i64, texts, st.none(), u63)
    ),
    st.tuples(
        st.just("commit_offsets"), st.builds(arguments.CommitOffsets, texts, st.dictionaries(u32, i64, max_size=4))
    ),
    st.tuples(
        st.just("settle"),
        st.builds(arguments.Settle, u32, i64, st.lists(st.tuples(i64, i64), max_size=4).map(tuple), texts),
    ),
    st.tuples(st.just("find"), st.builds(arguments.Find, i64, u63, i64, u63, st.none() | st.tuples(i64, i64), i64)),
)


@given(st.lists(st.tuples(u63, asked), max_size=8))
def test_calls_come_back(many):
    message = calls.encode([(number, method, asked) for number, (method, asked) in many])
    found = calls.decode_calls(message)
    assert [(one.number, one.method) for one in found] == [(number, method) for number, (method, _) in many]
    for one, (_, (method, expected)) in zip(found, many, strict=True):
        assert msgspec.msgpack.decode(one.arguments, type=CALLS[method].request) == expected


@given(
    u63,
    st.lists(st.tuples(u63, st.integers(0, 1), st.none() | i64 | texts), max_size=8),
    st.none() | st.builds(Notice, st.lists(u32).map(tuple), st.none() | st.builds(TimersHeld, u63, u63)),
)
def test_answers_come_back(confirmed, bodies, news):
    answers = [CallAnswer(number, kind, msgspec.Raw(calls.encode(body))) for number, kind, body in bodies]
    found = calls.decode_answers(calls.encode(CallAnswers(confirmed, answers, news)))
    assert (found.confirmed, found.news) == (confirmed, news)
    assert [(one.number, one.kind, msgspec.msgpack.decode(one.body)) for one in found.answers] == bodies


@given(st.lists(st.builds(Put, texts, st.binary(), st.none() | u63, st.none()) | st.builds(Delete, texts)))
def test_operations_come_back(operations):
    assert arguments.operations_of(arguments.packed_operations(operations)) == operations


def test_a_greeting_comes_back():
    greeting = SessionGreeting(3, 5, True, TimersHeld(1, 2), TimerAdmission(1, 2, 3, 4))
    assert msgspec.msgpack.decode(calls.encode(greeting), type=SessionGreeting) == greeting


# ---- errors

KINDS = [one for one in vars(errors).values() if isinstance(one, type) and one.__module__ == errors.__name__]
ERRORS = [
    errors.OffsetOutOfRange(5, 10, 20),
    errors.RevisionConflict("key", 3, 4),
    errors.NamespaceFull("n", keys_max=1, size_bytes_max=0),
    errors.RevisionCompacted(1, 2),
    errors.NoSuchTimer("x" * 100),
    errors.DamagedExport(7, "why"),
    errors.CorruptFrame(64, "why"),
    errors.CorruptFrame(64, "why", 7, 128),
    errors.NotMaster("text", None),
    errors.NotMaster("text", "host:1"),
    ValueError("a value"),
    *(kind("a text") for kind in KINDS if kind.__init__ in {Exception.__init__, StoreError.__init__}),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_comes_back_as_what_it_was(error):
    found = wire.revive(wire.describe(error))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


def test_every_error_of_the_store_can_travel():
    assert {type(error).__name__ for error in ERRORS} >= {kind.__name__ for kind in KINDS}


def test_an_error_that_nobody_knows_keeps_its_name():
    class LaterError(StoreError):
        pass

    described = wire.describe(LaterError("text \ud800"))
    assert wire.revive(described) is None
    assert str(wire.failure_of(described, "kv_get")) == "kv_get: LaterError: text ?"
    assert "cannot be read" in str(wire.failure_of(b"\xc1", "kv_get"))


def test_a_kind_of_an_error_comes_back_as_that():
    class Nearer(errors.NotMaster):
        pass

    assert isinstance(wire.revive(wire.describe(Nearer("text"))), errors.NotMaster)
    assert isinstance(wire.revive(wire.describe(UnicodeDecodeError("utf-8", b"", 0, 1, "why"))), ValueError)


# ---- frames


@given(u32, st.lists(st.tuples(bodies, u63, u63, st.booleans()), max_size=4))
def test_appends_come_back(round_, many):
    sent = [
        unplaced(records, producer_id=producer, sequence=sequence, compress=compress)
        for records, producer, sequence, compress in many
    ]
    parts = [part for one in sent for part in frames.packed(one)]
    assert frames.parse_appends(frames.packed_message(round_, parts)) == (round_, sent)


@given(st.lists(st.tuples(u63, st.booleans(), st.none() | st.sampled_from(ERRORS[:-1])), max_size=6))
def test_acknowledgements_come_back(many):
    outcomes = [
        error if isinstance(error, StoreError) else Appended(LogOffset(at), duplicate) for at, duplicate, error in many
    ]
    acks = [frames.ack_of(n, outcome) for n, outcome in enumerate(outcomes)]
    found = frames.decode_acks(calls.encode(frames.Acks(5, acks, TimersHeld(1, 2))))
    assert (found.confirmed, found.timers, [one.number for one in found.acks]) == (5, (1, 2), list(range(len(acks))))
    for outcome, ack in zip(outcomes, found.acks, strict=True):
        got = frames.outcome_of(ack)
        assert (type(got), str(got)) == (type(outcome), str(outcome))
    assert isinstance(frames.outcome_of(frames.AppendAck(1, error=b"\xc1")), errors.AppendOutcomeUnknown)


@given(st.lists(bodies, max_size=4), st.integers(0, 100))
def test_a_tail_comes_back(many, gap):
    sent = in_a_row(many)
    following = (sent[-1].end if sent else 64) + gap
    found = frames.parse_tailed(frames.encode_tailed(sent, following, following + 5), after=LogOffset(64))
    assert [one.data for one in found.frames] == [one.data for one in sent]
    assert (found.following, found.confirmed) == (following, following + 5)


@settings(max_examples=examples(50))
@given(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=12), st.integers(1, 2000))
def test_a_frame_comes_once_while_it_is_kept(answers, kept_bytes):
    stored = in_a_row([[bytes([n]) * 40] * (n + 1) for n in range(6)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "KEPT_BYTES", kept_bytes)
        sent, kept = frames.FramesSent(), frames.FramesKept()
        for picked in answers:
            some = [stored[n] for n in picked]
            fetched = Fetched(some, [range(one.header.row_count) for one in some], QueueOffset(3), QueueOffset(9))
            body = sent.fetched(fetched)
            found = frames.fetched_of(msgspec.msgpack.decode(body, type=frames.FetchedAnswer), kept)
            assert [one.data for one in found.frames] == [one.data for one in some]
            assert [list(rows) for rows in found.rows] == [list(rows) for rows in fetched.rows]
            assert (found.offset, found.next) == (3, 9)
            body = sent.scanned(some, LogOffset(77))
            scanned = msgspec.msgpack.decode(body, type=frames.ScannedAnswer)
            assert kept.frames(scanned.frames) == some
            assert len(kept.kept) == len(sent.kept)


GRANT = Grant(
    queue=QueueNumber(16), group="g", owner=9, lease=5, leased_at=LogOffset(7), visible_at_ms=8, key=b"k" * 32
)


def test_what_was_taken_comes_back():
    one, two = in_a_row([[b"a", b"b"], [b"c"]])
    leases = [
        Lease(QueueOffset(4), 0, one, 1, GRANT),
        Lease(QueueOffset(5), 2, two, 0, GRANT),
        Lease(QueueOffset(6), 0, one, 0, GRANT),
    ]
    body = msgspec.msgpack.decode(frames.FramesSent().taken(leases), type=frames.TakenAnswer)
    found = frames.leases_of(body, frames.FramesKept(), queue=QueueNumber(16), group="g", owner=3)
    assert [lease[:4] for lease in found] == [lease[:4] for lease in leases]
    assert [lease.handle() for lease in found] == [lease.handle() for lease in leases]
    assert len(body.frames) == 2
    assert found[0].grant.owner == 3


@pytest.mark.parametrize("grant", [None, GRANT])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_what_an_earlier_master_may_have_leased_comes_back_as_such(grant, count):
    """It is in front of what is newer than the master."""
    leases = [
        Lease(QueueOffset(n), 0, one, 0, grant, earlier=n < count) for n, one in enumerate(in_a_row([[b"a"], [b"b"]]))
    ]
    body = msgspec.msgpack.decode(frames.FramesSent().taken(leases), type=frames.TakenAnswer)
    found = frames.leases_of(body, frames.FramesKept(), queue=QueueNumber(16), group="g", owner=3)
    assert [lease.earlier for lease in found] == [lease.earlier for lease in leases]


def test_a_compressed_frame_is_counted_by_what_it_takes_in_memory():
    records = [b"x" * 5_000]
    one = unplaced(records, compress=True)
    assert one.flags & FRAME_ZSTD
    data = one.header(log_offset=64, epoch=1, stored_at_ms=5) + one.rows + one.payload
    frame = Frame.parse(data, log_offset=64)
    sent, kept = frames.FramesSent(), frames.FramesKept()
    (found,) = kept.frames([sent.send(frame)])
    assert found.record(0) == records[0]
    assert sent.kept.size_bytes == kept.kept.size_bytes > 5_000


# ---- what is broken

REFUSED = (wire.BadRequest, wire.BadAnswer, CorruptFrame)


def decoders():
    kept = frames.FramesKept
    fetched = msgspec.msgpack.Decoder(frames.FetchedAnswer).decode
    taken = msgspec.msgpack.Decoder(frames.TakenAnswer).decode
    stored = in_a_row([[b"a", b"bc"], [b"d" * 30]])
    grant = Grant(queue=QueueNumber(16), group="", owner=1, lease=1, leased_at=LogOffset(0), visible_at_ms=1, key=b"k")
    leases = [Lease(QueueOffset(n), 0, one, 0, grant) for n, one in enumerate(stored)]
    answer = CallAnswer(1, 0, msgspec.Raw(calls.encode(5)))
    appends = [part for n in range(2) for part in frames.packed(unplaced([b"a", b"b"], producer_id=n))]
    return {
        "calls": (
            calls.decode_calls,
            calls.encode([(1, "kv_get", arguments.KvGet("a", "b")), (2, "x", arguments.Nothing())]),
        ),
        "answers": (calls.decode_answers, calls.encode(CallAnswers(5, [answer], Notice((1, 2), TimersHeld(1, 2))))),
        "appends": (frames.parse_appends, frames.packed_message(3, appends)),
        "acks": (
            frames.decode_acks,
            calls.encode(frames.Acks(1, [frames.ack_of(0, Appended(LogOffset(5))), frames.ack_of(1, ERRORS[0])])),
        ),
        "tail": (
            lambda data: frames.parse_tailed(data, after=LogOffset(64)),
            frames.encode_tailed(stored, stored[-1].end, stored[-1].end),
        ),
        "fetched": (
            lambda data: frames.fetched_of(fetched(data), kept()),
            frames.FramesSent().fetched(Fetched(stored, [[0, 1], [0]], QueueOffset(0), QueueOffset(3))),
        ),
        "taken": (
            lambda data: frames.leases_of(taken(data), kept(), queue=QueueNumber(16), group="", owner=1),
            frames.FramesSent().taken(leases),
        ),
        "error": (wire.revive, wire.describe(ERRORS[1])),
    }


@pytest.mark.parametrize("name", decoders())
def test_broken_bytes_parse_or_are_refused(name):
    decode, good = decoders()[name]
    decode(good)
    chance = np.random.default_rng(3)
    broken = [good[:cut] for cut in range(len(good))] + [good + b"\x00", b"", bytes(300)]
    for _ in range(400):
        bent = bytearray(good)
        for _ in range(int(chance.integers(1, 4))):
            bent[int(chance.integers(len(bent)))] = int(chance.integers(256))
        broken.append(bytes(bent))
    broken += [chance.bytes(int(size)) for size in chance.integers(1, 200, 100)]
    for data in broken:
        try:
            decode(data)
        except (*REFUSED, msgspec.MsgspecError, UnicodeDecodeError):
            continue
