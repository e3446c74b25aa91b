"""The job before a cluster and a gateway that speak TLS with certificates of a private authority, over real sockets."""

import ssl
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

pa = pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

import pyarrow.parquet as pq  # noqa: E402

from gateway.cli.spark import SparkFailed, app  # noqa: E402
from spark import job  # noqa: E402
from spark.errors import SparkError  # noqa: E402
from spark.findings.publishing import FileOutcome, publish_file  # noqa: E402
from spark.job import TelemetryOptions, query  # noqa: E402
from spark.job.idle import Unread  # noqa: E402
from spark.source.columns import schema_of  # noqa: E402
from spark.source.options import SourceOptions  # noqa: E402
from spark.source.readers import StreamReader  # noqa: E402
from spark.tables.commits import Commits  # noqa: E402
from spark.tables.files import Location  # noqa: E402
from spark.telemetry.events import EVENTS  # noqa: E402
from store.api.message import Message  # noqa: E402
from tests.support.process.certificates import Authority, node_files  # noqa: E402
from tests.support.store.fake_store import serving  # noqa: E402

T0 = 1_767_225_600_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def files(authority):
    """Returns the files of a node's certificate, which the job has, too."""
    return node_files(authority, "127.0.0.1")


def asked(monkeypatch, *words: str) -> TelemetryOptions:
    """Returns the options that the command line makes."""
    found = []
    monkeypatch.setattr(job, "run", lambda options, say: found.append(options))
    ran = CliRunner().invoke(app, ["telemetry", *words])
    assert ran.exit_code == 0, ran.output
    return found[0]


def test_the_job_reads_a_cluster_that_speaks_tls(monkeypatch, tmp_path, files):
    words = ["--ca-file", str(files.authority), "--cert-file", str(files.certificate), "--key-file", str(files.key)]
    with serving({"t": (16,)}, credentials=files.server("127.0.0.1")) as served:
        served.store.append([(16, Message(address="t/d", body=b"1", device="d", time_ms=T0))])
        place = ["--target", served.target, "--output", str(tmp_path / "out")]
        secret, plain = asked(monkeypatch, *place, *words), asked(monkeypatch, *place)
        options = SourceOptions.parse(query._source_options(secret))
        reader = StreamReader(options, schema_of(("device", "offset"), options.format))
        (part,) = reader.partitions({"16": 0}, {"16": 1})
        assert [row for batch in reader.read(part) for row in batch.to_pylist()] == [{"device": "d", "offset": 0}]
        reader.stop()
        commits = Commits.open(secret.place, secret.checkpoint_dir, query.settings_of(secret))
        checkpoint = secret.checkpoint_dir / "offsets"
        checkpoint.mkdir()
        (checkpoint / "0").write_text('v1\n{"batchWatermarkMs":0}\n{"16": 0}')
        with query._Ticker(None, commits, secret) as ticker:
            assert ticker.log_end.unread(0) == Unread(1)
        with query._Ticker(None, commits, plain) as ticker:
            assert ticker.log_end.unread(0) == Unread(None, f"the store at {served.target} does not answer")
        commits.close()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--ca-file", "ca.pem"], "option cert-file is missing; the three files of TLS are given together"),
        (
            ["--ca-file", "no.pem", "--cert-file", "no.pem", "--key-file", "no.pem"],
            "option ca-file, cert-file and key-file cannot be used: ",
        ),
        (["--gateway-ca-file", "no.pem"], "option gateway-ca-file cannot be "),
    ],
)
def test_files_that_cannot_be_used_are_refused_before_anything_is_written(tmp_path, monkeypatch, words, why):
    monkeypatch.setattr(query, "find_java_home", lambda: tmp_path)
    ran = CliRunner().invoke(app, ["telemetry", "--output", str(tmp_path / "out"), *words])
    assert isinstance(ran.exception, SparkFailed)
    assert str(ran.exception).startswith(why)
    assert not (tmp_path / "out").exists()


class _Taking(BaseHTTPRequestHandler):
    """Takes every event."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answers with 202."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(202)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@pytest.fixture
def gateway(files):
    """Yields the URL of a server of HTTPS that takes every event."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Taking)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_findings_are_published_at_a_gateway_of_a_private_authority(monkeypatch, tmp_path, files, gateway):
    place = Location.of(tmp_path)
    row = {"time": datetime.now(UTC), "device": "d", "kind": "spike"}
    with place.writing("anomalies/one.parquet") as file:
        pq.write_table(pa.Table.from_pylist([row], schema=EVENTS), file)

    def outcome(*words: str) -> FileOutcome:
        options = replace(asked(monkeypatch, "--findings", gateway, *words), retry_s=0.0)
        return publish_file(place, "one.parquet", query.publishing_of(options))

    assert outcome("--gateway-ca-file", str(files.authority)) == FileOutcome(published=1)
    with pytest.raises(SparkError, match=r"does not answer: .*CERTIFICATE_VERIFY_FAILED"):
        outcome()
