"""The table of the calls between a client and a store node (`CALLS`), from which both sides are made.

A row has a call's name on the wire, the struct of its arguments and, where it is one method of a subject, that method.
The struct's fields are the method's parameters by name, those without a `*` in front first; the answer is the method's
return type. From such a row `store.remoting.stubs` makes the client's method and `store.serving.methods` the server's.
A call that does more on one side is spelled there by hand, and both rooms check at import that none is missing.
"""

import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from store.api.groups import GroupCalls
from store.api.keys import KeyCalls
from store.api.leases import LeaseCalls
from store.api.log import LogCalls
from store.api.queues import QueueCalls
from store.api.timers import TimerCalls
from store.rpc import arguments
from store.rpc.arguments import Arguments


class Mode(Enum):
    """The ways to treat a call whose connection breaks."""

    AGAIN = "again"  # it is sent again: doing it twice changes nothing
    ONCE = "once"  # its outcome is unknown
    HELD = "held"  # of an owner's leases: lost with the session
    SESSION = "session"  # belongs to the session, and fails with it


class Kind(Enum):
    """The ways in which the server asks the store for a method."""

    PLAIN = "plain"  # the arguments as they came, the result as it is
    OWNED = "owned"  # the owner is the session's own, offsets came as ranges
    HANDLED = "handled"  # of each of some handles a text, an error or None is answered


AGAIN, ONCE, HELD, SESSION = Mode.AGAIN, Mode.ONCE, Mode.HELD, Mode.SESSION

_SUBJECTS: Final = {
    "LogCalls": "log",
    "QueueCalls": "queues",
    "KeyCalls": "keys",
    "GroupCalls": "groups",
    "LeaseCalls": "leases",
    "TimerCalls": "timers",
}


class Row(NamedTuple):
    """One call."""

    name: str
    request: type[Arguments]
    method: Callable[..., Any] | None  # of a subject's protocol; None: there is none that it does one for one
    mode: Mode
    kind: Kind = Kind.PLAIN
    anywhere: bool = False  # a replica may answer it
    reads: bool = False  # its answer may be large
    waits: bool = False  # it changes nothing, and may take forever
    packs: Mapping[str, Callable[[Any], Any]] = MappingProxyType({})  # parameters as they travel, by name
    unpacks: Mapping[str, Callable[[Any], Any]] = MappingProxyType({})  # and back


class Shape:
    """The parameters of a row's method, and the struct of its arguments, one made from the other."""

    def __init__(self, row: Row) -> None:
        assert row.method is not None, f"{row.name} is no method of a subject"
        protocol, self.name = row.method.__qualname__.split(".")
        self.ask = attrgetter(f"{_SUBJECTS[protocol]}.{self.name}")  # the method, at a client of a store
        self.row = row
        signature = inspect.signature(row.method)
        self.answer = signature.return_annotation
        parameters = list(signature.parameters.values())[1:]
        fields = msgspec.structs.fields(row.request)
        names = [field.name for field in fields]
        self.positional = sum(one.kind is not one.KEYWORD_ONLY for one in parameters)
        first = [one.name for one in parameters[: self.positional]]
        assert names[: self.positional] == first, f"{row.name}: the first fields are {first}"
        assert sorted(names) == sorted(one.name for one in parameters), f"{row.name}: the fields are the parameters"
        self.named = tuple(names[self.positional :])
        self._defaults = [  # of the parameters that are not given, by how many are given in their order
            {one.name: one.default for one in parameters[given:] if one.default is not one.empty}
            for given in range(self.positional + 1)
        ]

    def pack(self, given: tuple[Any, ...], named: dict[str, Any]) -> Arguments:
        """Returns the arguments of a call of the method. Raises TypeError as the method would."""
        if len(given) > self.positional:
            raise TypeError(f"{self.name} takes {self.positional} arguments without a name, not {len(given)}")
        asked = self.row.request(*given, **{**self._defaults[len(given)], **named})
        for name, convert in self.row.packs.items():
            setattr(asked, name, convert(getattr(asked, name)))
        return asked

    def unpack(self, asked: Arguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the method's arguments; may change `asked`."""
        for name, convert in self.row.unpacks.items():
            setattr(asked, name, convert(getattr(asked, name)))
        values = msgspec.structs.astuple(asked)
        return values[: self.positional], dict(zip(self.named, values[self.positional :], strict=True))


def _integers(offsets: Mapping[Any, Any]) -> dict[int, Any]:
    return {int(queue): at for queue, at in offsets.items()}


_OPERATIONS: Final[Mapping[str, Callable[[Any], Any]]] = {"compares": dict, "operations": arguments.packed_operations}
_a = arguments

# One line a call: its name, struct, method and mode.
_ROWS: Final = (
    Row("hello", _a.Hello, None, SESSION, anywhere=True),
    Row("ping", _a.Ping, None, SESSION, anywhere=True),
    Row("cancel", _a.Cancel, None, SESSION, anywhere=True),
    Row("scan", _a.Scan, None, AGAIN, anywhere=True),
    Row("fetch", _a.Fetch, QueueCalls.fetch, AGAIN, anywhere=True),
    Row("read", _a.Read, None, AGAIN, anywhere=True, reads=True),
    Row("bounds", _a.OfQueue, QueueCalls.bounds, AGAIN, anywhere=True),
    Row("configure_queues", _a.ConfigureQueues, QueueCalls.configure, AGAIN),
    Row("lost", _a.Lost, QueueCalls.lost, AGAIN, reads=True, waits=True),
    Row("queue_configs", _a.QueueConfigs, None, SESSION, anywhere=True),
    Row("offset_at_time", _a.OffsetAtTime, QueueCalls.offset_at_time, AGAIN, anywhere=True),
    Row("last", _a.Last, None, AGAIN, anywhere=True),
    Row("find", _a.Find, None, AGAIN, anywhere=True),
    Row("addresses", _a.Addresses, LogCalls.addresses, AGAIN, anywhere=True, reads=True),
    Row("note_addresses", _a.NoteAddresses, LogCalls.note_addresses, AGAIN, packs={"addresses": tuple}),
    Row("kv_get", _a.KvGet, KeyCalls.get, AGAIN),
    Row("kv_put", _a.PutKey, KeyCalls.put, ONCE),
    Row("kv_delete", _a.DeleteKey, KeyCalls.delete, ONCE),
    Row(
        "kv_transact",
        _a.KvTransact,
        KeyCalls.transact,
        ONCE,
        packs=_OPERATIONS,
        unpacks={"operations": arguments.operations_of},
    ),
    Row("kv_prefix", _a.KvPrefix, KeyCalls.prefix, AGAIN, reads=True),
    Row("kv_range", _a.KvRange, KeyCalls.range, AGAIN, reads=True),
    Row("kv_count", _a.KvCount, KeyCalls.count, AGAIN),
    Row("kv_hold", _a.Nothing, KeyCalls.hold, AGAIN),
    Row("kv_release", _a.KvRelease, KeyCalls.release, SESSION),
    Row("kv_watch", _a.KvWatch, None, AGAIN),
    Row("kv_watched", _a.KvWatched, None, SESSION, waits=True),
    Row("kv_unwatch", _a.KvWatched, None, SESSION),
    Row("kv_namespaces", _a.Nothing, KeyCalls.namespaces, AGAIN),
    Row("kv_limit", _a.KvLimit, KeyCalls.limit, AGAIN),
    Row("commit_offsets", _a.CommitOffsets, GroupCalls.commit, AGAIN, packs={"offsets": _integers}),
    Row("offsets", _a.OfGroup, GroupCalls.offsets, AGAIN),
    Row("delete_group", _a.OfGroup, GroupCalls.delete, AGAIN),
    Row("cancel_timer", _a.CancelTimer, TimerCalls.cancel, ONCE),
    Row("timers", _a.TimerEntries, TimerCalls.entries, AGAIN, reads=True),
    Row("take", _a.Take, LeaseCalls.take, AGAIN),
    Row("settle", _a.Settle, None, HELD),
    Row("forward", _a.Forward, LeaseCalls.forward, HELD, Kind.OWNED),
    Row("commit", _a.Commit, LeaseCalls.commit, HELD),
    Row("reject", _a.Reject, LeaseCalls.reject, HELD, Kind.OWNED),
    Row("requeue", _a.Requeue, LeaseCalls.requeue, SESSION),
    Row("extend", _a.Extend, LeaseCalls.extend, HELD, Kind.OWNED),
    Row("release", _a.Release, LeaseCalls.release, SESSION),
    Row("settle_handles", _a.SettleHandles, LeaseCalls.settle_handles, ONCE, Kind.HANDLED, packs={"handles": tuple}),
    Row("requeue_handles", _a.RequeueHandles, LeaseCalls.requeue_handles, ONCE, Kind.HANDLED, packs={"handles": tuple}),
    Row("extend_handles", _a.ExtendHandles, LeaseCalls.extend_handles, AGAIN, Kind.HANDLED, packs={"handles": tuple}),
    Row("set_lease_policy", _a.SetLeasePolicy, LeaseCalls.set_policy, AGAIN),
    Row("lease_policy", _a.OfQueueGroup, LeaseCalls.policy, AGAIN),
    Row("waiting", _a.OfQueueGroup, LeaseCalls.waiting, AGAIN),
    Row("retire", _a.OfQueue, LeaseCalls.retire, AGAIN),
    Row("is_retired", _a.OfQueue, LeaseCalls.is_retired, AGAIN),
    Row("unsettled", _a.OfQueueGroup, LeaseCalls.unsettled, AGAIN),
    Row("first_waiting", _a.OfQueueGroup, LeaseCalls.first_waiting, AGAIN),
    Row("purge", _a.OfQueueGroup, LeaseCalls.purge, ONCE),
    Row("delete_queue", _a.OfQueue, QueueCalls.delete, AGAIN),
)

CALLS: Final[Mapping[str, Row]] = {row.name: row for row in _ROWS}
assert len(CALLS) == len(_ROWS), "two calls have one name"
