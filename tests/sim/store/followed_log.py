"""The model of a store that follows its log, frame by frame."""

from typing import NamedTuple

from google_crc32c import value as crc32c

from store.format.compression import decompress, plain_size
from store.format.frame import FIRST_QUEUE, FRAME_ZSTD, HEADER, MAGIC, ROW, Position
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
from tests.support.store.model.store import StoreModel


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
    """Yields the frames at the start of some bytes, which lie at a log offset; ends at the first that is not whole."""
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


class FollowedLog(StoreModel):
    """The state behind the last frame that was applied."""

    def __init__(self):
        super().__init__()
        self.at = 0
        self.first = 0  # where the log begins
        self.stored_at_ms = 0
        self.latest_ms = 0  # that any clock has shown
        self.deleted = {}  # queue -> log offset of its last deletion
        self.producers = {}  # (producer, sequence) -> frame
        self.outcomes = {}  # position -> what the record came to

    def apply(self, frame: Logged):
        """Takes the next frame."""
        assert frame.start == self.at, f"a hole in the log at {self.at}: the next frame is at {frame.start}"
        assert frame.stored_at_ms >= self.stored_at_ms, "time went back"
        self.at, self.stored_at_ms = frame.end, frame.stored_at_ms
        if frame.producer[0]:
            assert frame.producer not in self.producers, f"stored twice: {frame.producer}"
            self.producers[frame.producer] = frame.start
        deleted = []
        for row, (queue, flags, key, address, id_, body) in enumerate(frame.records):
            at = Position(frame.start, row)
            self.store(at, queue, body, flags=flags, key=key, address=address, id_=id_)
            record = decode(body) if queue < FIRST_QUEUE else None
            if isinstance(record, QueueDeleted):
                deleted.append(record.queue)
            elif record is not None:
                rule = _RULES.get(type(record))
                assert rule is not None, f"the model does not know {record}"
                self.outcomes[at] = rule(self, at, record)
        for queue in deleted:
            self.delete_queue(queue)
            self.deleted[queue] = frame.start

    def _now(self, at):
        """Returns the revision and the time of a change at a position."""
        return {"revision": at.frame + at.row + 1, "now_ms": self.stored_at_ms}

    def _put(self, at, record):
        return self.kv.put(
            record.namespace,
            record.key,
            record.value,
            expected=record.expected,
            expires_at_ms=record.expires_at_ms,
            **self._now(at),
        )

    def _delete(self, at, record):
        return self.kv.delete(record.namespace, record.key, expected=record.expected, **self._now(at))

    def _transact(self, at, record):
        return self.kv.transact(record.namespace, record.compares, record.operations, **self._now(at))

    def _expire(self, at, record):
        return self.kv.expire(record.keys, **self._now(at))

    def _limit(self, _at, record):
        self.kv.limit(record.namespace, record.keys_max, record.size_bytes_max)

    def _commit(self, _at, record):
        self.commit(record.group, record.offsets)

    def _delete_group(self, _at, record):
        self.delete_group(record.group)

    def _settle(self, _at, record):
        if self.deleted.get(record.queue, -1) >= record.known:
            return
        for start, end in record.ranges:
            self.leases[record.queue, record.group].settled.update(range(start, end))

    def _see(self, _at, record):
        self.addresses.update(record.addresses)

    def _trim(self, at, record):
        assert self.first <= record.first <= at.frame
        self.first = record.first

    def _set_timer(self, at, record):
        self.set_timer(TimerKey(record.due_ms, at.frame, at.row), record)

    def _cancel_timer(self, _at, record):
        return self.end_timer(TimerKey(record.due_ms, record.frame, record.row), "cancelled")

    def _fire(self, _at, record):
        for key in unpack_keys(record.keys):
            assert key.due_ms <= self.latest_ms, f"{key} fired early, at {self.stored_at_ms}"
            assert self.end_timer(key, "fired"), f"{key} fired, but was {self.ended_timers.get(key)}"


_RULES = {
    KvPut: FollowedLog._put,
    KvDelete: FollowedLog._delete,
    KvTransaction: FollowedLog._transact,
    KvExpired: FollowedLog._expire,
    KvLimits: FollowedLog._limit,
    GroupOffsets: FollowedLog._commit,
    GroupDeleted: FollowedLog._delete_group,
    Settled: FollowedLog._settle,
    AddressesSeen: FollowedLog._see,
    LogTrimmed: FollowedLog._trim,
    TimerSet: FollowedLog._set_timer,
    TimerCancelled: FollowedLog._cancel_timer,
    TimersFired: FollowedLog._fire,
}
