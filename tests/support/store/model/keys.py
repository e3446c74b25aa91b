"""Keys and values as a plain dictionary: values, limits of namespaces, and every change."""

import bisect
from collections import defaultdict
from typing import NamedTuple

from store.api.keys import EXISTS, Entry, Namespace, Transacted
from store.base.errors import NamespaceFull, RevisionConflict


class Value(NamedTuple):
    """The value of a key."""

    value: bytes
    revision: int
    created: int
    version: int
    expires_at_ms: int  # 0: never

    def live(self, now_ms):
        return not 0 < self.expires_at_ms <= now_ms

    def entry(self, namespace, key):
        """Returns the entry as the store has to show it."""
        return Entry(key, *self[:4], self.expires_at_ms or None, namespace)


class KeyChange(NamedTuple):
    """A change that was done; `revision` is None where the caller was not told."""

    namespace: str
    revision: int | None
    kind: str
    key: str
    value: bytes = b""
    expires_at_ms: int = 0


class KeyModel:
    """The keys behind the last change. Expired ones stay until they are swept."""

    def __init__(self):
        self.values = {}  # (namespace, key) -> Value
        self.limits = {}  # namespace -> (keys, bytes)
        self.changes = []  # each `KeyChange`
        self.history = defaultdict(list)  # (namespace, key) -> (revision, Value or None)

    # ---- reads

    def live(self, namespace, key, now_ms):
        """Returns a key's value, None when it has none or that has expired."""
        held = self.values.get((namespace, key))
        return held if held is not None and held.live(now_ms) else None

    def revision(self, namespace, key, now_ms):
        """Returns a key's revision, 0 when it has no value."""
        held = self.live(namespace, key, now_ms)
        return held.revision if held else 0

    def entry(self, namespace, key, now_ms):
        held = self.live(namespace, key, now_ms)
        return held and held.entry(namespace, key)

    def entries(self, namespace, now_ms, start="", end=None):
        """Returns the entries of a range of a namespace, in the order of their keys' bytes."""
        keys = sorted((key for name, key in self.values if name == namespace), key=str.encode)
        found = [self.entry(namespace, key, now_ms) for key in keys if key >= start and (end is None or key < end)]
        return [entry for entry in found if entry is not None]

    def usage(self, namespace):
        """Returns keys and bytes of a namespace."""
        found = [(key, held) for (name, key), held in self.values.items() if name == namespace]
        return len(found), sum(len(key.encode()) + len(held.value) for key, held in found)

    def namespaces(self):
        """Returns every namespace that holds a key or has a limit."""
        names = sorted(
            {name for name, _ in self.values} | {name for name, limits in self.limits.items() if any(limits)}
        )
        return [Namespace(name, *self.usage(name), *self.limits.get(name, (0, 0))) for name in names]

    def versions(self, slot, since):
        """Returns the values that a key had at some moment between a log offset and now."""
        past = self.history[slot]
        i = bisect.bisect_right(past, since, key=lambda entry: entry[0])
        return [past[i - 1][1] if i else None, *(held for _, held in past[i:])]

    # ---- changes; each returns what the store has to answer, an error as an object

    def put(self, namespace, key, value, *, expected, expires_at_ms, revision, now_ms):
        """Returns the revision, or the error."""
        operation = (key, value, expires_at_ms)
        done = self.transact(namespace, [(key, expected)], [operation], revision=revision, now_ms=now_ms)
        return done.revision if isinstance(done, Transacted) else done

    def delete(self, namespace, key, *, expected, revision, now_ms):
        """Returns whether the key was there, or the error."""
        done = self.transact(namespace, [(key, expected)], [(key, None, 0)], revision=revision, now_ms=now_ms)
        return done.existed[0] if isinstance(done, Transacted) else done

    def transact(self, namespace, compares, operations, *, revision, now_ms):
        """Does all operations, each (key, value or None, expires_at_ms); or none, and returns the error."""
        for key, expected in compares:
            actual = self.revision(namespace, key, now_ms)
            if expected not in {None, actual} and not (expected == EXISTS and actual):
                return RevisionConflict(key, expected, actual)
        before, usage = dict(self.values), self.usage(namespace)
        existed = tuple(self._do(namespace, *one, revision=revision, now_ms=now_ms) for one in operations)
        limits = self.limits.get(namespace, (0, 0))
        if any(
            now > was and 0 < most < now for most, was, now in zip(limits, usage, self.usage(namespace), strict=True)
        ):
            self.values = before
            return NamespaceFull(namespace, keys_max=limits[0], size_bytes_max=limits[1])
        for (key, value, expires_at_ms), there in zip(operations, existed, strict=True):
            if value is not None:
                self._remember(KeyChange(namespace, revision, "put", key, value, expires_at_ms))
            elif there:
                self._remember(KeyChange(namespace, revision, "delete", key))
        return Transacted(revision, existed)

    def expire(self, keys, *, revision, now_ms):
        """Removes what has expired of some (namespace, key, revision); returns how many."""
        gone = 0
        for namespace, key, known in keys:
            held = self.values.get((namespace, key))
            if held is not None and held.revision == known and not held.live(now_ms):
                del self.values[namespace, key]
                self._remember(KeyChange(namespace, revision, "expire", key))
                gone += 1
        return gone

    def expired(self, now_ms):
        """Returns what `expire` may remove."""
        return [(*slot, held.revision) for slot, held in self.values.items() if not held.live(now_ms)]

    def limit(self, namespace, keys_max, size_bytes_max):
        self.limits[namespace] = (keys_max, size_bytes_max)

    def _do(self, namespace, key, value, expires_at_ms, *, revision, now_ms):
        held = self.live(namespace, key, now_ms)
        if value is not None:
            created, version = (held.created, held.version + 1) if held else (revision, 1)
            self.values[namespace, key] = Value(value, revision, created, version, expires_at_ms)
        elif held:
            del self.values[namespace, key]
        return held is not None

    def _remember(self, change):
        slot = change.namespace, change.key
        self.history[slot].append((change.revision, self.values.get(slot)))
        self.changes.append(change)
