"""A session as it is stored, and as the connection that holds it has it."""

from typing import Protocol

import msgspec

from gateway.delivery.fanout import Fanout
from gateway.delivery.lanes import Subscriber
from gateway.domain.cursor import Cursor, distance, earlier, later
from gateway.domain.keys import kv_key
from gateway.domain.session_user import SessionUser, check_user
from gateway.ownership.owners import Owned
from gateway.sessions.wills import WillRecord
from store.api.client import StoreClient
from store.api.keys import Entry, Put

SESSIONS = "sessions"  # the namespace of their records
EXCHANGES = "session-exchanges"  # the namespace of the records that change with every message


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a session in the KV."""

    protocol: str
    session_id: str
    state: bytes
    expiry_s: int | None  # None: forever
    left_ms: int | None  # when its connection ended; None while it is connected, or died with the gateway
    marked: bool = False  # the logs may have marks of it
    user: SessionUser | None = None  # its owner; None: none is stored


class SessionHolder(Protocol):
    """The connection that holds a session."""

    id: int  # larger than those of connections before it
    protocol: str
    subscriber: Subscriber
    gone: bool  # the connection has ended

    def supersede(self) -> None:
        """Tells the client that another connection has taken over the session, and closes."""

    def shut_down(self) -> None:
        """Tells the client that its session cannot be served here any more, and closes."""

    async def answered(self) -> None:
        """Waits until nothing that the connection has published is in flight."""


class LiveSession:
    """A session that a connection of this process holds."""

    __slots__ = (
        "armed",
        "committed",
        "durable",
        "exchanges",
        "expiry_s",
        "holder",
        "key",
        "left_ms",
        "marked",
        "oldest",
        "owned",
        "passed",
        "session_id",
        "settled",
        "state",
        "taken",
        "user",
        "will",
        "withdrawn",
    )

    def __init__(
        self, key: str, session_id: str, holder: SessionHolder, owned: Owned, user: SessionUser | None
    ) -> None:
        self.key = key
        self.owned = owned
        self.user = user
        self.session_id = session_id
        self.holder = holder
        self.durable = False  # has a record in the KV
        self.taken = False  # its holder has shown that it goes on from the cursor it was given
        self.marked = False  # its messages have marks
        self.left_ms: int | None = None  # when its connection ended
        self.state = b""
        self.exchanges: bytes | None = None  # not stored yet
        self.expiry_s: int | None = 0
        self.oldest: Cursor = ()  # the oldest delivery not acknowledged, of each log that has one
        self.settled: Cursor = ()  # all messages before it are acknowledged
        self.passed: Cursor = ()  # how far it had been handed out at the last commit
        self.committed: Cursor = ()  # committed <= settled
        self.armed = False  # there may be a record of a will
        self.will: WillRecord | None = None  # to be published when the connection is gone
        self.withdrawn = False  # the will, perhaps before it was armed

    @property
    def over(self) -> bool:
        """Returns whether the session has ended with its connection, though its last record is not written yet."""
        return self.expiry_s == 0 and self.holder.gone

    def check_user(self, who: SessionUser | None) -> None:
        """Raises `NotItsUser` unless the asker may take the session from its holder."""
        if not self.over:
            check_user(self.key, self.user, who)

    def reached(self, fanout: Fanout) -> Cursor:
        """Returns the cursor up to which its messages have been delivered."""
        subscriber = self.holder.subscriber
        if not subscriber.patterns and not self.taken:
            return self.committed  # the session has still to get the messages since
        return fanout.reached(subscriber)

    def moves(self, fanout: Fanout, idle_bytes: int) -> bool:
        """Returns whether to commit the cursor: messages were acknowledged, or the log is `idle_bytes` further.

        An idle session reports nothing. Messages delivered before the last call, at least an interval ago, are either
        acknowledged or have been reported as `oldest`.
        """
        passed = later(self.settled, earlier(self.passed, self.oldest))
        self.passed = self.reached(fanout)
        if self.settled == self.committed and distance(self.committed, passed) <= idle_bytes:
            return False
        self.settled = passed
        return True

    def settle(self, fanout: Fanout) -> None:
        """Advances `settled` to the oldest unacknowledged delivery."""
        self.settled = later(self.settled, earlier(self.reached(fanout), self.oldest))


class Ended(Protocol):
    """A callback for the end of a session. A session that does not last ends with its connection.

    The session's owner makes the writes that follow: a late owner would otherwise end a session that another proxy has
    begun.
    """

    async def __call__(self, session: str, owned: Owned, *, lasting: bool = True) -> None:
        """Does the work. Raises `StoreError`: then it is done again later; `OwnershipLost`."""


async def ignore_end(session: str, owned: Owned, *, lasting: bool = True) -> None:
    """Ignores the end of a session."""


async def load_record(store: StoreClient, key: str) -> SessionRecord | None:
    """Returns the record of a session in the KV. Raises `StoreError`."""
    return record_in(await store.keys.get(key))


def record_in(entry: Entry | None) -> SessionRecord | None:
    """Returns the session record in an entry."""
    return None if entry is None else msgspec.msgpack.decode(entry.value, type=SessionRecord)


def expired(record: SessionRecord, now_ms: int, *, or_left_ms: int | None) -> bool:
    """Returns whether a session has expired. One that has no time of its connection's end uses `or_left_ms`."""
    left_ms = or_left_ms if record.left_ms is None else record.left_ms
    return record.expiry_s is not None and left_ms is not None and left_ms + record.expiry_s * 1000 <= now_ms


def put_record(held: LiveSession, *, left_ms: int | None) -> Put:
    """Returns the change that stores a session, and marks the session as durable from then on."""
    held.durable = True
    record = SessionRecord(
        protocol=held.holder.protocol,
        session_id=held.session_id,
        state=held.state,
        expiry_s=held.expiry_s,
        left_ms=left_ms,
        marked=held.marked,
        user=held.user,
    )
    return Put(held.key, msgspec.msgpack.encode(record))


def session_key(protocol: str, session_id: str) -> str:
    """Returns the key that a session is stored under."""
    return kv_key(f"{SESSIONS}/{protocol}", session_id)


def exchanges_key(key: str) -> str:
    """Returns the key that a session's exchanges are stored under."""
    return kv_key(EXCHANGES, key)
