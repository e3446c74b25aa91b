"""A single node whose log is damaged and whose views are lost says what to do, and that works."""

import shutil

import pytest
from typer.testing import CliRunner

from controller.api.commands import CreateTopic
from gateway.cli import commands as cli
from gateway.config.config import load
from gateway.process.backend import local_backend
from gateway.process.shared_store import shared_store
from store.base.errors import NotRebuildable
from tests.support.store.store_kit import append, frame

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def headgate(*arguments):
    return CliRunner().invoke(cli.app, list(arguments))


async def test_views_that_cannot_be_made_anew_have_a_remedy_that_works(tmp_path):
    data_dir = tmp_path / "data"
    config = load(environ={}, overrides={"store": {"data_dir": str(data_dir)}})
    async with local_backend(config) as alone:
        (queue,) = (await alone.controller.do(CreateTopic(name="a", queues=1))).queues
        for body in (b"the first", b"the second"):
            await append(alone.store, frame((queue, body)))
    (log,) = (data_dir / "log").iterdir()
    log.write_bytes(log.read_bytes().replace(b"the first", b"the worst"))
    shutil.rmtree(data_dir / "views")
    remedy = f"accept the loss with headgate store rebuild-views --force {data_dir}"
    for backend in (local_backend, shared_store):
        with pytest.raises(NotRebuildable) as error:
            async with backend(config):
                pass
        assert remedy in str(error.value)
    refused = headgate("store", "rebuild-views", str(data_dir))
    assert isinstance(refused.exception, NotRebuildable)
    assert remedy in str(refused.exception)
    assert headgate("store", "rebuild-views", "--force", str(data_dir)).exit_code == 0
    async with local_backend(config) as alone:
        assert (await alone.store.queues.bounds(queue)).next == 1
        assert alone.warnings()
