"""A configuration that is read again: what is said of what does not change by that."""

import asyncio
from contextlib import aclosing

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway.config.config import Config
from gateway.runtime.reloading import reread
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
