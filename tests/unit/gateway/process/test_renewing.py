"""A gateway of a single node that begins anew, so that views are made anew: the conditions, and its configuration."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from gateway.config.config import Config
from gateway.process.backend import LocalBackend
from gateway.process.renewing import AGAIN_S, NewestConfig, Renewing
from gateway.process.store_figures import RENEWED_BYTES_MAX
from store.base.errors import MetadataWentBack, StoreFailed, StoreFull, ViewsDamaged
from store.format.frame import origin_of

pytestmark = pytest.mark.anyio


def backend(*, damages=("one",), damages_of_log=(), log_bytes=1000, trimmed=0, metadata=None, **said):
    """Returns a backend whose store says this of itself."""
    first = origin_of(1) + trimmed
    sound = {"views_rebuildable": True, "error": None, "verifying": False, "full": None, "low": False}
    replication = SimpleNamespace(first=first, end=first + log_bytes)
    controller = SimpleNamespace(error=metadata, topics=list)
    found = LocalBackend.__new__(LocalBackend)
    found.store = SimpleNamespace(
        view_damages=damages, damages=damages_of_log, replication=replication, group=1, **{**sound, **said}
    )
    found.controller = controller
    return found


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, True),
        ({"damages": ()}, False),
        ({"views_rebuildable": False}, False),
        ({"trimmed": 100}, False),  # the log has lost its beginning since the start
        ({"damages_of_log": ("two",)}, False),  # records that the views have, and new ones would lack
        ({"verifying": True}, False),  # the log may be damaged, too
        ({"full": StoreFull("no room")}, False),  # the old views stay while new ones are made
        ({"low": True}, False),
        ({"damages_of_log": ("two",), "error": ViewsDamaged("one")}, False),
        ({"error": ViewsDamaged("one")}, True),
        ({"error": StoreFailed("a sync has failed")}, False),
        ({"log_bytes": RENEWED_BYTES_MAX + 1}, False),  # it serves on, and an operator chooses the time
        ({"log_bytes": RENEWED_BYTES_MAX + 1, "error": ViewsDamaged("one")}, True),
        ({"metadata": StoreFailed("the metadata's log")}, False),
    ],
)
def test_views_are_made_anew_where_that_helps(state, expected):
    assert backend(**state).makes_views_anew is expected


def test_a_disk_that_damages_views_again_and_again_does_not_stop_the_gateway_as_often():
    now_s = 0.0
    renewing, damaged = Renewing(lambda: now_s), backend()
    assert renewing.is_due(damaged)
    now_s = AGAIN_S - 1
    assert not renewing.is_due(damaged)
    now_s = AGAIN_S
    assert renewing.is_due(damaged)


def test_users_that_were_reloaded_stay_when_the_gateway_begins_anew():
    start = Config()
    new = msgspec.structs.replace(start, auth=msgspec.structs.replace(start.auth, failures_max=7))
    newest = NewestConfig(start)
    newest.take(new)
    assert newest.config.auth == new.auth
    assert newest.config.listeners == start.listeners


async def test_a_backend_that_has_ended_ends_the_wait():
    ended = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(Renewing().due(SimpleNamespace(ended=ended)))
    await asyncio.sleep(0)
    assert not waiting.done()
    ended.set_result(MetadataWentBack("forgotten"))
    await asyncio.wait_for(waiting, 60)
