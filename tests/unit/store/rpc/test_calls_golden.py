"""The bytes of every call between a client and a store node stay as they were: requests and answers.

Each call goes from the client's stub through its encoded request to the server's method, which asks a store that
answers as `ANSWERS` says. `testdata/calls.txt` has a line for each step, and how a call is retried.
"""

import asyncio
import inspect
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import msgspec
import pytest

from store.api.groups import GroupCalls
from store.api.keys import Change, Changes, Delete, Entry, KeyCalls, Namespace, Page, Put, Transacted
from store.api.leases import Lease, LeaseCalls
from store.api.log import IndexKind, LogCalls
from store.api.lost import LostMessages, LostOffsets
from store.api.queues import Bounds, Fetched, QueueCalls
from store.api.timers import TimerCalls, TimerEntry, TimersHeld
from store.base.errors import BadHandle, LeaseLost
from store.base.futures import succeeded
from store.format.frame import Frame, LogOffset, Position
from store.format.policy import LeasePolicy
from store.format.queue_config import QueueConfig
from store.remoting.core import Remote
from store.remoting.groups import RemoteGroups
from store.remoting.held import HeldLeases
from store.remoting.keys import RemoteKeys
from store.remoting.leases import RemoteLeases
from store.remoting.log import RemoteLog
from store.remoting.queues import RemoteQueues
from store.remoting.stubs import stubs
from store.remoting.timers import RemoteTimers
from store.rpc import arguments
from store.rpc.calls import TimerAdmission, encode
from store.rpc.frames import FramesKept
from store.rpc.table import AGAIN, Row, Shape
from store.serving.methods import METHODS
from store.serving.session import ServingSession, ServingTerms
from tests.support.store.store_kit import frame

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent / "testdata" / "calls.txt"
PROTOCOLS = {
    "log": LogCalls,
    "queues": QueueCalls,
    "keys": KeyCalls,
    "groups": GroupCalls,
    "leases": LeaseCalls,
    "timers": TimerCalls,
}


def stored():
    one = frame((16, b"a"), (16, b"b"))
    data = one.header(log_offset=LogOffset(64), epoch=1, stored_at_ms=5) + one.rows + one.payload
    found = Frame.parse(data, log_offset=LogOffset(64))
    assert found is not None
    return found


ENTRY = Entry("k", b"v", 7, 5, 2, 99, "n")
ANSWERS: dict[str, Any] = {
    "log.scan": lambda: ([stored()], LogOffset(500)),
    "log.read": lambda: b"record",
    "log.last": lambda: Position(LogOffset(64), 1),
    "log.find": lambda: [Position(LogOffset(64), 1), Position(LogOffset(64), 0)],
    "log.addresses": lambda: ["a", "b"],
    "queues.fetch": lambda: Fetched([stored()], [[0, 1]], 3, 5),
    "queues.bounds": lambda: Bounds(3, 9),
    "queues.offset_at_time": lambda: 8,
    "queues.lost": lambda: LostMessages(2, 900, 7, (LostOffsets(16, 3, 5), LostOffsets(17, 0, 1)), 4, 60),
    "queues.config": lambda: QueueConfig(16, 5),
    "keys.get": lambda: ENTRY,
    "keys.put": lambda: 7,
    "keys.delete": lambda: True,
    "keys.transact": lambda: Transacted(7, (True, False)),
    "keys.prefix": lambda: [ENTRY],
    "keys.range": lambda: Page([ENTRY], 7, True),
    "keys.count": lambda: 12,
    "keys.hold": lambda: 7,
    "keys.namespaces": lambda: [Namespace("n", 1, 2, 3, 4)],
    "groups.offsets": lambda: {16: 5, 17: 1},
    "leases.take": lambda: [Lease(3, 1, stored(), 0)],
    "leases.settle_soon": succeeded,
    "leases.extend": lambda: [3, 4],
    "leases.release": lambda: [16],
    "leases.settle_handles": lambda: [None, BadHandle("bad"), LeaseLost("lost")],
    "leases.requeue_handles": lambda: [None, BadHandle("bad")],
    "leases.extend_handles": lambda: ["new", LeaseLost("lost")],
    "leases.policy": lambda: LeasePolicy(max_deliveries=3, ordered=True),
    "leases.waiting": lambda: 11,
    "leases.unsettled": lambda: 2,
    "leases.retire": lambda: True,
    "leases.is_retired": lambda: False,
    "leases.first_waiting": lambda: 4,
    "leases.purge": lambda: 6,
    "timers.cancel": lambda: True,
    "timers.entries": lambda: [TimerEntry("t", 5, 6)],
}
OPERATIONS = [Put("a", b"1", 5, None), Put("b", b"2", ttl_ms=9), Delete("c")]

SAMPLES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("log.scan", (Position(LogOffset(64), 2), [16, 17]), {"max_bytes": 100}),
    ("log.scan", (Position(LogOffset(64), 0), None), {"max_bytes": 100}),
    ("log.read", (Position(LogOffset(64), 2),), {}),
    ("log.last", (1 << 63,), {}),
    ("log.find", (IndexKind.ADDRESS, 5), {}),
    (
        "log.find",
        (IndexKind.ID, 5),
        {"from_ms": 1, "until_ms": 2, "below": Position(LogOffset(64), 3), "limit": 4},
    ),
    ("log.addresses", (), {}),
    ("log.addresses", ("p",), {"after": "q", "limit": 3}),
    ("log.note_addresses", (["a", "b"],), {}),
    ("queues.fetch", (16, 3), {"max_bytes": 100}),
    ("queues.fetch", (16, 3), {"max_bytes": 100, "max_rows": 5, "max_wait_ms": 7}),
    ("queues.bounds", (16,), {}),
    ("queues.configure", ([QueueConfig(16, 9), QueueConfig(17, 8)],), {}),
    ("queues.offset_at_time", (16, 1234), {}),
    ("queues.delete", (16,), {}),
    ("queues.lost", (), {}),
    ("queues.lost", (5,), {}),
    ("keys.get", ("k",), {}),
    ("keys.get", ("k",), {"namespace": "n"}),
    ("keys.put", ("k", b"v"), {}),
    ("keys.put", ("k", b"v"), {"expected_revision": 3, "namespace": "n", "ttl_ms": 4, "expires_at_ms": 5}),
    ("keys.delete", ("k",), {}),
    ("keys.delete", ("k",), {"expected_revision": 3, "namespace": "n"}),
    ("keys.transact", ({"a": 3}, OPERATIONS), {}),
    ("keys.transact", ({}, OPERATIONS[2:]), {"namespace": "n"}),
    ("keys.prefix", ("p",), {}),
    ("keys.prefix", ("p",), {"after": "q", "limit": 4, "namespace": "n"}),
    ("keys.range", (), {}),
    ("keys.range", ("a", "b"), {"namespace": "n", "after": "aa", "limit": 4, "at_revision": 7}),
    ("keys.range", ("a",), {"end": "b"}),
    ("keys.count", (), {}),
    ("keys.count", ("a", "b"), {"namespace": "n"}),
    ("keys.hold", (), {}),
    ("keys.release", (7,), {}),
    ("keys.namespaces", (), {}),
    ("keys.limit", ("n",), {}),
    ("keys.limit", ("n",), {"keys_max": 3, "size_bytes_max": 4}),
    ("groups.commit", ("g", {16: 5, 17: 6}), {}),
    ("groups.offsets", ("g",), {}),
    ("groups.delete", ("g",), {}),
    ("leases.take", (16, 5), {"max_count": 3}),
    ("leases.take", (16, 5), {"max_count": 3, "max_bytes": 9, "group": "g", "invisible_ms": 8}),
    ("leases.settle", (16, 5, [3, 4, 7]), {}),
    ("leases.settle", (16, 5, range(3, 9)), {"group": "g"}),
    ("leases.settle_soon", (16, 5, [3, 4, 7]), {"group": "g"}),
    ("leases.forward", (16, 5, [3, 4], b"rows", b"payload"), {}),
    ("leases.forward", (16, 5, [3, 4], b"rows", b"payload"), {"group": "g"}),
    ("leases.commit", (5, [(16, [3, 4]), (17, [0])], b"rows", b"payload"), {}),
    ("leases.reject", (16, 5, [3, 4]), {}),
    ("leases.reject", (16, 5, [3, 4]), {"reason": "why", "group": "g"}),
    ("leases.requeue", (16, 5, [3, 4]), {}),
    ("leases.requeue", (16, 5, [3, 4]), {"delivered": False, "delay_ms": 6, "group": "g"}),
    ("leases.extend", (16, 5, [3, 4]), {"invisible_ms": 9}),
    ("leases.extend", (16, 5, [3, 4]), {"invisible_ms": 9, "group": "g"}),
    ("leases.settle_handles", (["x", "y"],), {}),
    ("leases.requeue_handles", (["x", "y"],), {}),
    ("leases.requeue_handles", (["x", "y"],), {"delay_ms": 4}),
    ("leases.extend_handles", (["x", "y"],), {"invisible_ms": 4}),
    ("leases.set_policy", (16, LeasePolicy(max_deliveries=3)), {}),
    ("leases.set_policy", (16, LeasePolicy(max_deliveries=3)), {"group": "g"}),
    ("leases.policy", (16,), {}),
    ("leases.policy", (16,), {"group": "g"}),
    ("leases.waiting", (16,), {"group": "g"}),
    ("leases.unsettled", (16,), {"group": "g"}),
    ("leases.retire", (16,), {}),
    ("leases.is_retired", (16,), {}),
    ("leases.first_waiting", (16,), {"group": "g"}),
    ("leases.purge", (16,), {"group": "g"}),
    ("leases.release", (5,), {}),
    ("timers.cancel", ("t",), {}),
    ("timers.entries", (), {}),
    ("timers.entries", (), {"after": "t", "limit": 5}),
]
SPELLED = {  # requests that no method of a subject makes one for one
    "hello": arguments.Hello(3, True, "c"),
    "ping": arguments.Ping(),
    "cancel": arguments.Cancel((4, 5)),
    "queue_configs": arguments.QueueConfigs((16, 17)),
    "kv_watch": arguments.KvWatch("a", None, "n", 5),
    "kv_watched": arguments.KvWatched(1),
    "kv_unwatch": arguments.KvWatched(1),
}


class Subject:
    """One subject of a store that writes down what it is asked, and answers as `ANSWERS` says."""

    confirmed = LogOffset(9)
    held = TimersHeld(1, 2)

    def __init__(self, name: str, lines: list[str]) -> None:
        self._name, self._lines = name, lines

    def __getattr__(self, name: str) -> Any:
        method = getattr(PROTOCOLS[self._name], name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if (self._name, name) == ("queues", "watch"):
                return lambda: None
            if name == "watch":
                return changes()
            bound = inspect.signature(method).bind(None, *args, **kwargs)
            bound.apply_defaults()
            given = {key: value for key, value in bound.arguments.items() if key != "self"}
            self._lines.append(f"  store {self._name}.{name} {given!r}")
            return ANSWERS.get(f"{self._name}.{name}", lambda: None)()

        async def later(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        return later if inspect.iscoroutinefunction(method) else call


async def changes():
    yield Changes([Change("put", "k", b"v", 5, None)], 6)


class Wire:
    """The place of `Caller`: each request is decoded and run by the server's methods at once."""

    def __init__(self, session: ServingSession, lines: list[str]) -> None:
        self.session, self.lines = session, lines

    async def run(self, name: str, asked: arguments.Arguments, how: str) -> bytes:
        body = encode(asked)
        self.lines.append(f"  request {name} {how} {body.hex()}")
        method = METHODS[name]
        share = SimpleNamespace(acquire=self._acquire, release=lambda: None)
        running = method.run(self.session, method.decode(msgspec.Raw(body)), 1, share)
        answer = await asyncio.ensure_future(running)  # in a task of its own, as a session runs it
        where = "anywhere" if method.anywhere else "waits" if method.waits else "master"
        self.lines.append(f"  answer {where} {answer.hex()}")
        return answer

    async def _acquire(self, size: int) -> None:
        self.lines.append(f"  acquire {size}")

    async def call(self, name, asked, decode, mode, *, orphaned=None):
        how = f"{mode.name}{' orphaned' if orphaned else ''}"
        return decode(msgspec.Raw(await self.run(name, asked, how)))

    def begin(self, name, asked, decode, mode):
        return SimpleNamespace(future=asyncio.ensure_future(self.call(name, asked, decode, mode)))

    def notify(self, name, asked) -> None:
        self.told = asyncio.ensure_future(self.run(name, asked, "told"))


def repr_of(value: Any) -> str:
    if isinstance(value, Exception):
        return repr(value)
    if isinstance(value, list | tuple) and type(value) in {list, tuple}:
        return f"{type(value).__name__}({', '.join(map(repr_of, value))})"
    return repr(value).split(" object at")[0]


async def all_lines() -> list[str]:
    lines: list[str] = []
    store: Any = SimpleNamespace(group=3, **{name: Subject(name, lines) for name in PROTOCOLS})
    session = ServingSession(ServingTerms(store, True, None, TimerAdmission(1, 2, 3, 4), "c"), count(100), METHODS)
    wire = Wire(session, lines)
    connection: Any = SimpleNamespace(
        caller=wire, frames=FramesKept(), sessions=1, note_leasing=lambda queue: None, forget=lambda queue: None
    )
    remote = Remote(3, connection, HeldLeases(), budget_s=5)
    client: Any = SimpleNamespace(
        log=RemoteLog(remote),
        queues=RemoteQueues(remote),
        keys=RemoteKeys(remote),
        groups=RemoteGroups(remote),
        leases=RemoteLeases(remote),
        timers=RemoteTimers(remote, lambda: 0),
    )
    for name, args, kwargs in SAMPLES:
        lines.append(f"{name} {args!r} {kwargs!r}")
        subject, method = name.split(".")
        value = getattr(getattr(client, subject), method)(*args, **kwargs)
        if inspect.isawaitable(value):
            value = await value
        else:
            await wire.told
        if subject == "log" and method == "scan":
            value = [one.data.hex() for one in value[0]], value[1]
        elif method == "fetch":
            value = [one.data.hex() for one in value.frames], [list(rows) for rows in value.rows], *value[2:]
        elif method == "take":
            value = [(*lease[:2], lease.frame.data.hex(), *lease[3:]) for lease in value]
        lines.append(f"  value {repr_of(value)}")
    for name, asked in SPELLED.items():
        lines.append(name)
        await wire.run(name, asked, "-")
    await session.close()
    return lines


async def test_every_call_has_the_bytes_that_it_always_had():
    lines = await all_lines()
    assert lines == GOLDEN.read_text().splitlines()


async def test_every_call_is_here():
    asked = {line.split()[1] for line in await all_lines() if line.startswith("  request ")}
    assert asked == METHODS.keys()


def test_a_method_without_a_row_stops_the_import():
    class NewCalls(Protocol):
        async def ask(self, queue: int) -> int: ...

    with pytest.raises(AssertionError, match=r"NewCalls\.ask needs a row"):

        @stubs
        class _Remote(NewCalls):
            pass


def test_a_struct_whose_fields_are_not_the_parameters_is_refused():
    with pytest.raises(AssertionError, match="the fields are the parameters"):
        Shape(Row("kv_get", arguments.DeleteKey, KeyCalls.get, AGAIN))
    with pytest.raises(AssertionError, match="the first fields are"):
        Shape(Row("kv_get", arguments.OfGroup, KeyCalls.get, AGAIN))


@pytest.mark.parametrize(
    ("given", "named"), [((), {}), (("k", "n"), {}), (("k",), {"key": "k"}), (("k",), {"unknown": 1})]
)
async def test_a_wrong_call_of_a_stub_raises_as_a_method_does(given, named):
    keys: Any = RemoteKeys(SimpleNamespace(call=lambda *_: pytest.fail("it was called")))  # type: ignore[abstract,arg-type]
    with pytest.raises(TypeError):
        await keys.get(*given, **named)
