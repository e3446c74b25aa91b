"""Nodes learn where controllers are, and find them again although their configuration names only those of before."""

import pytest

from controller.api.commands import CreateTopic
from controller.api.requests import RemoveMember, Transfer
from controller.disk.known import KnownControllers
from controller.remote import finding
from controller.remote.remote import RemoteController
from tests.support.controller.controllers import Controllers, now_ms
from tests.support.process.waiting import until


def test_what_was_learned_is_there_after_a_restart(tmp_path):
    known = KnownControllers(tmp_path / "controllers")
    known.learn(["b:1", "c:1", "b:1", ""])
    known.learn([])
    assert KnownControllers(tmp_path / "controllers").kept == ("b:1", "c:1")
    assert (tmp_path / "controllers").read_text() == "b:1\nc:1\n"


def test_what_cannot_be_kept_stops_nobody(tmp_path, caplog):
    KnownControllers(tmp_path / "missing" / "controllers").learn(["b:1"])
    (tmp_path / "controllers.new").mkdir()
    known = KnownControllers(tmp_path / "controllers")
    known.learn(["b:1"])
    assert "has to name a controller" in caplog.text
    (tmp_path / "controllers").write_bytes(b"\n\n")
    assert KnownControllers(tmp_path / "controllers").kept == ()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_node_finds_controllers_of_which_its_configuration_names_none_any_more(tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "CONFIGURED_S", 0.1)
    async with Controllers(tmp_path, count=1) as controllers:
        await controllers.leader()
        client = controllers.remote(1)
        known = KnownControllers(tmp_path / "controllers")
        await finding.find(client, known)
        finding.keep(client, known)
        await until(lambda: known.kept == (controllers.addresses[1],))
        await controllers.start(2, join=True)
        await until(lambda: len(controllers.nodes[1].membership.voters) == 2)
        await until(lambda: len(known.kept) == 2)
        await client.do(Transfer(to=2))
        await until(lambda: controllers.nodes[2].leading is not None)
        await client.do(RemoveMember(id=1))
        await until(lambda: known.kept == (controllers.addresses[2],))
        await controllers.stop(1)
        again = RemoteController([controllers.addresses[1]], now_ms=now_ms)
        controllers.remotes.append(again)
        await finding.find(again, KnownControllers(tmp_path / "controllers"))
        await again.do(CreateTopic(name="found", queues=1))
