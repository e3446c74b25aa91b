"""Names of sinks are looked up in threads that nothing else waits for."""

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from gateway.push import lookups as module
from gateway.push.guard import SinkGuard, SinkUnreachable, resolve
from gateway.push.lookups import NameLookups
from gateway.push.settings import SubscriptionsConfig

pytestmark = pytest.mark.anyio

PATIENCE_S = 30.0
MANY = 40  # more than the threads of an event loop's executor


class Names:
    """A system that finds `quick` names at once, and the others when `answer` is set, where `missing` not."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer = threading.Event()

    def getaddrinfo(self, host: str, _port: object, **_: object) -> list[tuple[object, ...]]:
        self.asked.append(host)
        if host == "missing.example.com":
            raise socket.gaierror(-2, "Name or service not known")
        if not host.startswith("quick"):
            self.answer.wait(PATIENCE_S)
        found = "93.184.216.34"
        return [(2, 1, 6, "", (found, 0)), (2, 1, 6, "", (found, 0))]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    found = Names()
    monkeypatch.setattr(module.socket, "getaddrinfo", found.getaddrinfo)
    yield found
    found.answer.set()


async def test_names_that_nobody_answers_for_hold_up_no_other_and_no_file(names: Names) -> None:
    guard = SinkGuard(SubscriptionsConfig())
    slow = [asyncio.ensure_future(resolve(guard, f"slow{number}.example.com")) for number in range(MANY)]
    async with asyncio.timeout(PATIENCE_S / 2):
        while len(names.asked) < MANY:
            await asyncio.sleep(0.01)
        assert await resolve(guard, "quick.example.com") == ["93.184.216.34"]
        assert await asyncio.to_thread(lambda: "a file") == "a file"
    assert not any(one.done() for one in slow)
    names.answer.set()
    assert await asyncio.gather(*slow) == [["93.184.216.34"]] * MANY


async def test_one_name_is_looked_up_once_at_a_time_though_callers_give_up(names: Names) -> None:
    lookups = NameLookups()
    first, second = (asyncio.ensure_future(lookups.addresses("slow.example.com")) for _ in range(2))
    while not names.asked:
        await asyncio.sleep(0.01)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    names.answer.set()
    assert await second == ["93.184.216.34"]
    assert names.asked == ["slow.example.com"]
    assert await lookups.addresses("slow.example.com") == ["93.184.216.34"]
    assert len(names.asked) == 2


async def test_names_beyond_the_limit_wait(names: Names) -> None:
    lookups = NameLookups(threads_max=1)
    slow, quick = (asyncio.ensure_future(lookups.addresses(f"{one}.example.com")) for one in ("slow", "quick"))
    while not names.asked:
        await asyncio.sleep(0.01)
    names.answer.set()
    assert await slow == await quick
    assert names.asked == ["slow.example.com", "quick.example.com"]


async def test_a_name_that_was_found_the_last_time_does_not_wait_for_those_that_nobody_answers_for(
    names: Names,
) -> None:
    lookups = NameLookups(threads_max=1)
    assert await lookups.addresses("quick.example.com") == ["93.184.216.34"]
    slow = [asyncio.ensure_future(lookups.addresses(f"slow{number}.example.com")) for number in range(3)]
    while len(names.asked) < 2:
        await asyncio.sleep(0.01)
    async with asyncio.timeout(PATIENCE_S / 2):
        assert await lookups.addresses("quick.example.com") == ["93.184.216.34"]
    names.answer.set()
    await asyncio.gather(*slow)
    assert names.asked == [
        *("quick.example.com", "slow0.example.com", "quick.example.com"),
        *("slow1.example.com", "slow2.example.com"),
    ]


async def test_of_the_names_that_were_found_not_all_are_known(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOUND_MAX", 2)
    lookups = NameLookups()
    for number in (1, 2, 1, 3):
        await lookups.addresses(f"quick{number}")
    with pytest.raises(OSError, match="not known"):
        await lookups.addresses("missing.example.com")
    assert [*lookups._found] == ["quick1", "quick3"]


async def test_a_name_that_is_not_there_is_said(names: Names) -> None:
    with pytest.raises(SinkUnreachable, match=r"missing\.example\.com is not found: .* not known"):
        await resolve(SinkGuard(SubscriptionsConfig()), "missing.example.com")
    assert names.asked == ["missing.example.com"]
