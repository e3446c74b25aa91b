"""The counts of the members of shared subscriptions among several proxies."""

import asyncio
from types import SimpleNamespace

import pytest

from gateway.queues.shared.counts import SharedCounts

pytestmark = pytest.mark.anyio


async def test_nothing_goes_on_where_following_has_failed():
    """It begins again after a bug of ours, and each time one more task published the same counts."""

    def watch(*_):
        raise KeyError("a bug of ours")

    counts = SharedCounts(SimpleNamespace(keys=SimpleNamespace(watch=watch)), SimpleNamespace(alone=False, id="p"))
    before = asyncio.all_tasks()
    with pytest.raises(KeyError):
        await counts.follow()
    assert asyncio.all_tasks() == before
