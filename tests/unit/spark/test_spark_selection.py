"""Records that are left out before rows are made of them, and filters that Spark pushes down."""

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from gateway.domain.filters import matches as matches_at_the_gateway
from spark.source.columns import TYPES, RecordColumns, schema_of
from spark.source.pushdown import PushedBounds
from spark.source.selection import Selection, address_of
from store.api.devices import Devices
from store.api.message import Message, encode
from store.api.queues import Fetched
from store.base.errors import CorruptFrame
from store.format.frame import ROW, UnplacedFrame
from tests.support.spark.placed_frames import placed
from tests.support.store.fake_store import unplaced

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine

LEVELS = st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=4).map("/".join)
FILTERS = st.tuples(
    st.lists(st.sampled_from(["a", "b", "", "+", "$x"]), min_size=1, max_size=4), st.sampled_from([[], ["#"]])
).map(lambda parts: "/".join([*parts[0], *parts[1]]))


@PATIENT
@given(filters=st.lists(FILTERS, min_size=1, max_size=3), addresses=st.lists(LEVELS, max_size=8))
def test_filters_match_as_at_the_gateway(filters, addresses):
    found = Selection(filters=tuple(filters)).addresses(addresses)
    assert found.tolist() == [any(matches_at_the_gateway(one, address) for one in filters) for address in addresses]


def test_the_address_alone_is_decoded_from_a_record_of_any_length():
    for message in (Message(address="a/ü"), Message(address="b", body=b"x" * 70_000, native={"mqtt": {"x": [1]}})):
        assert address_of(encode(message)) == message.address


MESSAGES = st.builds(
    Message,
    address=st.sampled_from(["t/s1/d1/temp", "t/s1/d2/temp", "t/s2/d1/hum", "u"]),
    body=st.binary(max_size=5),
    type=st.sampled_from([None, "x", "y"]),
    protocol=st.sampled_from(["mqtt", "http"]),
    time_ms=st.integers(0, 1_000),
)


@PATIENT
@pytest.mark.slow
@given(
    frames=st.lists(st.lists(st.tuples(st.sampled_from([16, 17]), MESSAGES), min_size=1, max_size=6), max_size=5),
    filters=st.sampled_from([(), ("t/+/d1/#",), ("u",), ("t/s1/#", "u")]),
    devices=st.sampled_from([None, {"d1"}, {"d2", "u"}]),
    types=st.sampled_from([None, {"x"}, {"z"}]),
)
def test_what_is_left_is_what_a_filter_of_all_rows_leaves(frames, filters, devices, types):
    built, rows, at = [], [], 0
    for messages in frames:
        frame = placed(unplaced(messages), at)
        picks = [n for n, (queue, _) in enumerate(messages) if queue == 16]
        if picks:
            built.append(frame)
            rows.append(picks)
        at += 4096
    count = sum(map(len, rows))
    if not count:
        return
    fetched = Fetched(built, rows, 100, 100 + count)
    equal = {name: frozenset(some) for name, some in (("device", devices), ("type", types)) if some is not None}
    names = tuple(name for name in TYPES if name != "samples")
    everything = RecordColumns(schema_of(names)).batch(fetched, queue=16, topic="t").to_pylist()
    some = RecordColumns(schema_of(names), selection=Selection(filters=filters, equal=equal))
    assert some.batch(fetched, queue=16, topic="t").to_pylist() == [
        row
        for row in everything
        if (not filters or any(matches_at_the_gateway(one, row["address"]) for one in filters))
        and (devices is None or row["device"] in devices)
        and (types is None or row["type"] in types)
    ]


def test_a_record_that_is_no_message_is_said_though_its_address_is_asked_for_alone():
    built = UnplacedFrame.build(ROW.pack(16, 0, 3, 0, 0, 0, 0, 7), b"\xc1\xc1\xc1")
    columns = RecordColumns(schema_of(("offset",)), selection=Selection(filters=("a/#",)))
    with pytest.raises(CorruptFrame, match="no message"):
        columns.batch(Fetched([placed(built, 0)], [[0]], 0, 1), queue=16, topic="t")


def test_first_levels_name_the_topics_that_can_hold_what_is_wanted():
    assert Selection().first_levels() is None
    assert Selection(filters=("telemetry/+/d1/#", "/x")).first_levels() == {"telemetry", "/"}
    assert Selection(filters=("telemetry/#", "+/x")).first_levels() is None
    narrowed = Selection(filters=("+/x", "a/#"))
    narrowed.also("address", ["b/x", "a/y"])
    assert narrowed.first_levels() == {"a", "b"}


def test_fields_of_messages_are_compared_as_columns_show_them():
    selection = Selection(equal={"speaker": frozenset({"d9"}), "device": frozenset({"d1"})})
    messages = [Message(address="t/s/d1/x", device="guest"), Message(address="t/s/d1/x", device="d9")]
    assert selection.messages(messages, Devices()).tolist() == [False, False]
    assert Selection(equal={"speaker": frozenset({"d9"})}).messages(messages, Devices()).tolist() == [False, True]


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_filters_of_a_query_bound_what_is_read():
    pushed = PushedBounds()
    pushed.take(
        [
            EqualTo(("topic",), "telemetry"),
            In(("queue",), (16, 17)),
            GreaterThanOrEqual(("offset",), 10),
            LessThan(("offset",), 20),
            GreaterThan(("stored_at",), at(5_000)),
            LessThanOrEqual(("stored_at",), at(9_000)),
            EqualTo(("address",), "a/b"),
            In(("protocol",), ("mqtt", None)),
            EqualTo(("data", "temperature"), 5),
            EqualTo(("qos",), 1),
        ]
    )
    assert (pushed.topics, pushed.queues, pushed.first, pushed.end) == ({"telemetry"}, {16, 17}, 10, 20)
    assert 4_998 <= pushed.from_ms <= 5_000
    assert 9_000 < pushed.until_ms <= 9_002
    assert pushed.selection.equal == {"address": {"a/b"}, "protocol": {"mqtt"}}
    assert pushed.selection.addresses(["a/b", "a/c"]).tolist() == [True, False]


@PATIENT
@given(st.lists(st.integers(0, 20), min_size=1), st.integers(0, 20), st.sampled_from([0, 1, 2, 3, 4]))
def test_bounds_leave_in_every_record_that_a_filter_keeps(times, value, kind):
    one, keeps = [
        (EqualTo, lambda x: x == value),
        (GreaterThan, lambda x: x > value),
        (GreaterThanOrEqual, lambda x: x >= value),
        (LessThan, lambda x: x < value),
        (LessThanOrEqual, lambda x: x <= value),
    ][kind]
    pushed = PushedBounds()
    pushed.take([one(("stored_at",), at(value)), one(("offset",), value)])
    kept = np.array([keeps(ms) for ms in times])
    read = np.array([(pushed.from_ms or 0) <= ms < (pushed.until_ms or 1 << 60) for ms in times])
    assert (kept <= read).all()
    assert [keeps(n) for n in times] == [pushed.first <= n < pushed.end for n in times]
