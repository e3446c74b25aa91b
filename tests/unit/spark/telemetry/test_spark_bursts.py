"""Bursts: a device that sends many more messages a minute than usual is found once, however batches were cut."""

import random

import pytest

pa = pytest.importorskip("pyarrow")
import numpy as np  # noqa: E402

from spark.telemetry import bursts  # noqa: E402
from spark.telemetry.bursts import COUNT_MIN, RATE_SPIKE, WARM_COUNT  # noqa: E402
from spark.telemetry.liveness import DEVICES, Flags, observe  # noqa: E402
from spark.telemetry.repeats import fingerprints  # noqa: E402
from tests.support.spark.job_kit import MINUTE_MS, Record, table  # noqa: E402

T0 = 1_767_225_600_000


def minutes(device: str, counts: list[int], first_minute: int = 0) -> list[Record]:
    """Returns this many messages in each minute, at equal distances."""
    return [
        Record(device, T0 + (first_minute + minute) * MINUTE_MS + n * MINUTE_MS // count, 0)
        for minute, count in enumerate(counts)
        for n in range(count)
    ]


def run(records: list[Record], pieces: int = 1, late: bool = False):
    """Returns the devices, and the bursts as (device, minute)."""
    records = sorted(records, key=lambda record: (record.time_ms, record.device))
    devices, found = DEVICES.empty_table(), []
    size = -(-len(records) // pieces)
    for at in range(0, len(records), size):
        some = records[at : at + size]
        for n, record in enumerate(some):
            record.offset = at + n
        none = np.zeros(len(some), bool)
        rows, flags = table(some), Flags(none, none, none, none, ~none if late else none)
        devices, events = observe(devices, rows, flags, fingerprints(rows), watermark_ms=0)
        found += [event for event in events.to_pylist() if event["kind"] == RATE_SPIKE]
    return devices, found


def minute_of(event: dict) -> int:
    return (round(event["time"].timestamp() * 1_000) - T0) // MINUTE_MS


@pytest.mark.parametrize("pieces", [1, 7, 60])
def test_a_burst_is_found_in_its_minute_and_told_once(pieces):
    counts = [12, 11, 13, 12, 12, 14, 11, 12, 13, 12, 12, 12, 200, 220, 12, 12, 12, 150, 12]
    records = minutes("d", counts) + minutes("calm", [12] * len(counts))
    _, found = run(records, pieces)
    assert [(event["device"], minute_of(event)) for event in found] == [("d", 12), ("d", 17)]
    assert found[0]["sentence"] == "more than 40 messages came within a minute; usually 12.2 do"
    assert found[0]["value"] == 41
    assert found[0]["score"] > 7


def test_small_numbers_and_new_devices_are_no_bursts():
    assert run(minutes("slow", [1] * 30 + [int(COUNT_MIN)]))[1] == []
    assert run(minutes("new", [2] * (WARM_COUNT - 1) + [500]))[1] == []
    assert len(run(minutes("slow", [1] * 30 + [int(COUNT_MIN) + 1]))[1]) == 1


def test_chance_alone_is_no_burst():
    chance, records = random.Random(5), []
    for n, mean in enumerate((3, 20, 120)):
        counts = [max(1, sum(chance.random() < mean / 1_000 for _ in range(1_000))) for _ in range(200)]
        records += minutes(f"d{n}", counts)
    assert run(records, 11)[1] == []


def test_a_device_that_sends_more_from_now_on_is_told_once_and_followed():
    devices, found = run(minutes("d", [20] * 20 + [100] * 200), 5)
    assert [minute_of(event) for event in found] == [20]
    (row,) = devices.to_pylist()
    assert row["rate"] > 80


def test_what_was_gathered_offline_is_no_burst():
    devices, found = run(minutes("d", [10] * 20 + [500]), late=True)
    assert found == []
    assert devices["minutes"].to_pylist() == [0]


def test_a_state_of_before_bursts_is_taken_over():
    before, _ = run(minutes("d", [10] * 3))
    older = before.drop_columns(["minute", "minute_count", "minutes", "burst", "burst_before", "rate", "rate_spread"])
    some = minutes("d", [10], 3)
    none = np.zeros(len(some), bool)
    rows, flags = table(some), Flags(none, none, none, none, none)
    (row,) = observe(older, rows, flags, fingerprints(rows), watermark_ms=0)[0].to_pylist()
    assert (row["records"], row["minute_count"], row["minutes"]) == (40, 10, 0)


@pytest.mark.parametrize("pieces", [1, 9])
def test_every_minute_of_a_batch_is_looked_at(pieces):
    """As of a log of a day that is caught up with: of one batch the last 512 minutes were."""
    counts = [2] * 700
    counts[40] = counts[650] = 90
    devices, found = run(minutes("d", counts), pieces)
    assert [minute_of(event) for event in found] == [40, 650]
    assert devices["minutes"].to_pylist() == [len(counts) - 1]


@pytest.mark.parametrize("pieces", [1, 5])
def test_few_devices_are_counted_as_many_are(pieces, monkeypatch):
    """A rank of minutes took 0.2 ms, also for one device: 20 s for 70 days of it."""
    chance, records = random.Random(7), []
    for n in range(6):
        counts = [chance.choice((0, 1, 2, 3, 90)) for _ in range(40 * (n + 1))]
        records += [record for at, count in enumerate(counts) if count for record in minutes(f"d{n}", [count], at)]
    told = []
    for few in (0, 2, 99):
        monkeypatch.setattr(bursts, "FEW_COUNT", few)
        told.append(run(records, pieces))
    assert len(told[0][1]) > 9
    assert all(found == told[0][1] and devices.equals(told[0][0]) for devices, found in told[1:])


def test_a_rank_is_counted_for_many_devices_alone(monkeypatch):
    ranks = []
    monkeypatch.setattr(bursts, "_count", lambda *some: ranks.append(some))
    run(minutes("d", [1] * 500))
    assert ranks == []
    run([record for n in range(bursts.FEW_COUNT + 1) for record in minutes(f"d{n}", [1] * (3 + n))])
    assert len(ranks) == 3
