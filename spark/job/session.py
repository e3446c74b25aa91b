"""A local Spark: finds a Java it can run on, and builds a session that keeps to this machine."""

import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark import parsing
from spark.errors import BadOption, MissingJdk, SparkError
from spark.job.failures import gist
from spark.job.package import PACKAGE, write_package
from spark.job.worker_python import worker_python

JAVA_MIN = 17
REGISTERED = "HEADGATE_SPARK_REGISTERED"  # in the environment: the module for Spark's own search offers nothing
_JVMS = Path("/usr/lib/jvm")
_VERSION = re.compile(r'"(?:1\.)?(\d+)')
_PROBE_S = 20
_PYTHON = "python3"  # of workers, where nothing says another
_LOGGING = Path(__file__).with_name("log4j2.properties")  # without it Spark tells which defaults it takes
_MODULE = "jdk.incubator.vector"  # Spark does not start without it, and trimmed runtimes leave it out


def find_java_home(environment: Mapping[str, str] | None = None, jvms: Path = _JVMS) -> Path:
    """Returns the home of a Java for Spark: `JAVA_HOME`, else that on `PATH`, else the newest of `/usr/lib/jvm`.

    Raises `MissingJdk`.
    """
    environment = os.environ if environment is None else environment
    seen: list[str] = []
    for home in _candidates(environment, jvms):
        version = _java_version(home)
        if version is not None and version >= JAVA_MIN and _complete(home):
            return home
        if version is not None:
            seen.append(f"{home} is {version}" + ("" if version < JAVA_MIN else f" without {_MODULE}"))
    found = f" ({'; '.join(dict.fromkeys(seen))})" if seen else ""
    raise MissingJdk(
        f"Spark needs a JDK {JAVA_MIN} or newer and there is none{found}: "
        "install one (Debian and Ubuntu: apt install openjdk-17-jre-headless) or set JAVA_HOME"
    )


def _candidates(environment: Mapping[str, str], jvms: Path) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(java).resolve().parent.parent
    if jvms.is_dir():
        homes = sorted({path.resolve() for path in jvms.iterdir() if (path / "bin" / "java").exists()})
        yield from sorted(homes, key=lambda home: _java_version(home) or 0, reverse=True)


def _java_version(home: Path) -> int | None:
    """Returns the major version of the Java there; None when there is none that runs."""
    java = home / "bin" / "java"
    if not java.exists():
        return None
    if (text := _release(home).get("JAVA_VERSION")) is None:
        try:
            ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_PROBE_S, check=False)  # noqa: S603  # the user's own Java
        except (OSError, subprocess.TimeoutExpired):
            return None
        text = ran.stderr + ran.stdout
    found = _VERSION.search(text)
    return int(found[1]) if found else None


def _complete(home: Path) -> bool:
    """Returns whether the runtime has the module Spark needs; one that does not list its modules is believed to."""
    modules = _release(home).get("MODULES")
    return modules is None or _MODULE in modules.strip('"').split()


def _release(home: Path) -> dict[str, str]:
    """Returns a Java home's `release` file, which says more, and sooner, than starting it; empty: there is none."""
    try:
        lines = (home / "release").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line)


def build_session(
    name: str = "headgate",
    *,
    cores: int = 2,
    shuffle_partitions: int = 4,
    driver_memory: str = "1g",
    local_dir: Path | None = None,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    log_level: str = "WARN",
) -> SparkSession:
    """Returns a session with the `headgate` source registered.

    It listens on loopback only, shows no web page, and logs from `log_level` on. `settings` go over everything set
    here. With the `master` of a cluster the package is shipped to its workers, which have the packages that Headgate
    needs. Raises `BadOption` and `MissingJdk` before anything starts, `SparkError` when Spark does not start.
    """
    for option, value, parse in (("memory", driver_memory, parsing.memory), ("master", master, parsing.master)):
        try:
            parse(value or "local")
        except ValueError as error:
            raise BadOption(option, f"cannot be {value}: {error}") from error
    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    local = master is None or master.startswith("local")
    os.environ["PYSPARK_PYTHON"] = worker_python() if local else sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ[REGISTERED] = "1"
    if local_dir is not None:
        os.environ["SPARK_LOCAL_DIRS"] = str(local_dir)  # the setting of that name is warned about at every start
    conf = SparkConf().setAppName(name).setMaster(master or f"local[{cores}]")
    for key, value in (_settings(shuffle_partitions, driver_memory, local_dir) | dict(settings or {})).items():
        conf.set(key, value)
    try:
        with _own_java(conf):
            session = SparkSession.builder.config(conf=conf).getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise SparkError(
            f"Spark does not start (options master, memory): {gist(str(error))} Java may have said why, above."
        ) from error
    session.sparkContext.setLogLevel(log_level)
    if not local:
        _ship(session)
    register(session)
    return session


@contextmanager
def _own_java(conf: SparkConf) -> Iterator[None]:
    """Starts the session's Java in a process group of its own, unless there is one.

    A signal to this process's group, as that of `timeout` or of a terminal, then leaves Java to this process, which may
    have a batch to finish. Java ends when its standard input does, however this process has ended; one that is not
    waited for until it listens does not, so it is killed where an error or a signal cuts the start short.
    """
    launch: Any = launch_gateway  # it has no types
    context: Any = SparkContext  # it has the gateway in private attributes
    if context._gateway is not None:  # noqa: SLF001
        yield
        return
    before = _group_leaders()
    try:
        context._ensure_initialized(gateway=launch(conf, {"process_group": 0}))  # noqa: SLF001
        yield
    except BaseException:
        for pid in _group_leaders() - before:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        context._gateway = context._jvm = None  # noqa: SLF001
        raise


def _group_leaders() -> set[int]:
    """Returns the children of this process that lead a process group (proc(5))."""
    found = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread or the child has ended
            found |= {int(pid) for pid in (thread / "children").read_text().split()}
    return {pid for pid in found if _group_of(pid) == pid}


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _ship(session: SparkSession) -> None:
    """Sends the package to every worker of a cluster; the driver serves it until it ends."""
    directory = Path(mkdtemp(prefix="headgate-package-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    write_package(directory / PACKAGE)
    session.sparkContext.addPyFile(str(directory / PACKAGE))


def register(session: SparkSession) -> None:
    """Registers the `headgate` source with a session, the one that takes filters where the session allows that."""
    from spark.source.datasource import (  # noqa: PLC0415  # pyarrow is not needed to look for a JDK
        PUSHDOWN,
        HeadgateDataSource,
        PushingDataSource,
    )

    context = session.sparkContext
    if (context.master or "").startswith("local") and context.pythonExec == _PYTHON:
        context.pythonExec = sys.executable  # the session was there before its Python could be chosen
    pushes = str(session.conf.get(PUSHDOWN, "false")).lower() == "true"
    session.dataSource.register(PushingDataSource if pushes else HeadgateDataSource)


def _settings(shuffle_partitions: int, driver_memory: str, local_dir: Path | None) -> dict[str, str]:
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": driver_memory,
        "spark.sql.debug.maxToStringFields": "100",  # all columns of the source: else Spark warns of each query
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if _LOGGING.exists():  # it is a file on no disk where the package is a zip
        settings["spark.driver.defaultJavaOptions"] = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    if local_dir is not None:
        settings["spark.sql.warehouse.dir"] = str(local_dir / "warehouse")
    return settings
