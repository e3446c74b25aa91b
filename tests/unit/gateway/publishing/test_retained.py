"""Retained messages in the store."""

import asyncio

import pytest

from gateway.port.reads import Retained
from gateway.publishing.retained import retained_change, retained_page
from store.api.message import Message
from store.format.frame import UnplacedFrame
from store.local.local import LocalStore

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path):
    async with await LocalStore.open(tmp_path) as opened:
        yield opened


async def retain(store, *messages):
    for message in messages:
        row, record = retained_change(message, 0)
        done = asyncio.get_running_loop().create_future()
        store.log.append(UnplacedFrame.build(row, record), done.set_result)
        await done


async def test_a_message_is_kept_until_an_empty_one_comes(store):
    await retain(store, Message("a/b", b"1", retain=True), Message("a/c", b"2", retain=True))
    page = await retained_page(store, Retained(pattern="a/+"), now_ms=0)
    assert [(one.address, one.body) for one in page.messages] == [("a/b", b"1"), ("a/c", b"2")]
    await retain(store, Message("a/b", b"", retain=True))
    page = await retained_page(store, Retained(pattern="a/+"), now_ms=0)
    assert [one.address for one in page.messages] == ["a/c"]


async def test_what_has_expired_is_not_kept(store):
    await retain(
        store,
        Message("a", b"lasts", retain=True),
        Message("b", b"over", expires_at_ms=1_000, retain=True),
        Message("c", b"before all time", expires_at_ms=-5, retain=True),
        Message("d", b"far", expires_at_ms=(1 << 64) - 1, retain=True),
    )
    while await store.keys.count("retained/", "retained0") > 2:
        await asyncio.sleep(0)
    page = await retained_page(store, Retained(pattern="#"), now_ms=0)
    assert [one.address for one in page.messages] == ["a", "d"]
