"""The lines of a running job: what they tell, and when they are silent."""

import pytest
from typer.testing import CliRunner

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")

from gateway.cli.spark import SparkFailed, app
from spark import job
from spark.errors import BadOption
from spark.job.idle import LogEndCheck, Unread
from spark.job.options import TelemetryOptions
from spark.job.progress import ProgressLines, duration, progress_line
from spark.tables.manifest import JobProgress, Manifest, sequence
from store.api.message import Message
from store.base.process_errors import ConfigError
from tests.support.store.fake_store import serving

T0 = 1_767_225_600_000
READ = Unread(0)


def manifest(batch: int, records: int, tick: int = 0, **more) -> Manifest:
    progress = JobProgress(
        batch=batch, records=records, stored_at_ms=T0, committed_at_ms=T0 + 1_300, watermark_ms=T0 - 120_000, **more
    )
    counts = {"mqtt": {"ok": records, "late": 3}, "http": {"too_old": 2}}
    return Manifest(job="j", buckets=4, pass_=sequence(batch, tick), progress=progress, counts=counts)


def test_a_line_tells_records_rate_lag_and_what_is_late():
    lines = ProgressLines(10.0, 100.0, manifest(3, 1_000))
    assert not lines.due(109.0)
    assert lines.due(110.0)
    assert lines.look(110.0, manifest(5, 53_310), Unread(120), "") == (
        "batch 5: 53,310 records, 5,231/s, lag 1.3 s, 120 unread, 5 late, windows settled until 2025-12-31 23:58:00Z"
    )
    assert not lines.due(119.0)


def test_before_the_first_record_there_is_no_lag():
    nothing = Manifest(job="j", buckets=4, progress=JobProgress(batch=0, committed_at_ms=T0))
    assert progress_line(nothing, READ, 0.0) == "batch 0: 0 records, 0/s, 0 unread, 0 late"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--memory", "5"], "option memory cannot be 5"),
        (["--starting-offsets", "yesterday"], "option starting-offsets cannot be yesterday"),
        (["--late", "1e300"], "option late must be a number of seconds"),
        (["--config", "/nowhere/x.toml"], "option config cannot be /nowhere/x.toml"),
        (["--findings", "http://"], "option findings cannot be http://: the URL of a gateway"),
        (["--findings", "http://u:secret@a b:x"], "option findings cannot be http://a b:x: the URL of a gateway"),
        (["--findings", "http://a:70000"], "option findings cannot be http://a:70000"),
        (["--findings", "http://u:se/cret@h:1"], "option findings cannot be http://h:1: the URL of a gateway"),
        (["--findings", "http://u:se,cret@h:1"], "option findings cannot be http://h:1: the URL of a gateway"),
        (["--findings", "http://a,http://u:se,c/r?e#t@h:x"], "option findings cannot be http://h:x: the URL"),
        (["--findings", "http://ü..b"], "option findings cannot be http://ü..b"),
        (["--findings", "http://u:p@999.1.1.1"], "option findings cannot be http://999.1.1.1"),
        (["--findings", "http://h\u200b"], "option findings cannot be http://h\u200b"),
        (["--target", "a:99999"], "option target cannot be a:99999"),
        (["--forget", "1"], "option forget must be longer than windows are corrected (option late)"),
    ],
)
def test_a_refused_option_has_its_name_on_the_command_line(tmp_path, given, said):
    ran = CliRunner().invoke(app, ["telemetry", "--once", "--output", str(tmp_path / "out"), *given])
    assert isinstance(ran.exception, SparkFailed)
    assert str(ran.exception).startswith(said)


@pytest.mark.parametrize("url", ["http://h", "https://h:8443/hg", "http://u:p@[::1]:8080", "http://a:1,http://b:2"])
def test_urls_of_gateways_are_taken(url):
    assert TelemetryOptions(output="x", findings=url).findings == url


def test_a_port_beyond_the_largest_is_refused():
    ran = CliRunner().invoke(app, ["telemetry", "--port-offset", "60000"])
    assert isinstance(ran.exception, ConfigError)
    assert str(ran.exception) == "option port-offset cannot be 60000: port 8080 would be 68080"


def test_help_shows_the_tables_of_the_file():
    ran = CliRunner().invoke(app, ["telemetry", "--help"], env={"COLUMNS": "160"})
    assert "[[devices]], [[decode]]" in ran.output


def test_a_reason_for_waiting_is_told_once_and_again_after_something_came():
    lines = ProgressLines(10.0, 0.0, Manifest(job="j", buckets=4))
    nothing = Manifest(job="j", buckets=4)
    gone = Unread(None, "the store at host:1 does not answer")
    assert lines.look(10, nothing, gone, "") == "waiting: the store at host:1 does not answer"
    assert lines.look(20, nothing, gone, "") is None
    assert "0 late" not in (lines.look(30, manifest(0, 10), READ, "") or "")
    assert lines.look(40, manifest(0, 10), READ, "").startswith("waiting: every queue is read to its end")
    assert lines.look(50, manifest(0, 10), READ, "") is None
    assert lines.look(60, manifest(0, 10, tick=1), READ, "") is None  # time has gone on; that is no news
    assert lines.look(70, manifest(1, 20), READ, "").startswith("batch 1: 20 records, 1/s")
    assert lines.look(80, manifest(1, 20), READ, "").startswith("waiting: every queue")


def test_a_batch_that_takes_long_is_told_of_each_time():
    lines = ProgressLines(10.0, 0.0, manifest(0, 10))
    assert lines.look(10, manifest(0, 10), Unread(5), "") is None  # it is about to be read
    assert lines.look(20, manifest(0, 10), Unread(5), "batch 1 is counted, for 12 s") == (
        "waiting: batch 1 is counted, for 12 s"
    )
    assert lines.look(30, manifest(0, 10), Unread(5), "batch 1 is counted, for 22 s") is not None


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0.0 s"), (1.25, "1.2 s"), (119.9, "119.9 s"), (121, "2 min"), (9_000, "2.5 h")]
)
def test_lengths_of_time(seconds, text):
    assert duration(seconds) == text


def test_what_is_unread_is_counted_or_explained(tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text('v1\n{"batchWatermarkMs":0}\n{"16": 1}')
    message = Message(address="t/d", body=b"1", device="d", time_ms=T0)
    with serving({"t": (16, 17)}) as served:
        end, other = (
            LogEndCheck(served.target, ("t",), tmp_path),
            LogEndCheck(served.target, ("u", "v"), tmp_path / "none"),
        )
        assert end.unread(7) == Unread(None, "no record is in the log yet")
        assert other.unread(-1) == Unread(None, "there is no topic u, v yet")
        served.store.append([(16, message), (16, message), (17, message)])
        assert end.unread(3) == Unread(2)
        assert end.unread(7) == Unread(None)  # the first batch is still to come
        served.stop()
        assert end.unread(3) == Unread(None, f"the store at {served.target} does not answer")
        end.close()
        other.close()


@pytest.mark.parametrize(
    ("words", "target", "findings"),
    [
        ([], "127.0.0.1:8081", "http://127.0.0.1:8080"),
        (["--host", "h", "--port-offset", "100"], "h:8181", "http://h:8180"),
        (["--target", "one:8081,two:9081"], "one:8081,two:9081", "http://one:8080"),
        (["--target", "[::1]:8081", "--findings", "http://a:1,http://b:2"], "[::1]:8081", "http://a:1,http://b:2"),
        (["--target", "one:8081", "--findings", "none"], "one:8081", None),
    ],
)
def test_the_command_line_takes_one_gateway_or_several(monkeypatch, words, target, findings):
    asked = []
    monkeypatch.setattr(job, "run", lambda options, say: asked.append((options, say("a line"))))
    ran = CliRunner().invoke(app, ["telemetry", "--session-gap", "60", "--progress", "0", "--history", "9", *words])
    assert ran.exit_code == 0, ran.output
    assert ran.output == "a line\n"
    ((options, _),) = asked
    assert (options.target, options.findings) == (target, findings)
    assert (options.session_s, options.progress_s, options.history_h) == (60.0, 0.0, 9)


@pytest.mark.parametrize("target", ["", "host", "host:", ":8081", "one:8081,two"])
def test_a_target_that_is_none_is_refused(target):
    with pytest.raises(BadOption, match="option target cannot be"):
        TelemetryOptions(output="x", target=target)
