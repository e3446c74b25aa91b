"""A configuration that is read again: what is said of what does not change by that."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway.config.config import Config
from gateway.runtime import reloading
from gateway.runtime.reloading import reread
from gateway.security.auth_settings import AuthConfig
from gateway.security.limits_settings import LimitsConfig
from store.base.process_errors import ConfigError

pytestmark = pytest.mark.anyio

START = Config()
LIMITED = msgspec.structs.replace(START, limits=LimitsConfig(connections_per_address=1))


async def test_what_waits_for_a_restart_is_what_differs_from_the_start():
    hangups, again = asyncio.Event(), asyncio.get_running_loop().call_soon_threadsafe
    found = [LIMITED, LIMITED, LIMITED, ConfigError("limits: a mistake"), START]

    def load() -> Config:
        one = found.pop(0)
        if found:
            again(hangups.set)
        if isinstance(one, ConfigError):
            raise one
        return one

    hangups.set()
    with capture_logs() as lines:
        async with asyncio.timeout(60), aclosing(reread(START, hangups, load)) as news:
            assert [await anext(news) for _ in range(4)] == [LIMITED, LIMITED, LIMITED, START]
    assert [line["sections"] for line in lines if "sections" in line] == [["limits"]] * 3
    assert [line["mistakes"] for line in lines if "mistakes" in line] == [["limits: a mistake"]]


def test_another_file_of_keys_waits_for_a_restart_and_other_users_do_not():
    """Listeners read `auth.psk_file` at the start; it was neither applied nor named."""
    users = msgspec.structs.replace(START, auth=AuthConfig(failures_max=7))
    keys = msgspec.structs.replace(LIMITED, auth=AuthConfig(psk_file=Path("other.json")))
    assert reloading.waiting_for_a_restart(START, users) == []
    assert reloading.waiting_for_a_restart(START, keys) == ["limits", "auth.psk_file"]


async def test_what_was_asked_for_while_the_gateway_began_anew_is_read_then():
    hangups, reading, go_on = asyncio.Event(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def load() -> Config:
        loop.call_soon_threadsafe(reading.set)
        go_on.wait(60)
        return LIMITED

    hangups.set()
    async with asyncio.timeout(60):
        first = asyncio.ensure_future(anext(reread(START, hangups, load)))
        await reading.wait()
        first.cancel()
        await asyncio.wait([first])
        go_on.set()
        async with aclosing(reread(START, hangups, load)) as news:
            assert await anext(news) == LIMITED


async def test_a_configuration_that_cannot_be_applied_does_not_count(monkeypatch):
    def apply(_hub: object, config: Config) -> int:
        if config is LIMITED:
            raise ConfigError("auth: a file is gone")
        return 0

    async def news() -> AsyncIterator[Config]:
        yield LIMITED
        yield START

    monkeypatch.setattr(reloading, "apply", apply)
    applied: list[Config] = []
    await reloading.follow(None, news(), applied.append)
    assert applied == [START]
