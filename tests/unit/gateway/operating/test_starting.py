"""A cluster on one machine is started role by role, watched, and stopped with all of its processes."""

import asyncio
import contextlib
import sys

import pytest

from controller.api.client import ControllerUnreachable
from controller.node.local import LocalController
from gateway.operating import starting
from gateway.operating.starting import run_cluster
from gateway.process.child import Child, ChildFailed
from gateway.process.local_cluster import ClusterPlan, LocalCluster
from store.base.runner import ServerRun, StopRequested

pytestmark = pytest.mark.anyio
WAITS = "import time; time.sleep(600)"
ENDS = "print('no disk')"


class Cluster(LocalCluster):
    """A cluster of processes that only wait, or end at once, and of which some never become ready."""

    def __init__(self, directory, *, unready=(), ending=()):
        super().__init__(ClusterPlan(directory, 1, 2, 1, 1, 1))
        self.unready, self.ending = unready, ending
        self.started = []

    def _launched(self, name):
        self.started.append(name)
        program = ENDS if name in self.ending else WAITS
        return Child.start(name, [sys.executable, "-c", program], log=self.plan.directory / f"{name}.log")

    def trouble(self, name):
        if name in self.ending:
            self.children[name].process.wait()
        return "no master" if name in self.unready else None


@pytest.fixture
async def operator(tmp_path, monkeypatch):
    """Runs a cluster as the command line does, but for the signals; controllers answer at the second question."""
    controller = LocalController.open(tmp_path / "controller", now_ms=lambda: 0)

    class Operator:
        def __init__(self):
            self.shown, self.questions = [], 0
            self.more = asyncio.Event()  # to be read

        def show(self, line, kind):
            self.shown.append((kind, line))
            self.more.set()

        async def reads(self, kind, line):
            """Waits until a line that begins so was shown."""
            while not any(one == kind and text.startswith(line) for one, text in self.shown):
                self.more.clear()
                await self.more.wait()

        @contextlib.asynccontextmanager
        async def running(self, cluster):
            run = ServerRun.__new__(ServerRun)
            async with contextlib.AsyncExitStack() as run.stack:
                run.stopped = asyncio.Event()
                yield run, asyncio.create_task(run_cluster(run, cluster, self.show))
            assert cluster.children == {}

        async def asked(self, addresses, work):
            self.questions += 1
            if self.questions == 1:
                raise ControllerUnreachable("nothing listens")
            await work(controller)

    it = Operator()
    it.controller = controller
    monkeypatch.setattr(starting, "asked", it.asked)
    monkeypatch.setattr("gateway.process.supervisor.WAITING_S", 0.01)
    yield it
    await controller.close()


async def test_each_role_is_started_when_the_one_before_is_ready(tmp_path, operator):
    cluster = Cluster(tmp_path)
    async with operator.running(cluster) as (run, running):
        await operator.reads("progress", "\nready")
        assert cluster.started == ["controller-1", "store-0-1", "store-1-1", "proxy-1"]
        assert operator.controller.group(1) is not None
        run.stopped.set()
        await running
        children = list(cluster.children.values())
        assert len(children) == 4
    assert not any(child.running for child in children)
    assert ("waiting", "waiting for controller-1: nothing listens") in operator.shown


async def test_a_cluster_that_is_asked_to_stop_while_it_starts_is_stopped(tmp_path, operator):
    cluster = Cluster(tmp_path, unready=("store-1-1",))
    async with operator.running(cluster) as (run, running):
        await operator.reads("waiting", "waiting for store-1-1: no master")
        run.stopped.set()
        with pytest.raises(StopRequested):
            await running
    assert "proxy-1" not in cluster.started


async def test_a_process_that_ends_before_it_serves_ends_the_cluster(tmp_path, operator):
    cluster = Cluster(tmp_path, ending=("store-0-1",), unready=("store-0-1",))
    async with operator.running(cluster) as (_, running):
        with pytest.raises(ChildFailed, match="store-0-1 has ended: no disk"):
            await running


async def test_a_process_that_ends_later_is_shown_once(tmp_path, operator, monkeypatch):
    monkeypatch.setattr(starting, "WATCH_S", 0.01)
    cluster = Cluster(tmp_path)
    async with operator.running(cluster) as (run, running):
        await operator.reads("progress", "\nready")
        cluster.children["proxy-1"].process.kill()
        await operator.reads("ended", "proxy-1 has ended")
        cluster.children["store-0-1"].process.kill()
        await operator.reads("ended", "store-0-1 has ended")
        run.stopped.set()
        await running
    ended = [line.partition(" ")[0] for kind, line in operator.shown if kind == "ended"]
    assert ended == ["proxy-1", "store-0-1"]
