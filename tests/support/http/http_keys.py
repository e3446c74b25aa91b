"""A gateway for tests of `/kv`: keys in a dict, watches that are answered when something changes."""

from typing import Any

from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Call, Effect, Outcome, Token
from gateway.port.kv import (
    Compacted,
    CountKeys,
    GetKey,
    HoldKeys,
    KeyConflict,
    ListKeys,
    Match,
    NextChanges,
    ReleaseKeys,
    RemoveKey,
    StoreKey,
    TransactKeys,
    UnwatchKeys,
    WatchKeys,
)
from store.api.keys import EXISTS, Change, Changes, Entry, Page, Put, Transacted
from tests.support.http.http_driver import Gateway

METHODS = {
    GetKey: "_get",
    StoreKey: "_put",
    RemoveKey: "_remove",
    ListKeys: "_list",
    CountKeys: "_count",
    HoldKeys: "_hold",
    ReleaseKeys: "_release",
    TransactKeys: "_transact",
    WatchKeys: "_watch",
    UnwatchKeys: "_unwatch",
}


class KvGateway(Gateway):
    """The gateway behind the adapter."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.keys: dict[tuple[str, str], Entry] = {}
        self.revision = 0
        self.earliest = 0
        self.asked: list[Any] = []
        self.watches: dict[int, WatchKeys] = {}
        self.reading: dict[int, Token] = {}  # watches that are being read
        super().__init__(*args, **kwargs)

    def act(self, effects: list[Effect]) -> None:
        rest = []
        for effect in effects:
            if isinstance(effect, Call) and isinstance(effect.request, NextChanges):
                assert effect.request.watch in self.watches
                assert effect.request.watch not in self.reading
                self.reading[effect.request.watch] = effect.token
            else:
                rest.append(effect)
        super().act(rest)

    def tell(self, watch: int, *changes: Change, error: Refusal | None = None) -> bytes:
        """Tells the reader of a watch of changes, or of an error, and returns the bytes that follow."""
        outcome = Outcome(error=error) if error else Outcome(value=Changes(changes, changes[-1].revision + 1))
        self.act(self.adapter.completed(self.reading.pop(watch), outcome, now_ms=self.now_ms))
        return self.adapter.take_output()

    def answer_effect(self, call: Call) -> Outcome:
        request = call.request
        method = METHODS.get(type(request))
        if method is None:
            return super().answer_effect(call)
        self.asked.append(request)
        if getattr(request, "namespace", "n").startswith("$"):
            return Outcome(error=Refusal(Cause.FORBIDDEN, "reserved"))
        try:
            return Outcome(value=getattr(self, method)(request))
        except Refusal as refusal:
            return Outcome(error=refusal)

    def _check(self, key: tuple[str, str], match: Match) -> None:
        actual = self.keys[key].revision if key in self.keys else 0
        holds = not match.any_of or actual in match.any_of or (actual and EXISTS in match.any_of)
        if not holds or actual in match.none_of or (actual and EXISTS in match.none_of):
            raise KeyConflict(key[1], actual)

    def _get(self, request: GetKey) -> Entry | None:
        return self.keys.get((request.namespace, request.key))

    def _put(self, request: StoreKey) -> Transacted:
        where = (request.namespace, request.key)
        self._check(where, request.match)
        self.revision += 1
        before = self.keys.get(where)
        created, version = (before.create_revision, before.version + 1) if before else (self.revision, 1)
        expires = None if request.ttl_ms is None else self.now_ms + request.ttl_ms
        self.keys[where] = Entry(request.key, request.value, self.revision, created, version, expires)
        return Transacted(self.revision, (before is not None,))

    def _remove(self, request: RemoveKey) -> bool:
        where = (request.namespace, request.key)
        self._check(where, request.match)
        return self.keys.pop(where, None) is not None

    def _list(self, request: ListKeys) -> Page:
        if request.at_revision is not None and request.at_revision < self.earliest:
            raise Compacted("gone", self.earliest)
        found = [
            entry
            for (namespace, key), entry in sorted(self.keys.items())
            if namespace == request.namespace
            and key >= request.start
            and (request.end is None or key < request.end)
            and (request.after is None or key > request.after)
        ]
        return Page(found[: request.limit], request.at_revision or self.revision, len(found) > request.limit)

    def _count(self, request: CountKeys) -> int:
        return len(self._list(ListKeys(start=request.start, end=request.end, namespace=request.namespace)).entries)

    def _hold(self, request: HoldKeys) -> int:
        return self.revision

    def _release(self, request: ReleaseKeys) -> None:
        if request.revision != self.revision:
            raise Refusal(Cause.NOT_FOUND, "not held")

    def _transact(self, request: TransactKeys) -> Transacted:
        for key, expected in request.compares.items():
            self._check((request.namespace, key), Match(any_of=(expected,)))
        existed = [(request.namespace, one.key) in self.keys for one in request.operations]
        for one in request.operations:
            if isinstance(one, Put):
                self._put(StoreKey(key=one.key, value=one.value, ttl_ms=one.ttl_ms, namespace=request.namespace))
            else:
                self.keys.pop((request.namespace, one.key), None)
        return Transacted(self.revision, tuple(existed))

    def _watch(self, request: WatchKeys) -> int:
        if request.from_revision is not None and request.from_revision < self.earliest:
            raise Compacted("gone", self.earliest)
        self.watches[request.watch] = request
        return self.revision if request.from_revision is None else request.from_revision - 1

    def _unwatch(self, request: UnwatchKeys) -> None:
        self.watches.pop(request.watch, None)
        self.reading.pop(request.watch, None)
