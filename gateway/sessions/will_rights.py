"""Waiting wills that may not be published any more: this cancels them when rights change.

A will that waits is a timer of the store, which knows nothing of rights. So its timer is cancelled as soon as its
publisher has lost the right: by every proxy when rights change, and by each when it starts, for rights may have changed
while there was none. A gateway with a store of its own fires no timer before. Cancelling is safe for every process: a
session's owner that finds the timer gone takes the will for published. A will whose time comes while the stores of a
cluster run and no proxy does, or within the moment that a change takes to arrive, is published by the right that it had
when its connection ended.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from gateway.domain.access import Identity
from gateway.domain.errors import Refusal
from gateway.publishing.delayed import cancel_timer
from gateway.sessions.wills import NAMESPACE, WillRecord
from store.api.client import StoreClient
from store.api.message import Message
from store.base import logs
from store.base.errors import StoreError

PAGE: Final = 500  # records asked of the store at a time
PAUSE_S: Final = 1.0  # between two looks, while rights change again and again, and after the store has failed

log = logs.get(__name__)
_decode = msgspec.msgpack.Decoder(WillRecord).decode


class WaitingWills:
    """Calls off wills that may not be published any more. `check` raises `Refusal` for one of them."""

    def __init__(
        self,
        store: StoreClient,
        check: Callable[[Identity, Message], None],
        *,
        spawn: Callable[[Coroutine[Any, Any, object]], object],
    ) -> None:
        self._store = store
        self._check = check
        self._spawn = spawn
        self._due = False  # rights have changed since the records were read last
        self._running = False

    async def begin(self) -> None:
        """Looks at all wills that wait, before any of them is published; again in a task of its own if that fails."""
        try:
            await self._look()
        except StoreError as error:
            log.warning("the rights of waiting wills could not be checked yet", error=str(error), retry_s=PAUSE_S)
            self.look()

    def look(self) -> None:
        """Looks at all wills that wait, in a task of its own, as rights have changed."""
        self._due = True
        if not self._running:
            self._running = True
            self._spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._due:
                self._due = False
                try:
                    await self._look()
                except StoreError as error:
                    log.warning(
                        "the rights of waiting wills could not be checked yet", error=str(error), retry_s=PAUSE_S
                    )
                    self._due = True
                if self._due:
                    await asyncio.sleep(PAUSE_S)
        finally:
            self._running = False

    async def _look(self) -> None:
        after = ""
        while page := await self._store.keys.prefix(f"{NAMESPACE}/", after=after, limit=PAGE):
            for entry in page:
                record = _decode(entry.value)
                if record.timer and record.who is not None:
                    await self._look_at(record, record.who)
            after = page[-1].key

    async def _look_at(self, record: WillRecord, who: Identity) -> None:
        try:
            self._check(who, record.message)
        except Refusal as denied:
            try:
                waited = await cancel_timer(self._store, record.timer)
            except Refusal as gone:
                log.warning(
                    "a will that is not allowed any more could not be cancelled",
                    address=record.message.address,
                    why=str(gone),
                )
                return
            if waited:
                address = record.message.address
                log.warning("a will is not allowed any more", address=address, user=who.name, why=str(denied))
