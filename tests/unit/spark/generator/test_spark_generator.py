"""Generated devices and replayed files: messages, labels, pace, and the score of findings."""

import asyncio
import statistics
from collections import Counter, defaultdict
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")

import itertools

from spark.errors import BadOption, SparkError
from spark.generator.faults import KINDS, length_ms
from spark.generator.fleet import Fleet, Reading
from spark.generator.labels import RUN, Label, read_labels, until, write_labels
from spark.generator.pacing import BATCH_MAX, Sent, send_due
from spark.generator.replay import Replay, live_from
from spark.generator.scoring import Finding, Precision, Recall, as_document, score, text_of

T0 = 1_767_225_600_000
FLEET = Fleet(devices=20, rate=0.5, duration_s=3_000, faults_each=2, seed=3, start_ms=T0)


def by_kind() -> dict[str | None, dict[str, list[Reading]]]:
    found: dict = defaultdict(lambda: defaultdict(list))
    kinds = {FLEET.name(n): FLEET.kind(n) for n in range(FLEET.devices)}
    for one in FLEET.readings():
        found[kinds[one.device]][one.device].append(one)
    return found


def spans(device: str) -> list[tuple[int, int]]:
    return [(one.start_ms, one.end_ms) for one in FLEET.labels() if one.device == device and one.kind != RUN]


def within(device: str, readings: list[Reading]) -> list[Reading]:
    return [one for one in readings if any(start <= one.due_ms < end for start, end in spans(device))]


def test_messages_come_in_order_and_the_same_seed_repeats_them():
    readings = list(FLEET.readings())
    assert [one.due_ms for one in readings] == sorted(one.due_ms for one in readings)
    assert readings == list(FLEET.readings())
    other = Fleet(devices=20, rate=0.5, duration_s=3_000, faults_each=2, seed=4, start_ms=T0)
    assert readings != list(other.readings())
    numbers: dict[str, list[int]] = defaultdict(list)
    for one in readings:
        numbers[one.device].append(one.number)
    assert all(some == list(range(len(some))) for some in numbers.values())


def test_each_kind_changes_the_messages_as_its_formula_says():
    found = by_kind()
    assert set(found) == {None, *KINDS}
    per_device = 1_500
    counts = {kind: [len(some) for some in devices.values()] for kind, devices in found.items()}
    assert counts["gap"] == [per_device - 2 * 60] * 2  # 120 s
    assert counts["duplicates"] == [per_device + 2 * 60] * 2
    assert counts["flood"] == [per_device + 2 * 30 * 19] * 2
    assert all(counts[kind] == [per_device] * 2 for kind in counts if kind not in ("gap", "duplicates", "flood"))
    for kind, devices in found.items():
        for device, readings in devices.items():
            wrong = within(device, readings)
            clocks = {one.time_ms - one.due_ms for one in wrong}
            values = [one.values["temperature"] for one in wrong]
            right = [one for one in readings if one not in wrong]
            assert {one.time_ms - one.due_ms for one in right} == {0}, kind
            if kind == "stuck":
                assert sorted(Counter(values).values()) == [60, 60]
            elif kind == "duplicates":
                assert len({(one.time_ms, one.values["temperature"]) for one in wrong}) == 120
            elif kind == "skew":
                assert clocks == {-45_000}
            elif kind == "ahead":
                assert clocks == {3_600_000}
            elif kind == "flood":
                assert clocks == set(range(20))
                assert len(set(values)) > len(values) / 2, "a flood of one value would be a stuck sensor"
            elif kind == "gap":
                assert not wrong
            elif kind == "spike":
                spread = statistics.pstdev(one.values["temperature"] for one in right)
                middle = statistics.fmean(one.values["temperature"] for one in right)
                assert len(values) == 2
                assert all(abs(value - middle) > 8 * spread for value in values)


def test_labels_are_in_the_second_half_of_the_run_and_apart():
    for device in {one.device for one in FLEET.labels()}:
        some = spans(device)
        assert some == sorted(some)
        assert all(T0 + 1_500_000 <= start < end <= FLEET.end_ms for start, end in some)
        assert all(after[0] > before[1] for before, after in itertools.pairwise(some))
    assert length_ms("gap", 10.0) == 240_000
    kinds = Counter(one.kind for one in FLEET.labels())
    assert kinds == {RUN: 20, **dict.fromkeys(KINDS, 4)}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"devices": 0}, "option devices must be from 1"),
        ({"rate": 0}, "option rate must be"),
        ({"duration_s": float("nan")}, "option duration must be a number"),
        ({"faults": ("spikes",)}, "option faults cannot be spikes: the kinds are spike, level_shift"),
        ({"faults_each": 0}, "option faults-each must be at least 1"),
        ({"prefix": "a/b"}, "option prefix cannot be 'a/b': a device's name is a level of an address"),
        ({"metric": "value"}, "option metric cannot be 'value'"),
        ({"duration_s": 600}, "option duration must be at least 1320 s for flood"),
        ({"faults": ("gap",), "faults_each": 9}, "option duration must be at least 2800 s for gap"),
    ],
)
def test_a_wrong_option_is_named(given, said):
    with pytest.raises(BadOption, match=said):
        Fleet(**given)


@pytest.mark.parametrize("name", ["labels.jsonl", "labels.csv"])
def test_labels_are_read_as_they_were_written(tmp_path, name):
    labels = list(FLEET.labels())
    write_labels(tmp_path / name, labels)
    assert read_labels(tmp_path / name) == labels
    short = until(labels, T0 + 1_000)
    assert {(one.kind, one.end_ms) for one in short} == {(RUN, T0 + 1_000)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]\n", "line 1 is no object"),
        ('{"device": "d"}\n', "line 1 has no device, or no kind"),
        ('{"device": "d", "kind": "spike", "start": "soon", "end": 5}\n', "line 1 has no start or end that is a time"),
        ("{", "cannot be read"),
    ],
)
def test_a_file_that_is_no_labels_is_a_sentence(tmp_path, text, said):
    (tmp_path / "labels.jsonl").write_text(text)
    with pytest.raises(SparkError, match=said):
        read_labels(tmp_path / "labels.jsonl")
    with pytest.raises(SparkError, match="cannot be read: No such file"):
        read_labels(tmp_path / "none.jsonl")
    with pytest.raises(SparkError, match="cannot be written: No such file"):
        write_labels(tmp_path / "none" / "labels.jsonl", [])


def test_scores_are_by_kind_and_of_labelled_devices_and_times_alone():
    def fault(device: str, kind: str, at_s: int, finds: tuple[str, ...], quality: str = "") -> Label:
        return Label(
            device=device, kind=kind, start_ms=T0 + at_s * 1_000, end_ms=T0 + at_s * 1_000, finds=finds, quality=quality
        )

    def told(device: str, kind: str, at_s: int | None, metric: str = "") -> Finding:
        return Finding(device, kind, None if at_s is None else T0 + at_s * 1_000, metric)

    labels = [
        *(Label(device=name, kind=RUN, start_ms=T0, end_ms=T0 + 900_000) for name in "abcd"),
        fault("a", "spike", 100, ("spike",)),
        fault("a", "spike", 300, ("spike",)),
        fault("b", "gap", 200, ("silent", "back")),
        fault("c", "duplicates", 200, (), "duplicates"),
        fault("c", "skew", 200, ()),
    ]
    findings = [
        told("a", "spike", 100),
        told("a", "spike", 500),  # wrong
        told("b", "silent", 215),
        told("b", "back", 261),  # too late by a second
        told("b", "silent", 905),  # the run was over
        told("c", "duplicates", None),
        told("d", "duplicates", None),  # wrong
        told("e", "spike", 100),  # of no label
    ]
    outcome = score(labels, findings)
    assert outcome.recall == {"duplicates": Recall(1, 1), "gap": Recall(1, 1), "spike": Recall(2, 1)}
    assert outcome.precision == {
        "back": Precision(1, 0),
        "duplicates": Precision(2, 1),
        "silent": Precision(1, 1),
        "spike": Precision(2, 1),
    }
    assert outcome.untold == {"skew": 1}
    assert [(one.device, one.start_ms) for one in outcome.missed] == [("a", T0 + 300_000)]
    assert outcome.wrong == [findings[1], findings[3], findings[6]]
    assert score(labels, findings, 62.0).precision["back"] == Precision(1, 1)
    lines = list(text_of(outcome))
    assert "all                  4       3    0.7500" in lines
    assert "skew                 1          not told" in lines
    assert "wrong: spike of a, 2026-01-01T00:08:20.000Z" in lines
    assert as_document(outcome)["total"] == {"recall": 0.75, "precision": 0.5}
    assert score([], []).total[0].share is None


CSV = "time,device,temperature,state\n2026-01-01T00:00:00Z,d1,20.5,open\n1767225601,d2,,shut\n1767225602500,d1,21,\n"


def rows(path: Path, text: str, **options) -> list[tuple]:
    path.write_text(text)
    return [(one.device, one.time_ms - T0, one.values, one.number) for one in Replay(path=path, **options).readings()]


def test_a_file_is_replayed_with_its_own_times(tmp_path):
    assert rows(tmp_path / "a.csv", CSV) == [
        ("d1", 0, {"temperature": 20.5, "state": "open"}, 0),
        ("d2", 1_000, {"state": "shut"}, 0),
        ("d1", 2_500, {"temperature": 21.0}, 1),
    ]
    long = "at,metric,value\n2026-01-01 00:00:00,temp,1\n2026-01-01T00:00:01+00:00,door,open\n"
    assert rows(tmp_path / "b.csv", long, time="at", name="d") == [
        ("d", 0, {"temp": 1.0}, 0),
        ("d", 1_000, {"door": "open"}, 1),
    ]
    moved = list(live_from(Replay(path=tmp_path / "a.csv").readings(), 5_000))
    assert [(one.due_ms, one.time_ms) for one in moved] == [(5_000, 5_000), (6_000, 6_000), (7_500, 7_500)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("when,device\n1,d\n", "option time-column cannot be time: the columns are when, device"),
        ("", "option time-column cannot be time: the columns are none"),
        ("time,a\n1,2\n", "option device-column cannot be device: no such column"),
        ("time,device,a\nsoon,d,1\n", "line 2 of .* has no time; option skip-bad"),
        ("time,device,a\n1767225601,d/e,1\n", "line 2 of .* has the device 'd/e'"),
        ("time,device,a\n1767225601,d,1,2\n", "line 2 of .* has more fields than columns"),
        ("time,device,a\n1767225601,d,\n", "line 2 of .* has no value"),
    ],
)
def test_a_file_that_cannot_be_replayed_is_a_sentence(tmp_path, text, said):
    with pytest.raises(SparkError, match=said):
        rows(tmp_path / "a.csv", text)


def test_bad_lines_are_passed_over_where_that_is_asked_for(tmp_path):
    text = "time,device,a\nsoon,d,1\n1767225601,d/e,1\n1767225601,d,1,2\n1767225601,d,7\n"
    assert rows(tmp_path / "a.csv", text, skip_bad=True) == [("d", 1_000, {"a": 7.0}, 0)]
    with pytest.raises(SparkError, match="cannot be read: No such file"):
        list(Replay(path=tmp_path / "none.csv").readings())


class PacedSender:
    """Takes requests, each of which needs some time; sleeping passes time, too."""

    def __init__(self, takes_ms: int) -> None:
        self.now_ms, self._takes_ms, self.requests = 0, takes_ms, list[list[Reading]]()

    async def sleep(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1_000)

    async def send(self, some: list[Reading]) -> None:
        self.requests.append(some)
        self.now_ms += self._takes_ms


def paced(clock: PacedSender, count: int, every_ms: int, *, live: bool = True) -> Sent:
    sent = Sent()
    readings = [Reading(n * every_ms, "d", n * every_ms, {"a": 1.0}, n) for n in range(count)]
    asyncio.run(send_due(readings, clock.send, sent, paced=live, now_ms=lambda: clock.now_ms, sleep=clock.sleep))
    assert [one.number for some in clock.requests for one in some] == list(range(count))
    return sent


def test_messages_are_sent_when_they_are_due():
    clock = PacedSender(5)
    sent = paced(clock, 1_000, 10)
    assert 9_990 <= clock.now_ms < 10_400
    assert len(clock.requests) < 100
    assert all(one.due_ms <= 10_400 for one in clock.requests[-1])
    assert (sent.messages, sent.due_ms) == (1_000, 9_990)
    assert sent.lag_s < 0.3


def test_a_slow_gateway_is_told_by_the_lag():
    clock = PacedSender(2_000)
    assert paced(clock, 100, 100).lag_s > 1.5
    clock = PacedSender(1)
    assert paced(clock, 1_200, 10**6, live=False).lag_s == 0
    assert [len(some) for some in clock.requests] == [BATCH_MAX, BATCH_MAX, 200]
