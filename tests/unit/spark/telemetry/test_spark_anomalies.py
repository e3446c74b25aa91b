"""Anomalies: every kind is found, its sentence says it, and how batches were cut does not show."""

import math
import random
from collections.abc import Iterable

import pytest

pa = pytest.importorskip("pyarrow")

from spark.telemetry import anomalies  # noqa: E402
from spark.telemetry.anomalies import LEVEL_SHIFT, SERIES, SPIKE, STUCK, detect  # noqa: E402
from spark.telemetry.windows import INSTANT, SAMPLES  # noqa: E402
from tests.support.spark.faults import Fault, series  # noqa: E402

FLEET, SAMPLES_EACH, FAULTS_EACH = 30, 2_400, 4


def table(values: dict[str, list[float]], first: int = 0) -> "pa.Table":
    """Returns one sample a second of each device."""
    rows = [(device, first + n, value) for device, some in values.items() for n, value in enumerate(some)]
    count = len(rows)
    made = {
        "device": [device for device, _, _ in rows],
        "metric": ["m"] * count,
        "value": [value for _, _, value in rows],
        "unit": [None] * count,
        "time": pa.array([n * 1_000_000 for _, n, _ in rows], INSTANT),
        "stored_at": pa.array([n * 1_000_000 for _, n, _ in rows], INSTANT),
        "offset": [n for _, n, _ in rows],
        "queue": [16] * count,
        "position": ["0.0"] * count,
        "address": ["a"] * count,
    }
    return pa.table([pa.array(made[f.name], f.type) for f in SAMPLES], schema=SAMPLES)


def run(values: dict[str, list[float]], pieces: int = 1) -> list[dict]:
    state, found = SERIES.empty_table(), []
    size = -(-max(map(len, values.values())) // pieces)
    for piece in range(pieces):
        low = piece * size
        state, events = detect(state, table({d: v[low : low + size] for d, v in values.items()}, low))
        found += events.to_pylist()
    return found


def second(event: dict) -> int:
    return round(event["time"].timestamp())


def test_kinds_and_sentences():
    clean, _ = series(1, 400, 0)
    spiked = clean.copy()
    spiked[300] += 500
    shifted = [value + (100 if n >= 300 else 0) for n, value in enumerate(clean)]
    stuck = [value if n < 300 else clean[300] for n, value in enumerate(clean)]
    assert run({"d": clean}) == []
    (spike,) = run({"d": spiked})
    assert (spike["kind"], second(spike), spike["device"], spike["metric"]) == (SPIKE, 300, "d", "m")
    assert spike["score"] > anomalies.SPIKE_SIGMAS
    assert "sigmas from its level of" in spike["sentence"]
    kinds = [event["kind"] for event in run({"d": shifted})]
    assert kinds == [SPIKE, LEVEL_SHIFT]
    (event,) = run({"d": stuck})
    assert (event["kind"], second(event)) == (STUCK, 300 + anomalies.STUCK_COUNT - 1)
    assert "20 times in a row" in event["sentence"]


@pytest.mark.slow
def test_slow_smooth_movement_is_no_anomaly():
    """Sine waves of many periods, with and without noise, around zero and far from it, of fine and coarse sensors."""
    chance, fleet = random.Random(1), {}
    for period in (7, 60, 105, 157, 600, 5_000):
        for noise in (0.0, 0.01, 0.05, 0.3):
            for base in (0, 20, 1_000):
                phase = chance.uniform(0, 2 * math.pi)
                wave = [math.sin(2 * math.pi * n / period + phase) for n in range(1_500)]
                values = [base + 5 * (height + chance.gauss(0, noise)) for height in wave]
                fleet[f"{period}/{noise}/{base}"] = values
                fleet[f"{period}/{noise}/{base} coarse"] = [round(value, 1) for value in values]
    assert run(fleet, pieces=4) == []


def test_a_shift_is_found_on_a_slow_wave():
    wave = [20 + 5 * math.sin(2 * math.pi * n / 600) + random.Random(n).gauss(0, 0.2) for n in range(900)]
    shifted = [value + (3 if n >= 450 else 0) for n, value in enumerate(wave)]
    events = run({"d": shifted})
    assert LEVEL_SHIFT in {event["kind"] for event in events}
    assert all(450 <= second(event) < 470 for event in events)


def test_a_state_of_before_trends_is_taken_over():
    values, _ = series(1, 200, 0)
    state, _ = detect(SERIES.empty_table(), table({"d": values[:100]}))
    after, events = detect(state.drop_columns(["trend", "least_step"]), table({"d": values[100:]}, 100))
    assert events.num_rows == 0
    assert after["seen"].to_pylist() == [200]


def test_how_batches_were_cut_does_not_show():
    fleet = {f"d{n}": series(n, 600, 1)[0] for n in range(5)}
    whole = run(fleet, pieces=2)
    assert whole
    key = lambda event: (second(event), event["device"], event["kind"])  # noqa: E731
    assert sorted(map(key, run(fleet, pieces=37))) == sorted(map(key, whole))


def test_a_constant_value_is_a_setting_and_not_stuck():
    assert run({"d": [20.0] * 400}) == []


def strange(count: int) -> list[float]:
    """Returns noise of one sigma, with a spike of 60 in every 500 samples, a shift of 30 and a stuck minute."""
    chance = random.Random(3)
    values = [20 + chance.gauss(0, 1) + (30 if n > 5_200 else 0) for n in range(count)]
    for n in range(507, count, 500):
        values[n] += 60
    values[4_800:4_860] = [values[4_800]] * 60
    return values


@pytest.mark.parametrize("pieces", [1, 12, 50])
def test_every_sample_of_a_batch_is_looked_at(pieces):
    """As of a series that is caught up with: of 6,000 samples in one batch every twelfth was."""
    values = {"d": strange(6_000), "slow": [1.0] * 3}
    events = [(second(event), event["kind"]) for event in run(values, pieces)]
    assert [at for at, kind in events if kind == SPIKE] == sorted([*range(507, 6_000, 500), 5_201])
    assert [at for at, kind in events if kind == STUCK] == [4_819]
    assert [at for at, kind in events if kind == LEVEL_SHIFT] == [5_205]


@pytest.mark.parametrize("pieces", [1, 3])
def test_series_by_themselves_are_judged_as_many_at_once(pieces, monkeypatch):
    """Bit for bit: `_judge_alone` is the plain twin of `_judge`."""
    fleet = {f"d{n}": series(n, 300 + 40 * n, 2)[0] for n in range(8)}
    fleet |= {"odd": strange(5_300)[4_500:], "same": [0.0] * 90, "coarse": [float(n % 3) for n in range(500)]}
    fleet["huge"] = [(-1.0) ** n * 1e150 for n in range(200)]
    found = []
    for few in (0, 10**9):
        monkeypatch.setattr(anomalies, "FEW_COUNT", few)
        state, events = SERIES.empty_table(), []
        for piece in range(pieces):
            some = {d: v[piece * len(v) // pieces : (piece + 1) * len(v) // pieces] for d, v in fleet.items()}
            state, told = detect(state, table({d: v for d, v in some.items() if v}, 10_000 * piece))
            events += told.to_pylist()
        found.append((state.to_pylist(), events))
    assert found[0] == found[1]
    assert {event["kind"] for event in found[0][1]} == {SPIKE, LEVEL_SHIFT, STUCK}


def measured(seeds: Iterable[int] = range(FLEET)) -> tuple[float, float]:
    """Returns precision and recall over a fleet with labelled faults."""
    fleet = {f"d{seed}": series(seed, SAMPLES_EACH, FAULTS_EACH) for seed in seeds}
    events = run({device: values for device, (values, _) in fleet.items()}, pieces=6)

    def explains(fault: Fault, event: dict) -> bool:
        return fault.start <= second(event) < fault.end + 1

    true = sum(any(explains(fault, event) for fault in fleet[event["device"]][1]) for event in events)
    faults = [(device, fault) for device, (_, some) in fleet.items() for fault in some]
    heard = sum(any(explains(fault, e) for e in events if e["device"] == device) for device, fault in faults)
    return true / len(events), heard / len(faults)


@pytest.mark.slow
def test_precision_and_recall_on_labelled_faults():
    precision, recall = measured()
    assert precision > 0.98
    assert recall > 0.98


if __name__ == "__main__":
    print("precision {:.4f}, recall {:.4f}".format(*measured(range(1_000, 1_500))))
