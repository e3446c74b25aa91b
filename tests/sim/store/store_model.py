"""A store as plain dictionaries: what its log says, followed frame by frame, in the most naive way."""

import bisect
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from google_crc32c import value as crc32c

from store.api.keys import EXISTS, Transacted
from store.api.log import IndexKind
from store.base.errors import NamespaceFull, RevisionConflict
from store.format.compression import decompress, plain_size
from store.format.frame import (
    FIRST_QUEUE,
    FRAME_ZSTD,
    HEADER,
    MAGIC,
    ROW,
    ROW_EXTRA,
    ROW_INDEX_ADDRESS,
    ROW_INDEX_KEY,
    Position,
)
from store.format.records import (
    AddressesSeen,
    GroupDeleted,
    GroupOffsets,
    KvDelete,
    KvExpired,
    KvLimits,
    KvPut,
    KvTransaction,
    LogTrimmed,
    QueueDeleted,
    Settled,
    TimerCancelled,
    TimerSet,
    TimersFired,
    decode,
)
from store.format.timer_key import TimerKey, unpack_keys


class Logged(NamedTuple):
    """One frame as it lies in the log."""

    start: int
    data: bytes

    @property
    def end(self):
        return self.start + len(self.data)

    @property
    def header(self):
        return HEADER.unpack_from(self.data)

    @property
    def flags(self):
        return self.header[4]

    @property
    def stored_at_ms(self):
        return self.header[9]

    @property
    def producer(self):
        return self.header[10:12]

    @property
    def rows(self):
        return self.data[HEADER.size : HEADER.size + self.header[5] * ROW.size]

    @property
    def payload(self):
        return self.data[HEADER.size + self.header[5] * ROW.size :]

    @property
    def records(self):
        """(queue, flags, key hash, address hash, id hash, record) of each row."""
        payload = self.payload
        if self.flags & FRAME_ZSTD:
            payload = decompress(payload, plain_size(payload))
        return [
            (queue, flags, *hashes, payload[pos : pos + size])
            for queue, pos, size, flags, *hashes, _ in ROW.iter_unpack(self.rows)
        ]


def frames_of(data, start):
    """The frames at the start of some bytes, which lie at a log offset; ends at the first that is not whole."""
    at = 0
    while at + HEADER.size <= len(data):
        fields = HEADER.unpack_from(data, at)
        size = HEADER.size + fields[5] * ROW.size + fields[6]
        if fields[0] != MAGIC or fields[2] != start + at or at + size > len(data):
            return
        frame = data[at : at + size]
        if crc32c(frame[8 : HEADER.size]) != fields[1] or crc32c(frame[HEADER.size :]) != fields[7]:
            return
        yield Logged(start + at, frame)
        at += size


class Value(NamedTuple):
    """The value of a key."""

    value: bytes
    revision: int
    created: int
    version: int
    expires_at_ms: int

    def live(self, now_ms):
        return not 0 < self.expires_at_ms <= now_ms


@dataclass
class Model:
    """The state behind the last frame that was applied."""

    at: int = 0
    first: int = 0  # where the log begins
    stored_at_ms: int = 0
    latest_ms: int = 0  # that any clock has shown
    queues: dict = field(default_factory=lambda: defaultdict(list))  # queue -> records
    bodies: dict = field(default_factory=dict)  # position -> record
    last: dict = field(default_factory=dict)  # address hash -> position
    index: dict = field(default_factory=lambda: defaultdict(list))  # (kind, hash) -> (position, stored_at_ms)
    kv: dict = field(default_factory=dict)  # (namespace, key) -> Value
    limits: dict = field(default_factory=dict)  # namespace -> (keys, bytes)
    history: dict = field(default_factory=lambda: defaultdict(list))  # (namespace, key) -> (log offset, Value or None)
    changes: list = field(default_factory=list)  # (namespace, revision, kind, key, value)
    groups: dict = field(default_factory=lambda: defaultdict(dict))
    deleted: dict = field(default_factory=dict)  # queue -> log offset of its last deletion
    settled: dict = field(default_factory=lambda: defaultdict(set))  # (queue, group) -> offsets
    addresses: set = field(default_factory=set)
    timers: dict = field(default_factory=dict)  # key -> record
    ended_timers: dict = field(default_factory=dict)  # key -> "fired" or "cancelled"
    producers: dict = field(default_factory=dict)  # (producer, sequence) -> frame
    outcomes: dict = field(default_factory=dict)  # position -> what the record came to

    def apply(self, frame: Logged):
        """The next frame."""
        assert frame.start == self.at, f"a hole in the log at {self.at}: the next frame is at {frame.start}"
        assert frame.stored_at_ms >= self.stored_at_ms, "time went back"
        self.at, self.stored_at_ms = frame.end, frame.stored_at_ms
        if frame.producer[0]:
            assert frame.producer not in self.producers, f"stored twice: {frame.producer}"
            self.producers[frame.producer] = frame.start
        deleted = []
        for row, (queue, flags, key, address, id_, body) in enumerate(frame.records):
            at = Position(frame.start, row)
            self.queues[queue].append(body)
            self.bodies[at] = body
            if queue >= FIRST_QUEUE:
                if not flags & ROW_EXTRA:
                    self._index(at, flags, key, address, id_)
                continue
            record = decode(body)
            if isinstance(record, QueueDeleted):
                deleted.append(record.queue)
            elif record is not None:
                rule = _RULES.get(type(record))
                assert rule is not None, f"the model does not know {record}"
                self.outcomes[at] = rule(self, at, record)
        for queue in deleted:
            self.queues.pop(queue, None)
            self.deleted[queue] = frame.start
            for key in [key for key in self.settled if key[0] == queue]:
                del self.settled[key]

    def _index(self, at, flags, key, address, id_):
        if address:
            self.last[address] = at
        for kind, hash_, wanted in (
            (IndexKind.KEY, key, flags & ROW_INDEX_KEY),
            (IndexKind.ADDRESS, address, flags & ROW_INDEX_ADDRESS),
            (IndexKind.ID, id_, True),
        ):
            if hash_ and wanted:
                self.index[kind, hash_].insert(0, at)

    # ---- keys and values

    def usage(self, namespace):
        """Keys and bytes of a namespace."""
        found = [(key, held) for (name, key), held in self.kv.items() if name == namespace]
        return len(found), sum(len(key.encode()) + len(held.value) for key, held in found)

    def live(self, slot):
        """Returns a key's value as of the frame being applied, None when it has none."""
        held = self.kv.get(slot)
        return held if held is not None and held.live(self.stored_at_ms) else None

    def _conflict(self, namespace, key, expected):
        held = self.live((namespace, key))
        actual = held.revision if held else 0
        if expected is None or expected == actual or (expected == EXISTS and actual):
            return None
        return RevisionConflict(key, expected, actual)

    def _change(self, at, namespace, operations):
        """Put or remove keys, all or, where the namespace would be over its limits, none."""
        revision, before, usage = at.frame + at.row + 1, dict(self.kv), self.usage(namespace)
        existed = []
        for key, value, expires in operations:
            held = self.live((namespace, key))
            existed.append(held is not None)
            if value is not None:
                created, version = (held.created, held.version + 1) if held else (revision, 1)
                self.kv[namespace, key] = Value(value, revision, created, version, expires)
            elif held:
                del self.kv[namespace, key]
        now = self.usage(namespace)
        for most, was, is_ in zip(self.limits.get(namespace, (0, 0)), usage, now, strict=True):
            if is_ > was and 0 < most < is_:
                self.kv = before
                keys_max, size_bytes_max = self.limits[namespace]
                return NamespaceFull(namespace, keys_max=keys_max, size_bytes_max=size_bytes_max)
        for (key, value, _), there in zip(operations, existed, strict=True):
            if value is not None or there:
                self._remember(at, namespace, key, "delete" if value is None else "put", value or b"")
        return Transacted(revision, tuple(existed))

    def _remember(self, at, namespace, key, kind, value):
        self.history[namespace, key].append((at.frame, self.kv.get((namespace, key))))
        self.changes.append((namespace, at.frame + at.row + 1, kind, key, value))

    def put(self, at, record):
        """A `KvPut`."""
        conflict = self._conflict(record.namespace, record.key, record.expected)
        done = conflict or self._change(at, record.namespace, [(record.key, record.value, record.expires_at_ms)])
        return done.revision if isinstance(done, Transacted) else done

    def delete(self, at, record):
        """A `KvDelete`."""
        conflict = self._conflict(record.namespace, record.key, record.expected)
        if conflict:
            return conflict
        return self._change(at, record.namespace, [(record.key, None, 0)]).existed[0]

    def transact(self, at, record):
        """A `KvTransaction`."""
        for key, expected in record.compares:
            conflict = self._conflict(record.namespace, key, expected)
            if conflict:
                return conflict
        return self._change(at, record.namespace, record.operations)

    def expire(self, at, record):
        """A `KvExpired`."""
        gone = 0
        for namespace, key, revision in record.keys:
            held = self.kv.get((namespace, key))
            if held is not None and held.revision == revision and not held.live(self.stored_at_ms):
                del self.kv[namespace, key]
                self._remember(at, namespace, key, "expire", b"")
                gone += 1
        return gone

    def limit(self, at, record):
        """A `KvLimits`."""
        self.limits[record.namespace] = (record.keys_max, record.size_bytes_max)

    def versions(self, slot, since):
        """Returns the values that a key had at some moment between a log offset and now."""
        past = self.history[slot]
        i = bisect.bisect_left(past, since, key=lambda entry: entry[0])
        return [past[i - 1][1] if i else None, *(held for _, held in past[i:])]

    # ---- the rest

    def commit(self, at, record):
        """A `GroupOffsets`."""
        self.groups[record.group].update(record.offsets)

    def forget_group(self, at, record):
        """A `GroupDeleted`."""
        self.groups.pop(record.group, None)

    def settle(self, at, record):
        """A `Settled`."""
        if self.deleted.get(record.queue, -1) >= record.known:
            return
        gone = self.settled[record.queue, record.group]
        for start, end in record.ranges:
            gone.update(range(start, end))

    def see(self, at, record):
        """An `AddressesSeen`."""
        self.addresses.update(record.addresses)

    def trim(self, at, record):
        """A `LogTrimmed`."""
        assert self.first <= record.first <= at.frame
        self.first = record.first

    def set_timer(self, at, record):
        """A `TimerSet`."""
        self.timers[TimerKey(record.due_ms, at.frame, at.row)] = record

    def cancel_timer(self, at, record):
        """A `TimerCancelled`."""
        return self._end_timer(TimerKey(record.due_ms, record.frame, record.row), "cancelled")

    def fire(self, at, record):
        """A `TimersFired`."""
        for key in unpack_keys(record.keys):
            assert key.due_ms <= self.latest_ms, f"{key} fired early, at {self.stored_at_ms}"
            assert self._end_timer(key, "fired"), f"{key} fired, but was {self.ended_timers.get(key)}"

    def _end_timer(self, key, how):
        if self.timers.pop(key, None) is None:
            return False
        self.ended_timers[key] = how
        return True


_RULES = {
    KvPut: Model.put,
    KvDelete: Model.delete,
    KvTransaction: Model.transact,
    KvExpired: Model.expire,
    KvLimits: Model.limit,
    GroupOffsets: Model.commit,
    GroupDeleted: Model.forget_group,
    Settled: Model.settle,
    AddressesSeen: Model.see,
    LogTrimmed: Model.trim,
    TimerSet: Model.set_timer,
    TimerCancelled: Model.cancel_timer,
    TimersFired: Model.fire,
}
