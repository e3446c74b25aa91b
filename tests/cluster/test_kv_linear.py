"""Keys and values over HTTP against a real process that is killed: what clients were told is linearizable."""

import asyncio
import random

import httpx
import pytest

from gateway.remote.http import RemoteGateway
from gateway.remote.kv import GatewayKeys
from tests.support.histories.kv_workload import KEYS, Conflict, KvClient
from tests.support.histories.linearizability import UNKNOWN, Recording, check_history

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CLIENTS = 10
LIVES = 2


class HttpKv:
    """A gateway, as clients see it: revisions are entity tags."""

    def __init__(self, http):
        self.http = http

    async def get(self, key):
        answer = await self.http.get(f"/kv/{key}")
        if answer.status_code == 404:
            return None
        return answer.raise_for_status().content, int(answer.headers["etag"].strip('"'))

    async def put(self, key, value, expected):
        return self._done(await self.http.put(f"/kv/{key}", content=value, headers=condition(expected))).json()[
            "revision"
        ]

    async def delete(self, key, expected):
        answer = await self.http.delete(f"/kv/{key}", headers=condition(expected))
        return answer.status_code != 404 and self._done(answer).status_code == 204

    @staticmethod
    def _done(answer):
        if answer.status_code == 412:
            raise Conflict(answer.json()["revision"])
        return answer.raise_for_status()


def condition(expected):
    if expected is None:
        return {}
    return {"if-match": f'"{expected}"'} if expected else {"if-none-match": "*"}


async def test_what_clients_are_told_over_kill_9_is_linearizable(new_gateway):
    chance, recording = random.Random(5), Recording()
    gateway = new_gateway()
    for life in range(LIVES):
        await asyncio.to_thread(gateway.start)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=10, trust_env=False) as http:
            clients = [KvClient(100 * life + n, HttpKv(http), recording, chance) for n in range(CLIENTS)]
            running = [asyncio.ensure_future(client.run(10_000)) for client in clients]
            enough = len(recording.history) + 400
            async with asyncio.timeout(240):  # on a busy machine
                while len(recording.history) < enough:
                    assert not any(task.done() for task in running)
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(gateway.kill)
            errors = await asyncio.gather(*running, return_exceptions=True)
            assert all(isinstance(error, httpx.TransportError) for error in errors), errors
    await asyncio.to_thread(gateway.start)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=10, trust_env=False) as http:
        last = KvClient(999, HttpKv(http), recording, chance)
        for _ in range(20):
            await last.step()
    assert any(one.returned == UNKNOWN for one in recording.history)
    assert any(isinstance(one.result, tuple) and one.result[0] == "conflict" for one in recording.history)
    assert check_history(recording.history) == []
    await asyncio.to_thread(check_changes, gateway, recording)


def check_changes(gateway, recording):
    """Checks that a watch tells every acknowledged change with its revision, in order."""
    told = {one.result: one for one in recording.history if one.name in {"put", "cas"} and isinstance(one.result, int)}
    newest, found = max(told), []
    with RemoteGateway(gateway.url) as remote:
        keys = GatewayKeys(remote, "default")
        for change, _ in keys.watch(from_revision=0):
            found.append(change)
            if change.revision >= newest:
                break
        assert {entry.key for entry in keys.entries()} <= set(KEYS)
    revisions = [change.revision for change in found]
    assert revisions == sorted(set(revisions))
    changes = {change.revision: change for change in found}
    for revision, one in told.items():
        value = one.argument if one.name == "put" else one.argument[1]
        assert (changes[revision].kind, changes[revision].key, changes[revision].value) == ("put", one.key, value)
