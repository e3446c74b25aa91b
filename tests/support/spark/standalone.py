"""A Spark standalone cluster on loopback: a master and workers, each a process of its own; and jobs for it.

Its Pythons have every dependency and no Headgate: what executors know of that is what a job has shipped.
"""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from tests.support.process.cpu_quota import CpuQuota

START_S = 240.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")


class Standalone:
    """The running cluster. With `share` each worker and its executors have so much of one processor, together."""

    def __init__(self, directory: Path, java_home: Path, share: float | None = None) -> None:
        import pyspark

        self.share = share
        self.quotas: dict[str, CpuQuota] = {}
        self.directory = directory
        self.home = Path(pyspark.__file__).parent
        self.python = directory / "python"
        site = self.home.parent
        self.python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site}" exec {sys.executable} -S "$@"\n')
        self.python.chmod(0o755)
        others = ("PYSPARK_", "SPARK_", "PYTHONPATH", "HEADGATE_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        self.environ = clean | {
            "JAVA_HOME": str(java_home),
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": str(self.python),
        }
        self.url = ""
        self.processes: dict[str, subprocess.Popen] = {}

    def start(self, workers: int) -> None:
        """Starts the master, and workers with a core each."""
        self._spawn("master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = self._said("master", _MASTER).group(1)
        for n in range(workers):
            self.start_worker(f"worker-{n}")

    def start_worker(self, name: str) -> None:
        """Starts another worker, with one core."""
        options = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1600m", "--webui-port", "0")
        self._spawn(name, "worker.Worker", *options, "--work-dir", str(self.directory / f"work-{name}"), self.url)
        self._said(name, re.compile("Successfully registered with master"))

    def submit(
        self, name: str, package: Path, *arguments: str, settings: dict[str, str] | None = None
    ) -> subprocess.Popen:
        """Submits a job to all workers with spark-submit, which ships a package.

        The driver has it by its path, too: Spark gives what is shipped to all workers but those that plan streams.
        """
        given = {
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            **(settings or {}),
        }
        confs = [part for key, value in given.items() for part in ("--conf", f"{key}={value}")]
        command = ("--master", self.url, "--py-files", str(package), *confs, *arguments)
        driver = {"PYTHONPATH": str(package)}
        return self._start(name, str(self.home / "bin" / "spark-submit"), *command, environ=driver)

    def kill(self, name: str) -> None:
        """Ends a process with kill -9, a worker's executors with it."""
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait(20)

    def log(self, name: str) -> str:
        """Returns what a process has said."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def _spawn(self, name: str, main: str, *arguments: str) -> None:
        command = (str(self.home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", *arguments)
        if self.share is not None and name != "master":
            self.quotas[name] = CpuQuota(name, self.share)
            command = self.quotas[name].entering(*command)
        self._start(name, *command)

    def _start(self, name: str, *command: str, environ: dict[str, str] | None = None) -> subprocess.Popen:
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=self.environ | (environ or {}),
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def _said(self, name: str, pattern: re.Pattern) -> re.Match:
        until = time.monotonic() + START_S
        while (found := pattern.search(self.log(name))) is None:
            assert time.monotonic() < until, f"{name}: {self.log(name)[-2000:]}"
            time.sleep(0.05)
        return found

    def close(self) -> None:
        """Ends every process, and what it has started."""
        for process in reversed(self.processes.values()):
            for number in (signal.SIGTERM, signal.SIGKILL):
                if process.poll() is None:
                    try:
                        os.killpg(process.pid, number)
                        process.wait(20)
                    except (ProcessLookupError, subprocess.TimeoutExpired):
                        continue
        for quota in self.quotas.values():
            quota.close()


@contextmanager
def standalone(directory: Path, java_home: Path, *, workers: int = 2, share: float | None = None):
    """Yields a cluster, and ends it whatever happens."""
    cluster = Standalone(directory, java_home, share)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.close()
