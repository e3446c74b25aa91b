"""The last values of all addresses that a filter matches, over a real store."""

from itertools import chain

import pytest

from gateway.delivery import last_value as module
from gateway.delivery.last_value import last_value, last_values
from gateway.domain.errors import Cause, Refusal
from gateway.port.reads import LastValues
from store.api.message import Message
from store.format.frame import HEADER
from store.local.local import LocalStore
from tests.support.gateway.last_values import publish

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path):
    async with await LocalStore.open(tmp_path, cache_bytes_max=0) as store:
        yield store


async def pages(store, pattern, **asked):
    """Returns the bodies of each page."""
    found, after = [], ""
    while True:
        page = await last_values(store, LastValues(pattern=pattern, after=after, **asked), now_ms=50)
        found.append([message.body for message in page.messages])
        assert all(message.id for message in page.messages)
        if page.after is None:
            return found
        after = page.after


async def test_the_newest_of_each_address_that_matches(store):
    await publish(store, Message("s/1/t", b"old"), Message("s", b"root"), Message("sx/1/t", b"no"))
    await publish(store, Message("s/1/t", b"1"), Message("s/2/t", b"2", id="own"), Message("s/2/h", b"3"))
    await publish(store, Message("s/3/t", b"over", expires_at_ms=50))
    assert await pages(store, "s/+/t") == [[b"1", b"2"]]
    assert await pages(store, "s/#") == [[b"root", b"1", b"3", b"2"]]
    assert await pages(store, "+/2/#") == [[b"3", b"2"]]
    assert await pages(store, "s/2/t") == [[b"2"]]
    assert await pages(store, "none/#") == [[]]
    with pytest.raises(Refusal) as refused:
        await pages(store, "s/#/t")
    assert refused.value.cause is Cause.MALFORMED


async def test_a_page_is_bounded_by_messages_bytes_and_addresses(store, monkeypatch):
    await publish(store, *(Message(f"s/{n}", b"%d" % n) for n in range(9)), Message("s/9/x", b"x"))
    monkeypatch.setattr(module, "PAGE", 3)
    everything = [b"%d" % n for n in range(9)]
    assert list(chain(*await pages(store, "s/+", limit=2))) == everything
    assert max(map(len, await pages(store, "s/+", limit=2))) == 2
    monkeypatch.setattr(module, "PAGE_BYTES", 3)
    assert list(map(len, await pages(store, "s/+"))) == [3, 3, 3, 0]
    monkeypatch.setattr(module, "LOOKED_MAX", 2)
    assert list(chain(*await pages(store, "s/+/x"))) == [b"x"]
    assert (await pages(store, "s/+/x"))[0] == []


async def test_a_last_value_that_is_lost_is_an_error_that_says_how_to_go_on(store, tmp_path):
    """A value that is left out of a list looks as if it had never been there."""
    await publish(store, Message("s/1", b"1"))
    hurt = await publish(store, Message("s/2/+", b"2"))
    await publish(store, Message("s/3", b"3"))
    path = next((tmp_path / "log").iterdir())
    data = bytearray(path.read_bytes())
    data[hurt.frame + HEADER.size] ^= 1
    path.write_bytes(data)
    first = await last_values(store, LastValues(pattern="s/#"), now_ms=0)
    assert ([one.body for one in first.messages], first.after) == ([b"1"], "s/1")
    with pytest.raises(Refusal, match=r"the last value of s/2/\+ is lost.*after=s%2F2%2F%2B$") as caught:
        await last_values(store, LastValues(pattern="s/#", after=first.after), now_ms=0)
    assert caught.value.cause is Cause.DAMAGED
    rest = await last_values(store, LastValues(pattern="s/#", after="s/2/+"), now_ms=0)
    assert ([one.body for one in rest.messages], rest.after) == ([b"3"], None)
    # A reader without rights to that address gets no hint of it.
    others = await last_values(store, LastValues(pattern="s/#"), now_ms=0, readable=lambda one: one != "s/2/+")
    assert [one.body for one in others.messages] == [b"1", b"3"]


async def test_an_address_without_a_message_has_no_last_value(store):
    assert await last_value(store, "s/3", now_ms=0) is None
