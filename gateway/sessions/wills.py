"""Wills: a session's last message, published when its connection has ended and the will delay has passed.

A will is a record beside its session from the moment its connection is let in, so that a proxy that finds the session
without a connection, another one or this one after a crash, publishes it in the place of the one that should have. Only
the owner of the session does anything to its will. In order:

    armed        the connection is there
    publishing   it is gone: the message, and the time to publish it, are settled
    waiting      it is kept by a timer (`gateway.publishing.delayed`), until the session is taken up again, or ends, or
                 its time has come
    due          its session has ended, so it is called in from its timer

Publishing names a number of the record's own, by which the log takes it once, however often and by any process it is
tried. A proxy that finds a will whose publishing had begun looks first whether it is there: the log forgets numbers, in
time.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from gateway.domain.access import Identity
from gateway.domain.address import hash64
from gateway.domain.errors import Cause, Refusal
from gateway.domain.keys import kv_key
from gateway.domain.principal import Principal, principal_of
from gateway.ownership.owners import Owned
from gateway.port.adapter import Outcome, Publish, Random, Token
from gateway.port.sessions import Will
from gateway.port.tickets import timer_id
from gateway.publishing.delayed import cancel_timer
from gateway.publishing.publishing import PublishSource
from store.api.client import StoreClient
from store.api.keys import Delete, Entry, Put
from store.api.log import IndexKind
from store.api.message import Message, decode
from store.base import logs

NAMESPACE = "session-wills"
PAGE = 500
TRIED_AGAIN = frozenset({Cause.OVERLOAD, Cause.UNAVAILABLE, Cause.UNKNOWN})

log = logs.get(__name__)
_encode = msgspec.msgpack.encode
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError)


class Publishing(Protocol):
    """`Ingest.publish`."""

    def __call__(self, publisher: PublishSource, effect: Publish, size_bytes: int) -> None:
        """Stores an effect's messages."""


class WillRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a will in the KV."""

    timer: str = ""  # in which it waits
    message: Message  # as it was, or is being, published; while armed without any times
    due: bool = False  # called in from its timer, and not published yet
    publishing: bool = False
    session: str = ""
    delay_ms: int = 0
    lives_ms: int | None = None  # from its delivery on
    once: str = ""  # the number of this will alone: it is published once under it
    who: Identity | None = None  # its owner


_decode = msgspec.msgpack.Decoder(WillRecord).decode


class Wills:
    """The wills of sessions. A session is named by its key; calls for one session may not overlap."""

    def __init__(
        self,
        store: StoreClient,
        publish: Publishing,
        *,
        now_ms: Callable[[], int],
        random: Random | None = None,
        check: Callable[[Identity, Message], None] = lambda _who, _message: None,
    ) -> None:
        """Begins without wills; `check` raises `Refusal` for a client that may no longer publish a message."""
        self._store = store
        self._publish = publish
        self._now_ms = now_ms
        self._random = random
        self._check = check
        self._known: dict[str, None] | None = None  # the sessions with a record; None: only the store knows

    async def load(self) -> Sequence[str]:
        """Loads all records, which only this process changes from now on.

        The sessions whose connection ended with a former run.
        """
        known: dict[str, None] = {}
        orphans: list[str] = []
        after = ""
        while page := await self._store.keys.prefix(f"{NAMESPACE}/", after=after, limit=PAGE):
            for entry in page:
                record = will_in(entry)
                known[entry.key] = None
                if record is not None and record.session and not record.timer:
                    orphans.append(record.session)
            after = page[-1].key
        self._known = known
        return orphans

    def arm(self, session: str, will: Will) -> tuple[WillRecord, Put]:
        """Returns the record of a will whose connection is let in, and how it is stored."""
        assert self._random is not None
        once = f"will-{self._random.getrandbits(96):024x}"
        record = WillRecord(
            message=msgspec.structs.replace(will.message, id=will.message.id or once),
            once=once,
            session=session,
            delay_ms=will.delay_ms,
            lives_ms=will.lives_ms,
            who=will.who,
        )
        return record, self._stored(session, record)

    def disarm(self, session: str) -> Delete:
        """Returns the change that withdraws a will."""
        return Delete(_key(session))

    def forgotten(self, session: str) -> None:
        """Notes that the record is deleted."""
        if self._known is not None:
            self._known.pop(_key(session), None)

    async def find(self, session: str) -> WillRecord | None:
        """Returns a session's will. Raises `StoreError`."""
        key = _key(session)
        if self._known is not None and key not in self._known:
            return None
        entry = await self._store.keys.get(key)
        record = None if entry is None else will_in(entry)
        if entry is not None and record is None:
            log.error("a will cannot be decoded, and is not published", session=session, key=key)
        return record

    async def leave(self, owned: Owned, session: str, record: WillRecord, *, expiry_s: int | None) -> bool:
        """Publishes the will of a lost connection, or has it wait. Returns True if it waits; else its record can go.

        `expiry_s` is how long the session outlives the connection: a will waits no longer. Raises `Refusal` or
        `StoreError` when that has to be tried again.
        """
        if record.timer:
            return True
        if not record.publishing:
            delay_ms = record.delay_ms if expiry_s is None else min(record.delay_ms, expiry_s * 1_000)
            message = self._stamped(record.message, delay_ms=delay_ms, lives_ms=record.lives_ms)
            record = msgspec.structs.replace(record, message=message, publishing=True)
            await owned.write([self._stored(session, record)])
        elif await self._is_there(record):
            return False
        message = record.message
        outcome = await self._published(message, once=record.once, who=record.who)
        if outcome is None and message.deliver_at_ms is not None:  # no more timers: better too early than never
            message = self._hastened(message)
            outcome = await self._published(message, once=record.once, who=record.who)
        timer = None if outcome is None else timer_id(message, outcome.stored(1).get(0, ()))
        if timer is None:
            return False
        await owned.write([self._stored(session, msgspec.structs.replace(record, timer=timer, publishing=False))])
        if record.who is not None and not self._allowed(record.who, message):  # revoked before others knew of the timer
            await cancel_timer(self._store, timer)
        return True

    async def settle(self, owned: Owned, session: str, *, ended: bool) -> None:
        """Calls off the will of a session that is taken up again, or publishes that of one that has ended.

        A will without delay is published all the same (MQTT 5.0, 3.1.3.2.2). Raises as `leave` does.
        """
        record = await self.find(session)
        if record is None:
            return
        if not record.timer and (not record.delay_ms or ended or record.publishing):
            # Its owner is gone, and it was not published yet.
            waits = await self.leave(owned, session, record, expiry_s=0 if ended else None)
            record = await self.find(session) if waits else None
        if record is not None and record.timer:
            await self._call_in(owned, session, record, ended=ended)
        await owned.write([self.disarm(session)])
        self.forgotten(session)

    async def _call_in(self, owned: Owned, session: str, record: WillRecord, *, ended: bool) -> None:
        """Ends the wait of a will."""
        if ended and not record.due:
            # Written down before its timer is gone: a refusal or a crash behind that leaves it to be tried again.
            await owned.write([self._stored(session, msgspec.structs.replace(record, due=True))])
        pending = await cancel_timer(self._store, record.timer)
        if not ended or not (pending or record.due):
            return  # it is called off, or its timer has published it
        if pending or not await self._is_there(record):  # else its timer has, since it was called in for the first time
            message = self._hastened(record.message)
            await self._published(message, once=record.once and f"{record.once} now", who=record.who)

    def _stamped(self, message: Message, *, delay_ms: int, lives_ms: int | None) -> Message:
        """Returns a will as it is published: its time to live begins with its delivery."""
        now_ms = self._now_ms()
        return msgspec.structs.replace(
            message,
            time_ms=message.time_ms or now_ms,
            deliver_at_ms=now_ms + delay_ms if delay_ms else None,
            expires_at_ms=None if lives_ms is None else now_ms + delay_ms + lives_ms,
        )

    def _hastened(self, message: Message) -> Message:
        """Returns the same message, due now."""
        early_ms = (message.deliver_at_ms or 0) - self._now_ms()
        expires_at_ms = None if message.expires_at_ms is None else message.expires_at_ms - early_ms
        return msgspec.structs.replace(message, deliver_at_ms=None, expires_at_ms=expires_at_ms)

    def _stored(self, session: str, record: WillRecord) -> Put:
        key = _key(session)
        if self._known is not None:
            self._known[key] = None
        return Put(key, _encode(record))

    async def _is_there(self, record: WillRecord) -> bool:
        """Returns whether the log has a will, found by its id; one that its client has named by its contents, too."""
        if not record.once:
            return False
        will = record.message
        for position in await self._store.log.find(IndexKind.ID, hash64(will.id)):
            stored = await self._store.log.read(position)
            if stored is None:
                continue
            found = decode(stored)
            if found.id == will.id == record.once or _contents(found) == _contents(will):
                return True
        return False

    def _allowed(self, who: Identity, message: Message) -> bool:
        try:
            self._check(who, message)
        except Refusal as denied:
            log.warning("a will is not allowed any more", address=message.address, user=who.name, why=str(denied))
            return False
        return True

    async def _published(self, message: Message, *, once: str, who: Identity | None) -> Outcome | None:
        """Publishes a message; None when it can never be, which is logged: its publisher is gone. Raises `Refusal`."""
        if who is not None and not self._allowed(who, message):
            return None
        ended = _Ended(None if who is None else principal_of(who))
        number = hash64(once) >> 1 | 1 if once else 0
        self._publish(ended, Publish((message,), Token(0), number), len(message.body))
        outcome = await ended.outcome
        refusal = outcome.error or outcome.refused.get(0)
        if refusal is None:
            return outcome
        if refusal.cause in TRIED_AGAIN:
            raise refusal
        log.warning("a will cannot be published", address=message.address, why=refusal.detail)
        return None


class _Ended:
    """Waits for the outcome of one `Publish`."""

    def __init__(self, principal: Principal | None) -> None:
        self.principal = principal  # the owner of a topic that it makes
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def published(self, token: Token, outcome: Outcome, size_bytes: int) -> None:
        """Takes the outcome."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)


def will_in(entry: Entry) -> WillRecord | None:
    """Returns the will in a stored record; None where it cannot be decoded: it is damaged, or of a later version."""
    try:
        return _decode(entry.value)
    except _UNDECODABLE:
        return None


def _contents(message: Message) -> tuple[str, str, int, bytes]:
    return message.id, message.address, message.time_ms, message.body


def _key(session: str) -> str:
    return kv_key(NAMESPACE, session)
