"""aiocoap's client with OSCORE (RFC 8613) against a whole gateway, over real UDP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiocoap import Context, Message, error
from aiocoap.numbers.codes import DELETE, GET, POST, PUT

from adapters.coap import FACTORY
from tests.support.coap.coap_gateway import coap_gateway
from tests.support.coap.oscore_client import oscore_client, provision

pytestmark = pytest.mark.anyio

ANSWER_TIMEOUT_S = 60
LARGE = bytes(range(256)) * 40


@asynccontextmanager
async def serving(directory: Path, access: Any = None, **coap: Any) -> AsyncIterator[str]:
    """Yields the URI of a gateway that takes only protected messages, of dev1 and dev2."""
    sections = {
        "listeners": {"coap": {"port": 0}, "coap-tcp": {"enabled": False}},
        "auth": {"anonymous": "nobody", "oscore_file": str(directory / "oscore.json")},
        "adapters": {"coap": {"oscore": True, **coap}},
        **({} if access is None else {"access": access}),
    }
    async with coap_gateway(directory, "coap", sections) as uri:
        yield uri


@pytest.fixture(autouse=True)
def coap_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.process.app.adapter_factories", lambda: {"coap": FACTORY})


async def ask(context: Context, code: int, uri: str, payload: bytes = b"", **options: Any) -> Message:
    message = Message(code=code, uri=uri, payload=payload)
    for name, value in options.items():
        setattr(message.opt, name, value)
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        return await context.request(message).response


async def test_a_protected_client_publishes_and_reads(tmp_path: Path) -> None:
    provision(tmp_path / "oscore.json", "dev1")
    async with serving(tmp_path) as uri:
        context = await oscore_client(tmp_path / "client", uri)
        try:
            path = f"{uri}/t/plant/temp"
            assert (await ask(context, GET, path)).code.dotted == "4.04"
            assert (await ask(context, PUT, path, b"1", content_format=0)).code.dotted == "2.01"
            assert (await ask(context, PUT, path, b"2", content_format=0)).code.dotted == "2.04"
            value = await ask(context, GET, path)
            assert (value.code.dotted, value.payload) == ("2.05", b"2")
            assert (await ask(context, POST, f"{uri}/t/plant/large", LARGE)).code.dotted == "2.01"
            assert (await ask(context, GET, f"{uri}/t/plant/large")).payload == LARGE
            assert (await ask(context, DELETE, path)).code.dotted == "2.02"
        finally:
            await context.shutdown()


async def test_a_protected_client_observes(tmp_path: Path) -> None:
    provision(tmp_path / "oscore.json", "dev1", "dev2")
    async with serving(tmp_path) as uri:
        watcher = await oscore_client(tmp_path / "watcher", uri)
        other = await oscore_client(tmp_path / "other", uri, client_id="02")
        try:
            path = f"{uri}/t/plant/temp"
            await ask(other, POST, path, b"0")
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                asked = watcher.request(Message(code=GET, uri=path, observe=0))
                assert (await asked.response).payload == b"0"
                heard = aiter(asked.observation)
                for n in range(40):
                    await ask(other, POST, path, b"%d" % n)
                    while (await anext(heard)).payload != b"%d" % n:
                        pass
        finally:
            await watcher.shutdown()
            await other.shutdown()


async def test_who_has_no_context_is_turned_away(tmp_path: Path) -> None:
    provision(tmp_path / "oscore.json", "dev1")
    async with serving(tmp_path) as uri:
        plain = await Context.create_client_context()
        unknown = await oscore_client(tmp_path / "unknown", uri, client_id="09")
        wrong = await oscore_client(tmp_path / "wrong", uri, secret="00" * 16)
        try:
            assert (await ask(plain, POST, f"{uri}/t/plant/temp", b"1")).code.dotted == "4.01"
            for context in (unknown, wrong):
                with pytest.raises(error.Error):  # for a response without protection
                    await ask(context, POST, f"{uri}/t/plant/temp", b"1")
        finally:
            for context in (plain, unknown, wrong):
                await context.shutdown()


async def test_rights_are_those_of_the_contexts_user(tmp_path: Path) -> None:
    provision(tmp_path / "oscore.json", "dev1", "dev2")
    rules = [{"effect": "allow", "filters": ["${device}/#"], "users": ["*"]}]
    async with serving(tmp_path, access={"default": "deny", "rules": rules}) as uri:
        clients = [await oscore_client(tmp_path / f"c{n}", uri, client_id=f"0{n}") for n in (1, 2)]
        try:
            for number, context in enumerate(clients, 1):
                for address, own in (("dev1", number == 1), ("dev2", number == 2)):
                    path = f"{uri}/t/{address}/temp"
                    published = await ask(context, POST, path, b"1")
                    assert published.code.dotted == ("2.01" if own else "4.03")
                    read = await ask(context, GET, path, observe=0)
                    assert read.code.dotted == ("2.05" if own else "4.03")
                    assert (read.opt.observe is not None) is own
        finally:
            for context in clients:
                await context.shutdown()


async def is_refused_at_last(context: Context, uri: str) -> bool:
    """Returns whether one of some requests gets no protected response."""
    for _ in range(20):
        try:
            await ask(context, POST, uri, b"2")
        except error.Error:
            return True
    return False


async def test_a_context_that_is_removed_and_one_that_is_added_count_soon(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("gateway.oscore.contexts_file.LOOK_INTERVAL_MS", 0)
    monkeypatch.setattr("adapters.coap.oscore.contexts.CHECK_MS", 0)
    provision(tmp_path / "oscore.json", "dev1")
    async with serving(tmp_path) as uri:
        first = await oscore_client(tmp_path / "first", uri)
        second = await oscore_client(tmp_path / "second", uri, client_id="02")
        try:
            assert (await ask(first, POST, f"{uri}/t/a", b"1")).code.dotted == "2.01"
            provision(tmp_path / "oscore.json", "dev1", "dev2")
            assert (await ask(second, POST, f"{uri}/t/a", b"1")).code.dotted == "2.01"
            provision(tmp_path / "oscore.json")
            assert await is_refused_at_last(first, f"{uri}/t/a")
        finally:
            await first.shutdown()
            await second.shutdown()
