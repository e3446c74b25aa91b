"""Controllers as real processes that lose their directories: nothing committed is lost, and they say what is wrong."""

import shutil
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from controller.api.commands import ClusterLimits, CreateTopic
from controller.incarnations import operator_texts
from controller.remote.remote import RemoteController
from tests.support.controller.controllers import ControllerProcesses, now_ms
from tests.support.process.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.anyio]
PATIENCE_S = 120.0


def not_ready(process):
    """Returns why a controller is not ready, as /readyz says it; empty when it is ready, or does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{process.admin_port}/readyz", timeout=5):
            return []
    except urllib.error.HTTPError as error:
        return error.read().decode().splitlines()
    except OSError:
        return []


async def create(controllers, name, *ids):
    remote = RemoteController(
        [controllers.addresses[id_] for id_ in ids], now_ms=now_ms, limits=ClusterLimits(default_queues=1), budget_s=60
    )
    try:
        await remote.ready()
        return await remote.do(CreateTopic(name=name))
    finally:
        await remote.close()


async def test_a_controller_that_lost_its_memory_does_not_vote(tmp_path):
    controllers = ControllerProcesses(tmp_path)
    a, b, c = controllers.all.values()
    try:
        controllers.start()
        await until((b.data_dir / "raft" / "cluster").exists)
        b.kill()
        topic = await create(controllers, "committed", 1, 3)
        a.kill()
        c.kill()
        shutil.rmtree(c.data_dir)
        b.spawn()
        c.spawn()
        empty = operator_texts.EMPTY.format(cluster=(b.data_dir / "raft" / "cluster").read_text().strip())
        await until(lambda: not_ready(c) == ["the controllers have no leader", empty], PATIENCE_S)
        await until(
            lambda: operator_texts.LOST.format(id=3, address=controllers.addresses[3]) in not_ready(b), PATIENCE_S
        )
        assert b.status()["leader"] is c.status()["leader"] is None
        controllers.start(1)
        b.wait()
        c.wait()
        assert await create(controllers, "committed", 2, 3) == topic
        other = await create(controllers, "another", 2, 3)
        assert not set(other.queues) & set(topic.queues)
        await until(lambda: [one["id"] for one in a.status()["members"] if not one["learner"]] == [1, 2, 3], PATIENCE_S)
    finally:
        controllers.close()


def recover(process, *answers):
    """Runs `headgate controller recover` on a controller's directory."""
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", "controller", "recover", "-c", process.directory / f"c{process.id}.toml"],
        input="".join(f"{answer}\n" for answer in answers),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


async def test_a_cluster_goes_on_from_one_controller_that_is_left(tmp_path):
    controllers = ControllerProcesses(tmp_path)
    a, b, c = controllers.all.values()
    try:
        controllers.start()
        known = await create(controllers, "known", 1, 2, 3)
        await until(lambda: all(one.status()["topics"] == 1 for one in controllers.all.values()), PATIENCE_S)
        old = RemoteController(list(controllers.addresses.values()), now_ms=now_ms)
        await old.ready()
        b.kill()
        lost = await create(controllers, "lost", 1, 3)
        await until(lambda: old.topic("lost") is not None, PATIENCE_S)
        a.kill()
        c.kill()
        shutil.rmtree(a.data_dir)
        done = recover(b, "y")
        assert done.returncode == 0, done.stderr
        assert "1 topics" in done.stdout
        controllers.start(2)
        assert await create(controllers, "known", 2) == known
        new = await create(controllers, "new", 2)
        assert min(new.queues) > max(lost.queues)
        a.spawn()  # with an empty directory, and with that of before
        c.spawn()
        a.wait()
        await until(lambda: operator_texts.RECOVERED in not_ready(c), PATIENCE_S)
        c.kill()
        shutil.rmtree(c.data_dir)
        controllers.start(3)
        await until(lambda: [one["id"] for one in b.status()["members"] if not one["learner"]] == [1, 2, 3], PATIENCE_S)
        await until(lambda: old.topic("new") == new and old.topic("lost") is None, PATIENCE_S)
        await old.close()
    finally:
        controllers.close()
