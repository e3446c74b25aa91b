"""A gateway process ends when it is asked to, or for an error of its backend."""

import asyncio
from types import SimpleNamespace

import pytest

from gateway.process.app import _until_stopped
from store.base.errors import MetadataWentBack
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("with_backend", [True, False])
async def test_it_runs_until_it_is_asked_to_stop(with_backend):
    run = SimpleNamespace(stopped=asyncio.Event())
    ended = asyncio.get_running_loop().create_future() if with_backend else None
    running = asyncio.ensure_future(_until_stopped(run, ended))
    await asyncio.sleep(0)
    assert not running.done()
    run.stopped.set()
    await running


async def test_it_stops_when_its_backend_has_ended():
    ended = asyncio.get_running_loop().create_future()
    running = asyncio.ensure_future(_until_stopped(SimpleNamespace(stopped=asyncio.Event()), ended))
    await asyncio.sleep(0)
    assert not running.done()
    ended.set_result(MetadataWentBack("forgotten"))
    await until(running.done)
