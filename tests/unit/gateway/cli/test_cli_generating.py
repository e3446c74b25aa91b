"""`headgate spark generate`, `replay` and `score` against a real gateway: what is stored, what is said, exit codes."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")

from gateway.cli.commands import main
from spark.generator.labels import RUN, read_labels
from spark.tables.commits import Commits, CommitSettings
from spark.tables.files import Location
from tests.support.process.ports import free_port
from tests.support.spark.job_kit import Record, do_batch
from tests.support.spark.log_recount import messages

pytestmark = pytest.mark.slow

T0 = 1_767_225_600_000
CSV = "time,device,temperature,door\n2026-01-01T00:00:00Z,dev1,20.5,open\n1767225601,dev2,7,\n1767225602,dev1,21,shut\n"


def started(*args: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gateway.cli", "spark", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def headgate(*args: str) -> tuple[int, str, str]:
    with started(*args) as process:
        out, err = process.communicate(timeout=120)
    return process.returncode, out.decode(), err.decode()


def ended(monkeypatch, capfd, *args: str) -> tuple[int, str]:
    """Runs a command in this process, and returns its exit status and what it said on standard error."""
    monkeypatch.setattr(sys, "argv", ["headgate", "spark", *args])
    with pytest.raises(SystemExit) as status:
        main()
    return status.value.code, capfd.readouterr().err


def stored(gateway, topic: str) -> list:
    return [message for *_, message in messages(f"127.0.0.1:{gateway.port('rpc')}", topic)]


@pytest.mark.parametrize("protocol", ["http", "mqtt", "coap"])
def test_a_file_is_replayed_by_each_protocol(shared_gateway, tmp_path, protocol):
    (tmp_path / "a.csv").write_text(CSV)
    target = f"{protocol}://127.0.0.1:{shared_gateway.port(protocol)}"
    topic = f"replay{protocol}"
    code, out, err = headgate(
        "replay", str(tmp_path / "a.csv"), "--target", target, "--address", f"{topic}/x/{{device}}/reading"
    )
    assert (code, err) == (0, "")
    assert out.startswith("3 messages stored")
    found = sorted((m.device, m.time_ms - T0, json.loads(m.body)) for m in stored(shared_gateway, topic))
    assert found == [
        ("dev1", 0, {"temperature": 20.5, "door": "open"}),
        ("dev1", 2_000, {"temperature": 21.0, "door": "shut"}),
        ("dev2", 1_000, {"temperature": 7.0}),
    ]
    kinds = {(m.protocol, m.address, m.content_type) for m in stored(shared_gateway, topic) if m.device == "dev2"}
    assert kinds == {(protocol, f"{topic}/x/dev2/reading", "application/json")}


def test_what_is_generated_is_labelled(shared_gateway, tmp_path):
    labels = tmp_path / "labels.csv"
    code, out, err = headgate(
        *("generate", "--target", shared_gateway.url, "--labels", str(labels), "--address", "generated/x/{device}/r"),
        *("--devices", "4", "--rate", "50", "--duration", "4", "--faults", "spike,duplicates"),
    )
    assert (code, err) == (0, "")
    assert out.startswith(f"4 devices, 200.0 messages a second, for 4 s; 2 faults in {labels}; to http://127.0.0.1:")
    counts = Counter(m.device for m in stored(shared_gateway, "generated"))
    assert counts == {"gen0": 200, "gen1": 200, "gen2": 260, "gen3": 200}
    assert "860 messages stored" in out
    assert Counter(one.kind for one in read_labels(labels)) == {RUN: 4, "spike": 1, "duplicates": 1}


def test_a_run_that_is_interrupted_has_labels_until_then(shared_gateway, tmp_path):
    labels = tmp_path / "labels.jsonl"
    process = started(
        *("generate", "--target", shared_gateway.url, "--labels", str(labels), "--address", "cut/x/{device}/r"),
        *("--devices", "2", "--rate", "20", "--duration", "3600", "--faults", "spike"),
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"2 devices")
        while not stored(shared_gateway, "cut"):
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")
    assert b"messages stored" in out
    some = read_labels(labels)
    assert {one.kind for one in some} == {RUN}
    assert all(one.end_ms - one.start_ms < 600_000 for one in some)


@pytest.mark.filterwarnings("ignore:Initializing messages with an mtype:DeprecationWarning")  # of aiocoap
def test_errors_are_one_line_each(shared_gateway, tmp_path, monkeypatch, capfd):
    url = shared_gateway.url
    labels = ("--labels", str(tmp_path / "labels.jsonl"))
    port = free_port()
    nowhere = [f"{scheme}://127.0.0.1:{port}" for scheme in ("http", "mqtt", "coap")]
    (tmp_path / "a.csv").write_text(CSV)
    file = str(tmp_path / "a.csv")
    for args, code, said in (
        (("generate", "--target", url, "--faults", "spikes", *labels), 1, "option faults cannot be spikes: the kinds"),
        (
            ("generate", "--target", url, "--duration", "10", *labels),
            1,
            "option duration must be at least 120 s for spike",
        ),
        (
            ("generate", "--target", "ftp://me:pw@x", *labels),
            1,
            "option target cannot be ftp://x: it must be as http://",
        ),
        (
            ("generate", "--target", url, "--address", "a/b", *labels),
            1,
            "option address cannot be 'a/b': it has to name",
        ),
        (("generate", "--target", url, "--labels", str(tmp_path / "no" / "l")), 1, "cannot be written: No such file"),
        (("replay", file, "--target", nowhere[0], "--retry", "0.2"), 3, "for 0.2 s (options target, retry): "),
        (("replay", file, "--target", nowhere[1], "--retry", "0.2"), 3, "has taken no message for 0.2 s: "),
        (("replay", file, "--target", nowhere[2], "--retry", "0.2"), 3, "has taken no message for 0.2 s: "),
        (("replay", str(tmp_path / "none.csv"), "--target", url), 1, "none.csv cannot be read: No such file"),
        (
            ("replay", file, "--target", url, "--address", "$SYS/{device}"),
            1,
            "the gateway has refused it with status 4",
        ),
        (("score", str(tmp_path / "none.jsonl"), "--tables", str(tmp_path)), 1, "none.jsonl cannot be read: No such"),
    ):
        found, err = ended(monkeypatch, capfd, *args)
        assert (found, err.count("\n")) == (code, 1), err
        assert said in err


def test_the_score_is_of_a_jobs_tables(tmp_path):
    place = Location.of(tmp_path / "out")
    empty = headgate("score", str(label_file(tmp_path)), "--tables", str(tmp_path / "out"))
    assert empty[0] == 1
    assert "holds no records: name the job's --output with --tables" in empty[2]
    commits = Commits.open(
        place, tmp_path / "checkpoint", CommitSettings(watermark_ms=30_000, late_ms=3_600_000, buckets=1)
    )
    values = [500.0 if n == 60 else float(n % 3) for n in range(80)]
    do_batch(commits, 0, [Record("d", T0 + n * 1_000, n, {"a": value}) for n, value in enumerate(values)])
    commits.close()
    code, out, err = headgate("score", str(label_file(tmp_path)), "--tables", str(tmp_path / "out"))
    assert (code, err) == (0, "")
    assert "spike                2       1    0.5000" in out
    assert "spike                1       1    1.0000" in out
    assert "missed: spike of d, 2026-01-01T00:05:00.000Z" in out
    code, out, _ = headgate("score", str(label_file(tmp_path)), "--tables", str(tmp_path / "out"), "--json")
    assert json.loads(out)["total"] == {"recall": 0.5, "precision": 1.0}


def label_file(directory: Path) -> Path:
    path = directory / "mine.csv"
    path.write_text(
        "device,kind,start,end,finds\n"
        "d,spike,2026-01-01T00:01:00Z,2026-01-01T00:01:01Z,spike\n"
        "d,spike,2026-01-01T00:05:00Z,2026-01-01T00:05:01Z,spike\n"
    )
    return path
