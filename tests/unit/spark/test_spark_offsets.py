"""Options and positions: every rule of resuming, without Spark."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark.errors import BadOption
from spark.source import offsets
from spark.source.offsets import OffsetRange
from spark.source.options import At, SourceOptions, parse_location
from store.api.queues import Bounds

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine


def test_options_are_typed_and_case_does_not_matter():
    options = SourceOptions.parse(
        {
            "TARGET": "10.0.0.1:9",
            "topic": "a, b,,a",
            "startingoffsets": '{"16": 5}',
            "endingOffsets": "latest",
            "maxOffsetsPerTrigger": "10",
            "maxBytesPerTrigger": "1000",
            "filter": "telemetry/+/d,1/#",
            "device": '["d1", "d2"]',
            "format": "JSON",
            "failOnDataLoss": "False",
            "startingTimestamp": "2026-01-02T03:04:05Z",
            "retrySeconds": "1.5",
        }
    )
    assert options == SourceOptions(
        target="10.0.0.1:9",
        topic=("a", "b"),
        startingOffsets={16: 5},
        maxRecordsPerTrigger=10,
        maxBytesPerTrigger=1_000,
        filter=("telemetry/+/d,1/#",),
        device=("d1", "d2"),
        format="json",
        failOnDataLoss=False,
        startingTimestamp=1_767_323_045_000,
        retrySeconds=1.5,
    )
    assert SourceOptions.parse({"startingTimestamp": "1700000000000"}).startingTimestamp == 1_700_000_000_000
    assert SourceOptions.parse({}) == SourceOptions()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOfsets": "latest"}, "startingOffsets is"),
        ({"startingOffsets": "-1"}, "startingOffsets"),
        ({"startingOffsets": '{"16": -1}'}, "queue 16: -1 is not a valid offset"),
        ({"startingOffsets": '{"x": 1}'}, "startingOffsets"),
        ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"failOnDataLoss": "no"}, "true or false"),
        ({"target": "nowhere"}, "HOST:PORT"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"retrySeconds": "-1"}, "seconds"),
        ({"target": "a:1,b"}, "HOST:PORT"),
        ({"filter": "a/#/b"}, "filter cannot be 'a/#/b'"),
        ({"filter": "a/x+"}, "whole levels"),
        ({"filter": '["a/#", 7]'}, "filter cannot be"),
        ({"format": "xml"}, "raw, json, cloudevents, senml"),
        ({"startingOffsets": "sometime"}, "earliest, latest, a time from 1970 to 9999, or JSON"),
        ({"startingOffsets": "0001-01-01T00:00:00"}, "a time from 1970 to 9999"),
        ({"startingTimestamp": "9" * 23}, "startingTimestamp cannot be '9+': it must be a time from 1970 to 9999"),
        ({"endingTimestamp": "0001-01-01T00:00:00"}, "a time from 1970 to 9999"),
        ({"target": "host:65536"}, "HOST:PORT"),
        ({"gateway": "http://a b:x"}, "http://127.0.0.1:8080"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"maxOffsetsPerTrigger": "5", "maxRecordsPerTrigger": "6"}, "says the same as maxRecordsPerTrigger"),
        ({"caFile": "ca.pem"}, "certFile is missing"),
        ({"group": "g"}, "needs the option topic with one name"),
        ({"gateway": "127.0.0.1:8080"}, "http://127.0.0.1:8080"),
    ],
)
def test_options_that_cannot_be_used_are_named(given, message):
    with pytest.raises(BadOption, match=message):
        SourceOptions.parse(given)


def test_topics_are_chosen_by_name():
    topics = {"a": (16, 17), "b": (18,)}
    assert offsets.chosen_queues(topics, (), must_exist=True) == {16: "a", 17: "a", 18: "b"}
    assert offsets.chosen_queues(topics, ("b",), must_exist=True) == {18: "b"}
    assert offsets.chosen_queues(topics, ("c",), must_exist=False) == {}
    with pytest.raises(BadOption, match="names c; there are: a, b"):
        offsets.chosen_queues(topics, ("c",), must_exist=True)


def test_where_a_query_begins():
    bounds = {16: Bounds(3, 10), 17: Bounds(0, 0)}
    assert offsets.place("earliest", bounds, default="earliest") == {16: 3, 17: 0}
    assert offsets.place("latest", bounds, default="earliest") == {16: 10, 17: 0}
    assert offsets.place({16: 7}, bounds, default="earliest") == {16: 7, 17: 0}
    assert offsets.place({17: 0}, bounds, default="latest") == {16: 10, 17: 0}
    with pytest.raises(BadOption, match="queue 99"):
        offsets.place({99: 0}, bounds, default="earliest")
    with pytest.raises(BadOption, match="offset 11 of queue 16"):
        offsets.place({16: 11}, bounds, default="earliest")


def test_a_query_begins_at_a_time():
    assert parse_location("1700000000000") == parse_location("2023-11-14T22:13:20Z") == At(1_700_000_000_000)
    times = {16: [10, 20, 30], 17: [25]}
    bounds = {queue: Bounds(0, len(some)) for queue, some in times.items()}
    found = offsets.place(
        At(21), bounds, default="earliest", at_time=lambda queue, ms: sum(one < ms for one in times[queue])
    )
    assert found == {16: 2, 17: 0}


def test_ranges_are_split_into_partitions_by_their_lengths():
    assert offsets.ranges({}, {16: 100, 17: 1}, records_max=1_000, pieces_min=4) == [
        *(OffsetRange(16, 0, 25), OffsetRange(16, 25, 50), OffsetRange(16, 50, 75), OffsetRange(16, 75, 100)),
        OffsetRange(17, 0, 1),
    ]
    assert offsets.ranges({16: 7}, {16: 9}, records_max=10, pieces_min=50) == [
        OffsetRange(16, 7, 8),
        OffsetRange(16, 8, 9),
    ]
    assert offsets.ranges({16: 7}, {16: 7}, records_max=10, pieces_min=50) == []


def test_another_limit_cuts_what_the_limit_in_records_leaves():
    bounds, asked = {16: Bounds(0, 900), 17: Bounds(20, 120), 18: Bounds(5, 5)}, []

    def fitting(ranges):
        asked.extend(ranges)
        return {16: 45, 17: 25}

    assert offsets.advance({16: 0, 18: 5, 19: 7}, bounds, 100, fitting=fitting) == {16: 45, 17: 25, 18: 5, 19: 7}
    assert asked == [OffsetRange(16, 0, 90), OffsetRange(17, 20, 30)]


def test_new_queues_begin_at_zero_and_old_ones_go_on():
    start = {16: 5}
    end = offsets.advance(start, {16: Bounds(0, 9), 17: Bounds(0, 4)}, None)
    assert end == {16: 9, 17: 4}
    assert offsets.ranges(start, end, records_max=100) == [OffsetRange(16, 5, 9), OffsetRange(17, 0, 4)]


def test_a_queue_that_is_gone_stays_in_the_position():
    assert offsets.advance({16: 5, 17: 2}, {17: Bounds(0, 4)}, None) == {16: 5, 17: 4}
    assert offsets.ranges({16: 5, 17: 2}, {16: 5, 17: 4}, records_max=100) == [OffsetRange(17, 2, 4)]


def test_a_queue_begun_anew_is_read_from_zero():
    end = offsets.advance({16: 500}, {16: Bounds(0, 3)}, None)
    assert end == {16: 3}
    assert offsets.ranges({16: 500}, end, records_max=100) == [OffsetRange(16, 0, 3)]
    assert offsets.advance({16: 500}, {16: Bounds(0, 30)}, 10) == {16: 10}


def test_a_limit_is_shared_out_by_what_waits():
    bounds = {16: Bounds(0, 900), 17: Bounds(0, 100), 18: Bounds(0, 0)}
    assert offsets.advance({}, bounds, 100) == {16: 90, 17: 10, 18: 0}
    assert offsets.advance({}, bounds, 1) == {16: 1, 17: 1, 18: 0}
    assert offsets.advance({}, bounds, 1000) == {16: 900, 17: 100, 18: 0}
    assert offsets.advance({16: 0}, {16: Bounds(800, 900)}, 10) == {16: 810}


QUEUES = st.dictionaries(
    st.integers(16, 20), st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda b: Bounds(b[0], b[0] + b[1]))
)


@PATIENT
@given(bounds=QUEUES, limit=st.integers(1, 60), pieces=st.integers(1, 9))
def test_going_on_to_the_end_reads_everything_once(bounds, limit, pieces):
    at: dict[int, int] = {queue: b.first for queue, b in bounds.items()}
    seen: dict[int, list[int]] = {queue: [] for queue in bounds}
    for _ in range(1_000):
        end = offsets.advance(at, bounds, limit)
        assert sum(end[q] - at[q] for q in bounds) <= limit + len(bounds)
        for queue, start, until in offsets.ranges(at, end, records_max=7, pieces_min=pieces):
            assert 0 < until - start <= 7
            seen[queue] += range(start, until)
        if end == at:
            break
        at = offsets.decode(offsets.encode(end))
    assert seen == {queue: list(range(b.first, b.next)) for queue, b in bounds.items()}
