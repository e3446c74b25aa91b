"""Fixtures for every test: real gateways in processes of their own."""

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.support.process.gateways import GatewayProcess
from tests.support.process.logging_state import logging_restored
from tests.support.process.loops import AsyncioLoop
from tests.support.process.ports import release_ports

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # tests may import gRPC before `store`, which says why

# Spark begins faster, and leaves more of the processors to others, where Java neither optimizes what runs once nor
# collects garbage in parallel.
for options in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
    os.environ.setdefault(options, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Collecting makes some million objects, and all of them stay: no search for cycles finds one among them.
gc.disable()

# A busy machine may take any time for an example. By day all runs of a commit try the same examples, so that a failure
# is the commit's; by night each run tries others.
hypothesis.settings.register_profile("headgate", deadline=None, derandomize=not os.environ.get("HEADGATE_NIGHTLY"))
hypothesis.settings.load_profile("headgate")

# A test may import the rig of another one by its file's name, whichever folder of tests that is in.
KINDS = ("unit", "property", "sim", "interop", "cluster")
sys.path += sorted({str(file.parent) for kind in KINDS for file in (Path(__file__).parent / kind).rglob("*.py")})


SIMULATIONS = Path(__file__).parent / "sim"
CLUSTERS = Path(__file__).parent / "cluster"
SHARE_A_SESSION = frozenset({"test_spark_source.py", "test_spark_views.py", "test_spark_writer.py"})
LAST = 3  # the rank of a file without processes
# Fixtures that start processes.
GATEWAYS = frozenset({"new_gateway", "shared_gateway"})


class ByFile(LoadFileScheduling):
    """Gives each file to one worker, and those that share a Spark session, which is slow to start, to the same one."""

    def _split_scope(self, nodeid: str) -> str:
        file = Path(super()._split_scope(nodeid))
        return str(file.parent if file.name in SHARE_A_SESSION else file)

    def _reschedule(self, node: WorkerController) -> None:
        """Gives a worker two tests at least, as it does not begin one before it knows what follows.

        What a crashed worker had goes to others, and with it the files that it was done with: whoever gets one of those
        alone would wait for ever, and the run with it.
        """
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Shares tests out as `ByFile` does, where `--dist loadfile` is asked for."""
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that start processes as slow, and puts the longest files first where several workers share the tests.

    A test starts processes where it uses a fixture that does, or where its module has `subprocess`. Those marked
    `nightly` are skipped by day.
    """
    by_day = pytest.mark.skip(reason="nightly: set HEADGATE_NIGHTLY")
    for item in items:
        if isinstance(item, pytest.Function) and (
            not GATEWAYS.isdisjoint(item.fixturenames) or hasattr(item.module, "subprocess")
        ):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("nightly") is not None and not os.environ.get("HEADGATE_NIGHTLY"):
            item.add_marker(by_day)
    if "PYTEST_XDIST_WORKER" in os.environ:  # a long test that begins last leaves processors idle
        ranks: dict[Path, int] = {}
        for item in items:
            ranks[item.path] = min(_rank(item), ranks.get(item.path, _rank(item)))
        files = _spread(sorted(ranks, key=lambda path: ranks[path]), early=sum(rank < LAST for rank in ranks.values()))
        places = {path: place for place, path in enumerate(files)}
        items.sort(key=lambda item: places[item.path])


def pytest_collection_finish() -> None:
    """Searches for cycles again, among what the tests make."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Lets the end of the process free everything: DuckDB says on standard error what it finds alive."""
    gc.unfreeze()


def _spread(files: list[Path], *, early: int) -> list[Path]:
    """Returns the files with those of clusters among the early ones at equal distances.

    A test of a cluster mostly waits for processes. Beside others it leaves them the processors; two beside each other
    take long.
    """
    clusters = [path for path in files if CLUSTERS in path.parents]
    others = [path for path in files if CLUSTERS not in path.parents]
    early -= len(clusters)
    for number, path in enumerate(clusters):
        others.insert(number + early * number // len(clusters), path)
    return others


def _rank(item: pytest.Item) -> int:
    """Returns how early a file with this test begins: Spark first, then the simulations, then what is slow."""
    if item.get_closest_marker("spark"):
        return 0
    if SIMULATIONS in item.path.parents:
        return 1
    return 2 if item.get_closest_marker("slow") or CLUSTERS in item.path.parents else LAST


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Returns asyncio, the only loop of tests marked `anyio`."""
    return "asyncio", {"loop_factory": AsyncioLoop}


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Keeps what a command sets up for its logs from the tests behind it."""
    with logging_restored():
        yield


@pytest.fixture(autouse=True, scope="module")
def _ports_of_a_file() -> Iterator[None]:
    """Lets other test processes have the ports that the tests of a file have claimed."""
    yield
    release_ports()


@pytest.fixture(scope="session")
def shared_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Yields one gateway for all tests that leave it as they found it; use addresses of your own."""
    gateway = GatewayProcess(tmp_path_factory.mktemp("shared") / "data").start()
    yield gateway
    gateway.close()


@pytest.fixture
def new_gateway(tmp_path: Path) -> Iterator[Callable[..., GatewayProcess]]:
    """Makes gateways that are this test's alone: `new_gateway("--flag", environ={})`, not yet started."""
    with contextlib.ExitStack() as stack:

        def make(*arguments: str, environ: dict[str, str] | None = None) -> GatewayProcess:
            gateway = GatewayProcess(tmp_path / f"data{len(made)}", *arguments, environ=environ)
            made.append(gateway)
            stack.callback(gateway.close)
            return gateway

        made: list[GatewayProcess] = []
        yield make
