"""Wills that wait: a session's last message, which is not published if the session is taken up again in time.

Such a will is a message to be delivered later (`gateway.delayed`). Which timer it waits in is kept beside the session;
between setting the one and storing the other lies a write, and a crash just there leaves a will that nobody calls off.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from gateway.delayed import cancel_timer, timer_id
from gateway.ingest import Publisher
from gateway.keys import kv_key
from gateway.message import Message
from gateway.port import Outcome, Publish, Token
from store.client import StoreClient

__all__ = ["Publishing", "Wills"]

NAMESPACE = "session-wills"


class Publishing(Protocol):
    """`Ingest.publish`."""

    def __call__(self, publisher: Publisher, effect: Publish, size_bytes: int) -> None:
        """Store an effect's messages."""


class WillRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the KV holds of a will that waits."""

    timer: str
    message: Message
    due: bool = False  # called in from its timer, and not published yet


class Wills:
    """The wills of sessions whose connection is gone. A session is named by its key; its calls may not overlap."""

    def __init__(self, store: StoreClient, publish: Publishing, *, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._publish = publish
        self._now_ms = now_ms

    async def leave(self, session: str, message: Message) -> None:
        """Publish a will at its `deliver_at_ms`, or at once when it has none. Raises `Refusal` or `StoreError`."""
        outcome = await self._published(message)
        timer = timer_id(message, outcome.stored(1).get(0, ()))
        if timer is not None:
            record = WillRecord(timer=timer, message=message)
            await self._store.kv_put(_key(session), msgspec.msgpack.encode(record))

    async def settle(self, session: str, *, ended: bool) -> None:
        """A session is taken up again: its will is called off. Or it has ended: its will waits no longer."""
        entry = await self._store.kv_get(_key(session))
        if entry is None:
            return
        record = msgspec.msgpack.decode(entry.value, type=WillRecord)
        pending = await cancel_timer(self._store, record.timer)
        if ended and (pending or record.due):
            # Written down before it is published, so that a refusal or a crash in between leaves it to be tried again.
            due = msgspec.structs.replace(record, due=True)
            await self._store.kv_put(_key(session), msgspec.msgpack.encode(due))
            await self._published(self._hastened(record.message))
        await self._store.kv_delete(_key(session))

    def _hastened(self, message: Message) -> Message:
        """The same message, now: its time to live begins with its delivery."""
        early_ms = (message.deliver_at_ms or 0) - self._now_ms()
        expires_at_ms = None if message.expires_at_ms is None else message.expires_at_ms - early_ms
        return msgspec.structs.replace(message, deliver_at_ms=None, expires_at_ms=expires_at_ms)

    async def _published(self, message: Message) -> Outcome:
        ended = _Ended()
        self._publish(ended, Publish((message,), Token(0)), len(message.body))
        outcome = await ended.outcome
        refusal = outcome.error or outcome.refused.get(0)
        if refusal is not None:
            raise refusal
        return outcome


class _Ended:
    """Waits for the outcome of one `Publish`."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def published(self, token: Token, outcome: Outcome, size_bytes: int) -> None:
        """The outcome."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)


def _key(session: str) -> str:
    return kv_key(NAMESPACE, session)
