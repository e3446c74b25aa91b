"""Liveness and quality of devices: intervals are learned, silence and return are told, oddities counted."""

import random
from collections.abc import Collection
from datetime import UTC, datetime

import pytest

pa = pytest.importorskip("pyarrow")
import numpy as np  # noqa: E402

from spark.tables.schemas import rated  # noqa: E402
from spark.telemetry.liveness import ALIVE, DEVICES, FLAPPING, NEW, SILENT, WEIGHT, Flags, observe, silence  # noqa: E402
from spark.telemetry.repeats import fingerprints  # noqa: E402
from tests.support.spark.job_kit import Record, table  # noqa: E402

T0 = 1_767_225_600_000
WATERMARK_MS = 30_000


def seen(devices, records: list[Record], strayed: Collection[int] = ()):
    """Observes records; those with some offsets have times that are late, too old or ahead."""
    count = len(records)
    none = np.zeros(count, bool)
    flags = Flags(none, none, none, strayed=np.array([r.offset in strayed for r in records]), gathered=none)
    rows = table(records)
    return observe(devices, rows, flags, fingerprints(rows), watermark_ms=WATERMARK_MS)


def one(devices, name: str = "d") -> dict:
    (row,) = [row for row in devices.to_pylist() if row["device"] == name]
    return row


def beats(device: str, first_ms: int, count: int, every_ms: int, offset: int = 0) -> list[Record]:
    return [Record(device, first_ms + n * every_ms, offset + n, {"a": 1.0}) for n in range(count)]


@pytest.mark.parametrize("pieces", [1, 4, 20])
def test_an_interval_is_learned_and_silence_told(pieces):
    devices, records = DEVICES.empty_table(), beats("d", T0, 40, 5_000)
    size = -(-len(records) // pieces)
    for at in range(0, len(records), size):
        devices, events = seen(devices, records[at : at + size])
        assert events.num_rows == 0
    last = records[-1].time_ms
    row = one(devices)
    assert row["state"] == ALIVE
    assert row["records"] == 40
    assert row["interval_s"] == pytest.approx(5.0)
    assert row["jitter_s"] == pytest.approx(0.0)
    same, events = silence(devices, last + 14_000)
    assert same is devices
    devices, events = silence(devices, last + 16_000)
    (event,) = events.to_pylist()
    assert (event["kind"], event["device"]) == (SILENT, "d")
    assert event["sentence"] == "nothing was heard for 16 s; it is usually heard every 5.0 s"
    assert one(devices)["state"] == SILENT
    assert silence(devices, last + 60_000)[1].num_rows == 0  # said once
    devices, events = seen(devices, beats("d", last + 100_000, 1, 1, 40))
    (event,) = events.to_pylist()
    assert (event["kind"], event["sentence"]) == ("back", "it is back after 100 s")
    assert one(devices)["interval_s"] == pytest.approx(5.0)  # the absence taught it nothing
    assert one(devices)["silent_since"] is None


def test_address_and_protocol_are_those_of_the_newest_record_by_the_stores_clock():
    def record(queue, at_ms, address, protocol):
        return Record("d", at_ms, 0, {"a": 1.0}, queue=queue, address=address, protocol=protocol)

    devices, _ = seen(DEVICES.empty_table(), [record(16, T0 + 2, "t/new", "coap"), record(17, T0 + 1, "t/old", "mqtt")])
    assert (one(devices)["address"], one(devices)["protocol"]) == ("t/new", "coap")
    devices, _ = seen(devices, [record(18, T0, "t/older", "amqp")])  # of a queue that lags
    assert (one(devices)["address"], one(devices)["protocol"]) == ("t/new", "coap")
    devices, _ = seen(devices, [record(18, T0 + 3, "t/newest", "http")])
    assert (one(devices)["address"], one(devices)["protocol"]) == ("t/newest", "http")


def test_a_short_interval_is_told_in_milliseconds():
    devices, _ = seen(DEVICES.empty_table(), beats("d", T0, 40, 12))
    (event,) = silence(devices, T0 + 60_000)[1].to_pylist()
    assert event["sentence"].endswith("it is usually heard every 12 ms")


def test_too_few_messages_are_no_interval():
    devices, _ = seen(DEVICES.empty_table(), beats("d", T0, 5, 1_000))
    assert one(devices)["state"] == NEW
    assert silence(devices, T0 + 10**9)[1].num_rows == 0


def test_a_device_that_comes_and_goes_is_flapping():
    devices, now, offset, kinds = DEVICES.empty_table(), T0, 0, []
    for _ in range(4):
        devices, events = seen(devices, beats("d", now, 20, 1_000, offset))
        kinds += events["kind"].to_pylist()
        now, offset = now + 200_000, offset + 20
        devices, events = silence(devices, now - 1_000)
        kinds += events["kind"].to_pylist()
    assert kinds == [SILENT, "back", SILENT, "back", SILENT, FLAPPING, SILENT]


def test_a_device_that_is_heard_less_often_from_now_on_is_followed():
    """It comes back FLAPS_COUNT_MIN times, and that is its interval then: it was told as silent for ever."""
    devices, _ = seen(DEVICES.empty_table(), beats("d", T0, 100, 1_000))
    now, kinds = T0 + 100_000, []
    for n in range(60):
        for ms in range(0, 60_000, 5_000):
            devices, events = silence(devices, now + ms)
            kinds += events["kind"].to_pylist()
        now += 60_000
        devices, events = seen(devices, beats("d", now, 1, 1, 100 + n))
        kinds += events["kind"].to_pylist()
    assert kinds[:4] == [SILENT, "back", SILENT, "back"]
    assert len(kinds) <= 10
    assert one(devices)["interval_s"] == pytest.approx(60, rel=0.05)
    _, events = silence(devices, now + 400_000)
    assert events["kind"].to_pylist() == [SILENT]


def test_oddities_are_counted():
    records = [
        Record("d", T0 + 1_000, 0, {"a": 1.0}, T0 + 1_500),
        Record("d", T0 + 3_000, 1, {"a": 2.0}, T0 + 3_500),
        Record("d", T0 + 2_000, 2, {"a": 3.0}, T0 + 3_600),  # out of order
        Record("d", T0 + 3_000, 3, {"a": 2.0}, T0 + 3_700),  # again
        Record("d", T0 + 3_000, 4, {"a": 9.0}, T0 + 3_800),  # the same time, another value
        Record("e", T0, 5, {"a": 2.0}, T0 + 2_000),
    ]
    devices, _ = seen(DEVICES.empty_table(), records)
    row = one(devices)
    assert (row["records"], row["out_of_order"], row["duplicates"]) == (5, 1, 1)
    assert one(devices, "e")["skew_s"] == pytest.approx(2.0)
    devices, _ = seen(devices, [Record("d", T0, 6, {"a": 1.0}, T0 + 4_000)])  # behind the batch before
    assert one(devices)["out_of_order"] == 2
    assert one(devices)["duplicates"] == 1
    again = [Record("d", T0 + 3_000, 7, {"a": 9.0}, T0 + 5_000), Record("e", T0 + 3_000, 8, {"a": 9.0}, T0 + 5_000)]
    devices, _ = seen(devices, again)  # one of an earlier batch, and one of another device
    assert (one(devices)["duplicates"], one(devices, "e")["duplicates"]) == (2, 0)


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_times_that_are_late_or_ahead_say_nothing_of_clock_and_order(pieces):
    """One stamp of the year 9999 made all later records out of order, and a clock 46,256 days ahead."""
    at = iter(range(100))
    beat = lambda n: Record("d", T0 + n * 1_000, next(at), {"a": float(n)}, T0 + n * 1_000 + 500)  # noqa: E731
    records = [
        *(beat(n) for n in range(5)),
        Record("d", 253_402_300_000_000, next(at), {"a": 1.0}, T0 + 5_000),
        *(beat(n) for n in range(6, 12)),
        Record("d", T0 + 8_000, next(at), {"a": -1.0}, T0 + 12_500),  # out of order
        *(Record("d", T0 - (60 - n) * 60_000, next(at), {"a": 0.0}, T0 + 13_000) for n in range(20)),
        *(beat(n) for n in range(14, 20)),
    ]
    strayed = {5, *range(13, 33)}
    devices, size = DEVICES.empty_table(), -(-len(records) // pieces)
    for low in range(0, len(records), size):
        devices, _ = seen(devices, records[low : low + size], strayed)
    row = one(devices)
    assert (row["records"], row["out_of_order"]) == (len(records), 1)
    assert 0.4 < row["skew_s"] < 1.0
    assert round(row["last_time"].timestamp() * 1_000) == T0 + 19_000


@pytest.mark.parametrize("pieces", [1, 3, 20])
def test_skew_and_order_are_the_same_however_the_log_was_cut(pieces):
    """Records of two queues, as they came; the batch has them queue by queue."""
    records = [
        Record("d", T0 + n * 1_000, n, {"a": float(n)}, T0 + n * 1_000 + 100 * n, queue=17 - n % 2) for n in range(20)
    ]
    records[9].time_ms -= 2_500  # behind two before it
    devices, size = DEVICES.empty_table(), -(-len(records) // pieces)
    for low in range(0, len(records), size):
        devices, _ = seen(devices, sorted(records[low : low + size], key=lambda record: (record.queue, record.offset)))
    late_s = [(record.stored_at_ms - record.time_ms) / 1_000 for record in records]
    expected = late_s[0]
    for one_s in late_s[1:]:
        expected += WEIGHT * (one_s - expected)
    assert one(devices)["skew_s"] == pytest.approx(expected)
    assert one(devices)["out_of_order"] == 1


def test_the_clock_of_a_device_that_is_never_in_time_is_unknown():
    devices, _ = seen(DEVICES.empty_table(), [Record("d", T0, 0, {"a": 1.0}, T0 + 10**8)], {0})
    assert rated(devices)["skew_s"].to_pylist() == [None]
    devices, _ = seen(devices, [Record("d", T0 + 10**9, 1, {"a": 1.0}, T0 + 10**9 + 2_000)])
    assert rated(devices)["skew_s"].to_pylist() == [pytest.approx(2.0)]


def test_a_state_that_one_stamp_has_spoiled_is_mended():
    devices, _ = seen(DEVICES.empty_table(), beats("d", T0, 3, 1_000))
    spoiled = devices.to_pylist()
    spoiled[0] |= {"last_time": datetime(9999, 1, 1, tzinfo=UTC), "skew_s": -4e9}
    devices, _ = seen(pa.Table.from_pylist(spoiled, DEVICES), beats("d", T0 + 3_000, 3, 1_000, 3))
    row = one(devices)
    assert (row["out_of_order"], row["skew_s"]) == (0, 0.0)
    assert round(row["last_time"].timestamp() * 1_000) == T0 + 5_000


def test_many_devices_equal_each_by_itself():
    chance = random.Random(3)
    records = []
    for n in range(400):
        at = T0 + n * 100
        records.append(Record(f"d{chance.randrange(7)}", at - chance.randrange(5_000), n, {"a": 1.0}, at))
    together, _ = seen(DEVICES.empty_table(), records)
    for name in together["device"].to_pylist():
        alone, _ = seen(DEVICES.empty_table(), [r for r in records if r.device == name])
        mine, theirs = one(alone, name), one(together, name)
        assert {k: v for k, v in mine.items() if k not in {"interval_s", "jitter_s"}} == {
            k: v for k, v in theirs.items() if k not in {"interval_s", "jitter_s"}
        }
        assert mine["interval_s"] == pytest.approx(theirs["interval_s"])


def test_a_copy_is_found_whatever_queue_the_first_was_in():
    first = [Record("d", T0 + n, n, {"a": float(n)}, T0 + n, queue=17) for n in range(9)]
    newest = Record("d", T0 + 20, 0, {"a": 20.0}, T0 + 20, queue=16)
    devices, _ = seen(DEVICES.empty_table(), [newest, *first])
    devices, _ = seen(devices, [Record("d", T0 + 20, 10, {"a": 20.0}, T0 + 5_000, queue=17)])
    assert one(devices)["duplicates"] == 1


def test_duplicates_are_counted_from_now_on_where_an_older_version_has_written_the_state():
    devices, _ = seen(DEVICES.empty_table(), beats("d", T0, 3, 1))
    older = devices.drop_columns(["recent_times", "recent_prints"])
    again = [Record("d", T0, 50, {"a": 7.0}, T0 + 9_000), Record("d", T0, 51, {"a": 7.0}, T0 + 9_001)]
    devices, _ = seen(older, again)
    assert one(devices)["duplicates"] == 1
