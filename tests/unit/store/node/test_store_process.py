"""`headgate store`: what its admin port says of a node."""

import socket
from types import SimpleNamespace

import pytest

from controller.api.client import GroupConfig
from controller.api.commands import RemoveGroup
from controller.api.names import no_group
from controller.remote import remote
from controller.remote.remote import RemoteController
from gateway.config.config import Config, RpcConfig, StoreConfig
from gateway.process.nodes import store_settings
from store.base.process_errors import ServerFailed, listening_on
from store.node.run import _Process
from store.node.settings import Credentials
from store.serving.rpc import StoreService
from tests.support.controller.controllers import Controllers
from tests.support.process.waiting import until
from tests.support.store.node_kit import GROUP, StoreGroup

pytestmark = pytest.mark.anyio


@pytest.fixture
async def group(tmp_path):
    async with Controllers(tmp_path / "controllers", count=1) as controllers:
        await controllers.leader()
        alone = StoreGroup(tmp_path, controllers, count=1, config=GroupConfig(replicas=1, min_in_sync=1))
        async with alone:
            await alone.in_sync()
            yield alone


async def test_a_store_of_a_removed_group_is_not_ready(group):
    """It went on saying that it was, as nobody tells a node that its group is gone."""
    process = _Process(store_settings(Config(store=StoreConfig(group=GROUP))))
    process.node, process.controller = group.nodes["n1"], group.nodes["n1"].controller
    await until(lambda: process.ready().ready)
    await group.client.do(RemoveGroup(number=GROUP))
    reason = f"store group {GROUP} was removed from the cluster: stop this store"
    await until(lambda: reason in process.ready().reasons)
    assert not process.status().ready


async def test_a_store_says_why_it_is_not_registered(tmp_path, caplog, monkeypatch):
    """It said "not registered with the controllers yet" whatever was wrong, and its log nothing for 30 s."""
    monkeypatch.setattr(remote, "FIRST_WARN_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    process = _Process(store_settings(Config(store=StoreConfig(group=GROUP))))
    process.controller = RemoteController([nobody], now_ms=lambda: 0)
    prefix = f"not registered with the controllers yet: no controller is reached: {nobody}: "
    try:
        await until(lambda: process.ready().reasons[0].startswith(prefix))
        await until(lambda: f"no controller is reached yet: {nobody}: " in caplog.text)
    finally:
        await process.controller.close()
    async with Controllers(tmp_path / "controllers", count=1) as controllers:
        await controllers.leader()
        process.controller = controllers.remote()
        await process.controller.ready()
        await until(lambda: process.ready().reasons == (no_group(GROUP),))


async def test_a_certificate_that_has_expired_is_a_warning(group):
    process = _Process(store_settings(Config(store=StoreConfig(group=GROUP))))
    process.node, process.controller = group.nodes["n1"], group.nodes["n1"].controller
    process._credentials = Credentials(channel=SimpleNamespace(until_s=1.0))
    await until(lambda: process.ready().ready)
    assert process.ready().warnings[0].startswith("the certificate of cluster.tls.cert_file has expired at 1970-01-01")


@pytest.mark.parametrize("role", ["store", "serve"])
async def test_an_rpc_port_that_is_taken_is_said_with_its_setting(tmp_path, role):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = rf"^rpc cannot listen on 127.0.0.1:{port}: .* write another rpc.port or rpc.host$"
        async with Controllers(tmp_path / "controllers", count=1) as controllers:
            controller = controllers.remote()
            await controller.ready()
            if role == "store":
                config = Config(rpc=RpcConfig(port=port), store=StoreConfig(data_dir=tmp_path / "store", group=GROUP))
                with pytest.raises(ServerFailed, match=said):
                    await _Process(store_settings(config))._start(controller)
            else:
                with pytest.raises(ServerFailed, match=said), listening_on("rpc", "127.0.0.1", port):
                    await StoreService.start(None, controller, f"127.0.0.1:{port}")
