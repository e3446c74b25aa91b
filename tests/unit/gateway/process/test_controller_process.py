"""`headgate controller`: what it makes of its configuration, and what its admin port says."""

import asyncio
import gc
import resource
import shutil
import sys

import httpx
import pytest
from typer.testing import CliRunner

from controller.api.client import ControllerError
from controller.api.commands import ClusterLimits, CreateTopic
from controller.disk.cluster_file import ClusterFile
from controller.disk.migration import RAFT
from controller.node import run as controller_process
from controller.node.node import ControllerNode
from controller.node.run import _admin
from controller.raft import StorageFailed, StorageFull
from gateway.cli.commands import app
from gateway.config.cluster_settings import ClusterConfig, ControllerConfig, NodesTls
from gateway.config.config import Config
from gateway.config.nodes import controller_start, node_credentials
from store.base import runner
from store.base.admin import AdminAddress
from store.base.clock import now_ms
from store.base.process_errors import ConfigError, ServerFailed
from store.node import run as store_process
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio
THREE = ClusterConfig(controllers={"1": "10.0.0.1:8082", "2": "10.0.0.2:8082", "3": "[::1]:8082"})


def place(cluster=THREE, *, join=False, **mine):
    return controller_start(Config(cluster=cluster, controller=ControllerConfig(**mine)), join=join)


def test_it_is_one_of_those_that_are_named():
    found = place(id=2)
    assert found.address == "10.0.0.2:8082"
    assert found.members == {1: "10.0.0.1:8082", 2: "10.0.0.2:8082", 3: "[::1]:8082"}
    assert not found.join


@pytest.mark.parametrize("process", [controller_process, store_process])
def test_it_may_open_as_many_files_as_the_machine_lets_it(process, monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    seen = []

    def run(running):
        running.close()
        seen.append(resource.getrlimit(resource.RLIMIT_NOFILE))

    monkeypatch.setattr(runner.uvloop, "run", run)
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    monkeypatch.setattr(gc, "set_threshold", lambda _: None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard // 2), hard))
    try:
        process.serve(None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert seen == [(hard, hard)]


async def test_a_directory_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").touch()
    said = r"^\S+: the data directory cannot be made or written \(Not a directory\); write another data_dir$"
    settings = controller_process.ControllerRun(
        id=1,
        listen="127.0.0.1:0",
        address="127.0.0.1:1",
        members={1: "127.0.0.1:1"},
        directory=tmp_path / "file" / "below",
        name="n1",
        limits=ClusterLimits(),
        tick_ms=100,
        admin=AdminAddress("127.0.0.1", 0),
    )
    with pytest.raises(ServerFailed, match=said):
        await controller_process._run(None, settings)


def test_alone_it_is_a_cluster_of_one():
    found = place(ClusterConfig(), id=5, port=9000)
    assert (found.address, found.members) == ("127.0.0.1:9000", {5: "127.0.0.1:9000"})


def test_who_joins_need_not_be_named_and_may_be_elsewhere_than_it_listens():
    found = place(id=4, join=True, advertise="c4.example:1")
    assert (found.address, found.join, sorted(found.members)) == ("c4.example:1", True, [1, 2, 3])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[cluster]\ncontrollers = { 1 = '127.0.0.1:1' }\n[controller]\nid = 7\n", "controller.id: 7 is none of 1"),
        ("[controller]\nhost = '0.0.0.0'\n", "controller.host: 0.0.0.0 can be reached from other machines"),
        ("[controller]\njoin = true\n", "cluster.controllers: is empty"),
        ("[controller]\nport = 0\n", "controller.port: 0 gives a port"),
    ],
)
def test_a_wrong_configuration_is_said_in_one_line(tmp_path, text, expected):
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    found = CliRunner().invoke(app, ["controller", "-c", str(file), "--data-dir", str(tmp_path)])
    assert isinstance(found.exception, ConfigError)
    assert str(found.exception).startswith(expected)
    assert "\n" not in str(found.exception)


def test_without_certificates_only_this_machine_is_served():
    assert node_credentials(ClusterConfig(), host="127.0.0.1", key="x") == (None, None)
    assert node_credentials(ClusterConfig(insecure=True), host="0.0.0.0", key="x") == (None, None)
    with pytest.raises(ConfigError, match=r"x: 0\.0\.0\.0 can be reached"):
        node_credentials(ClusterConfig(), host="0.0.0.0", key="x")


def test_certificates_that_cannot_be_read_are_named(tmp_path):
    file = tmp_path / "none.pem"
    cluster = ClusterConfig(tls=NodesTls(cert_file=file, key_file=file, ca_file=file))
    with pytest.raises(ConfigError, match=r"none\.pem cannot be read"):
        node_credentials(cluster, host="127.0.0.1", key="x")


async def test_a_directory_that_is_removed_ends_the_controller(tmp_path, monkeypatch):
    monkeypatch.setattr(controller_process, "PRESENCE_LOOK_S", 0.01)
    node = await ControllerNode.open(tmp_path / "data", address="", now_ms=now_ms)
    waiting = asyncio.ensure_future(controller_process._until(asyncio.Event(), node, tmp_path / "data"))
    await node.do(CreateTopic(name="a", queues=1))
    await until(lambda: ClusterFile(tmp_path / "data" / RAFT).id)  # no file is written there from now on
    assert not waiting.done()
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(ServerFailed, match="was removed or replaced"):
        async with asyncio.timeout(20):
            await waiting
    await node.close()


async def test_the_admin_port_says_how_it_is(tmp_path):
    node = await ControllerNode.open(tmp_path / "data", address="", now_ms=now_ms)
    admin = await _admin(AdminAddress("127.0.0.1", 0), node)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin.port}") as http:
        await node.do(CreateTopic(name="a", queues=1))
        assert (await http.get("/readyz")).status_code == 200
        status = (await http.get("/status")).json()
        assert (status["role"], status["topics"], status["members"][0]["id"]) == ("leader", 1, 1)
        page = (await http.get("/metrics")).text
        assert "headgate_controller_leading 1.0" in page
        assert "headgate_controller_topics 1.0" in page

        save = node.storage.save

        def full(_ready):
            raise StorageFull("no room is left")

        node.storage.save = full
        with pytest.raises(ControllerError):
            await node.do(CreateTopic(name="full", queues=1))
        answer = await http.get("/readyz")
        assert (answer.status_code, "no room is left" in answer.text) == (503, True)
        assert (await http.get("/healthz")).status_code == 200
        node.storage.save = save
        await until(lambda: node.driver.full is None)
        assert (await http.get("/readyz")).status_code == 200

        def failing(_ready):
            raise StorageFailed("no space left on device")

        node.storage.save = failing
        with pytest.raises(StorageFailed):
            await node.do(CreateTopic(name="b", queues=1))
        await node.failed
        for path in ("/readyz", "/healthz"):
            answer = await http.get(path)
            assert (answer.status_code, "no space left" in answer.text) == (503, True)
    await admin.stop()
    await node.close()
