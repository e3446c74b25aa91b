"""Keys and values as adapters ask for them."""

from gateway.kv.kv import KeyValues
from gateway.port.kv import (
    StoreKey,
)
from tests.support.gateway.asking import ask, refusal_of


class Connection:
    def __init__(self, number):
        self.id, self.gone = number, False


class KvRig:
    """A store, the requests of connections, and refusals by their cause."""

    def __init__(self, store, **options):
        self.store, self.keys = store, KeyValues(store, **options)
        self.one, self.other = Connection(1), Connection(2)

    async def ask(self, request, of=None):
        return await ask(of or self.one, request, keys=self.keys)

    async def refused(self, request, of=None):
        return await refusal_of(self.ask(request, of))

    async def put(self, key, value=b"", **options):
        return (await self.ask(StoreKey(key=key, value=value, **options))).revision
