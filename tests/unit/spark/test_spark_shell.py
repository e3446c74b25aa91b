"""Statements and their rows as text, the views' refusals, and the package: what needs no JVM."""

import subprocess
import sys
import zipfile
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import Row
from typer.testing import CliRunner

from gateway.cli import spark as cli_spark
from gateway.cli.spark import SparkFailed, pair
from spark.errors import BadOption, DiskFull, MissingJdk, SparkError
from spark.job.failures import gist, job_error
from spark.job.options import TelemetryOptions
from spark.job.package import write_package
from spark.job.query import disks_of
from spark.shell import open_session, statements


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("select 1", ["select 1"]),
        (" select 1 ; ; select 2;", ["select 1", "select 2"]),
        ("select ';', \";\", `;`; select 2", ["select ';', \";\", `;`", "select 2"]),
        ("select 'it\\'s;'; x", ["select 'it\\'s;'", "x"]),
        ("select 1 -- one; two\n; select /* ; */ 2", ["select 1 -- one; two", "select /* ; */ 2"]),
        ("", []),
    ],
)
def test_semicolons_end_statements(text, found):
    assert statements.split(text) == found


class Frame:
    def __init__(self, names, rows):
        self.columns, self._rows = names, rows

    def limit(self, count):
        return Frame(self.columns, self._rows[:count])

    def collect(self):
        return self._rows


class Session:
    def __init__(self, frame):
        self._frame = frame

    def sql(self, _statement):
        return self._frame


ROWS = [
    Row(device="d1", body=bytearray(b"on"), at=datetime(2026, 1, 2, tzinfo=UTC), tags={"a": [1, None]}),
    Row(device=None, body=bytearray(b"\xff"), at=date(2026, 1, 2), tags=None),
    Row(device="x" * 99, body=None, at=None, tags={}),
]
NAMES = ["device", "body", "at", "tags"]


def test_rows_are_shown_as_a_table_csv_and_json():
    session = Session(Frame(NAMES, ROWS))
    table = list(statements.text_of(session, "", "table", 2))
    assert table[0].split() == NAMES
    assert table[2].split("  ")[0] == "d1"
    assert table[2].endswith('2026-01-02 00:00:00+00:00  {"a":[1,null]}')
    assert "0xff" in table[3]
    assert table[4] == "-- more than 2 rows: the rest is left out (--limit)"
    assert "x" * 59 + "…" in list(statements.text_of(session, "", "table", 5))[4]
    assert list(statements.text_of(session, "", "csv", 1))[:2] == [
        "device,body,at,tags",
        'd1,on,2026-01-02 00:00:00+00:00,"{""a"":[1,null]}"',
    ]
    assert next(statements.text_of(session, "", "json", 1)) == (
        '{"device":"d1","body":"on","at":"2026-01-02T00:00:00Z","tags":{"a":[1,null]}}'
    )
    assert list(statements.text_of(Session(Frame([], [])), "", "table", 1)) == []


def test_what_cannot_be_opened_is_said_before_a_jvm_starts(tmp_path):
    for given, message in (
        ({"options": {"filtre": "a/#"}}, "filter is"),
        ({"target": "nowhere"}, "HOST:PORT"),
        (
            {"tables": "ftp://host/x"},
            "option tables cannot be ftp://host/x: a path of this machine, or s3://bucket/path",
        ),
    ):
        with pytest.raises(BadOption, match=message):
            open_session(**given)
    with pytest.raises(SparkFailed, match="option option cannot be 'x': it must be NAME=VALUE"):
        pair("x", "option")


def test_a_full_disk_in_sparks_words_is_told_as_one(caplog):
    stream = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: No space left on device SQLSTATE: XXKST"
    )
    said = str(job_error("the telemetry query failed", f"{stream}\n=== Streaming Query ===\nx", "/t or /c"))
    assert said.startswith("the disk of /t or /c is full: No space left on device. Free some")
    raw = "Traceback:\nOSError: [Errno 28] No space left on device\n"
    assert isinstance(job_error("x", raw, "/t"), DiskFull)
    own = f"Traceback:\nspark.errors.DiskFull: {DiskFull('/mine')}\n"
    assert str(job_error("the query failed", own, "/t")) == f"the query failed: {DiskFull('/mine')}"
    assert (
        str(job_error("the query failed", "ZeroDivisionError: by zero", "/t"))
        == "the query failed: ZeroDivisionError: by zero"
    )
    assert [record.getMessage() for record in caplog.records] == ["the query failed: ZeroDivisionError: by zero"]
    plain = TelemetryOptions(output="/t", target="h:1")
    assert disks_of(plain) == "/t"
    apart = TelemetryOptions(output="/t", checkpoint=Path("/c"), target="h:1")
    assert disks_of(apart) == "/t or that of its checkpoint /c"


def test_the_gist_of_a_failure_is_the_last_error_of_python_without_our_class_names():
    failure = """[STREAM_FAILED] Query [id = 1] terminated with exception: boom
Traceback (most recent call last):
  File "x.py", line 1
store.base.errors.StoreUnreachable: the store at 127.0.0.1:1 cannot be read, UNAVAILABLE for 0 s: refused

=== Streaming Query ===
a.b.C: not this
"""
    assert gist(failure) == "the store at 127.0.0.1:1 cannot be read, UNAVAILABLE for 0 s: refused"
    assert gist("spark.errors.DataLoss: queue 3: gone") == "queue 3: gone"
    assert gist("ZeroDivisionError: division by zero") == "ZeroDivisionError: division by zero"
    assert gist("\n[TABLE_OR_VIEW_NOT_FOUND] no view\n\nJVM stacktrace:\na.B: x") == "[TABLE_OR_VIEW_NOT_FOUND] no view"


def test_a_worker_finds_the_source_in_the_package_alone(tmp_path):
    target = tmp_path / "headgate.zip"
    assert write_package(target) > 100
    assert write_package(tmp_path / "again.zip") > 0
    assert target.read_bytes() == (tmp_path / "again.zip").read_bytes()
    names = zipfile.ZipFile(target).namelist()
    assert "spark/source/datasource.py" in names
    assert not [name for name in names if name.startswith(("gateway/", "tests/")) or "__pycache__" in name]
    site = next(path for path in sys.path if path.endswith("site-packages"))
    script = (
        "import os; import spark.source.datasource as it, pyspark_headgate; print(it.__file__, *os.environ.values())"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={"PYTHONPATH": f"{target}:{site}"},  # of which the links to this repository are not followed
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    found, *environ = ran.stdout.split()
    assert found == f"{target}/spark/source/datasource.py", ran.stderr
    assert sys.executable in environ  # PYSPARK_PYTHON: Spark's workers run the same Python, activated or not


def test_a_table_that_the_job_has_not_written_is_told_with_its_place():
    class Session:
        def sql(self, statement):
            raise AnalysisException(
                f"[TABLE_OR_VIEW_NOT_FOUND] The table or view `{statement}` cannot be found. Verify the spelling"
            )

    def why(name, **where):
        with pytest.raises(SparkError) as caught:
            list(statements.text_of(Session(), name, "table", 10, **where))
        return str(caught.value)

    assert why("latest", tables_in="/t").startswith("there is no table latest in /t yet: headgate spark telemetry")
    assert "`lates` cannot be found" in why("lates", tables_in="/t")
    assert "`latest` cannot be found" in why("latest")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sql", "select 1", "--option", "filtre=a/#"], "option filtre is not an option; filter is"),
        (["sql", "select 1", "--option", "filter=a/#/b"], "option filter cannot be 'a/#/b'"),
        (["sql", "select 1", "--target", "nowhere"], "it must be HOST:PORT"),
        (["sql", "select 1"], "Spark needs a JDK"),
        (["shell"], "Spark needs a JDK"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(arguments, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def missing():
        raise MissingJdk("Spark needs a JDK 17 or newer and there is none")

    monkeypatch.setattr("spark.job.session.find_java_home", missing)
    result = CliRunner().invoke(cli_spark.app, arguments)
    assert isinstance(result.exception, SparkFailed)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_the_package_is_written_by_the_command_line(tmp_path):
    result = CliRunner().invoke(cli_spark.app, ["package", str(tmp_path / "headgate.zip")])
    assert "spark-submit --py-files" in result.output
    assert zipfile.is_zipfile(tmp_path / "headgate.zip")


def test_a_wrong_format_or_place_is_refused_before_spark_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(cli_spark, "_session", lambda *_, **__: pytest.fail("Spark is started for nothing"))
    for words, why in (
        (["sql", "select 1", "--format", "xml"], "option format cannot be 'xml': it must be one of table, csv, json"),
        (["package", str(tmp_path / "nowhere" / "x.zip")], "x.zip cannot be written: No such file or directory"),
        (["package", str(tmp_path)], "cannot be written: Is a directory"),
    ):
        ran = CliRunner().invoke(cli_spark.app, words)
        assert isinstance(ran.exception, SparkFailed)
        assert why in str(ran.exception)
    assert set(cli_spark.FORMATS) == set(statements._WRITERS)


def test_a_wrong_statement_is_one_sentence_without_pysparks_log(capsys):
    class Session:
        def sql(self, statement):
            PySparkLogger.getLogger("SQLQueryContextLogger").exception("[NO_COLUMN] no column", errorClass="NO_COLUMN")
            raise AnalysisException(f"[NO_COLUMN] no column in {statement}")

    with pytest.raises(SparkError, match="no column in select x"):
        list(statements.text_of(Session(), "select x", "table", 10))
    assert capsys.readouterr().err == ""
