"""The part that tests of the way to a store node share: a store served on loopback, and a client like a store."""

import pytest

from store.local.local import LocalStore
from store.remoting import RemoteStore
from store.serving.rpc import StoreService
from store.serving.service import NodeService
from store.timers.timers import TimerLimits


class NoController:
    """A controller without topics: what readers ask it for is not asked here."""

    def topics(self):
        return []


class Node:
    """A store node on a port of its own, which it keeps when it is started again."""

    def __init__(self, group=0):
        self.group, self.port = group, 0
        self.service: StoreService | None = None

    async def start(self, store, *, master=True, hint=None, timers=None, credentials=None):
        node = NodeService(self.group)
        if store is not None:
            node.serve(store, master=master, hint=hint, timers=timers)
        address = f"127.0.0.1:{self.port}"
        self.service = await StoreService.start(store, NoController(), address, node=node, credentials=credentials)
        self.port = self.service.port
        return self

    async def kill(self):
        """Ends all connections at once, without a word."""
        service, self.service = self.service, None
        if service is not None:
            service.node._term = None
            await service._server.stop(0)

    async def stop(self):
        service, self.service = self.service, None
        if service is not None:
            await service.stop(0)

    @property
    def target(self):
        return f"127.0.0.1:{self.port}"


class ServedStore(RemoteStore):
    """A client that was opened like a `LocalStore`, with the store behind it; what only that has, it is asked for."""

    WAIT_S = 20.0  # for the store, however busy the machine is

    def __init__(self, local, node, **options):
        self.local, self.node = local, node
        super().__init__(local.group, lambda: node.target, **options)

    @classmethod
    async def open(cls, *arguments, **options):
        local = await LocalStore.open(*arguments, **options)
        limits = options.get("timer_limits") or TimerLimits()
        node = await Node(local.group).start(local, timers=limits)
        clock = {"now_ms": options["now_ms"]} if "now_ms" in options else {}
        pending = {"pending_bytes_max": options["pending_bytes_max"]} if "pending_bytes_max" in options else {}
        store = cls(local, node, budget_s=cls.WAIT_S, **clock, **pending)
        await store.connected()
        return store

    async def close(self):
        await super().close()
        await self.node.stop()
        await self.local.close()

    async def tick(self):
        await self.local.tick()
        await self.keys.get("")  # and hear of it

    def __getattr__(self, name):
        if name in {"local", "node"}:
            raise AttributeError(name)
        return getattr(self.local, name)


def is_fixture(value):
    """Returns whether something a module defines is a fixture."""
    return isinstance(value, type(pytest.fixture(lambda: None)))


def contract(module, names, *, without=()):
    """Runs the tests of a module once more, with a store over the network, in the module whose `names` these are."""
    unknown = [name for name in without if name not in vars(module)]
    assert not unknown, unknown
    names["pytestmark"] = module.pytestmark
    for name, value in vars(module).items():
        if (name.startswith("test_") and name not in without) or is_fixture(value):
            names[name] = value

    @pytest.fixture(autouse=True)
    def over_the_network(monkeypatch):
        monkeypatch.setattr(module, "LocalStore", ServedStore)

    names["over_the_network"] = over_the_network
