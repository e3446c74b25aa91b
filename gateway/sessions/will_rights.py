"""Waiting wills that may not be published any more: this cancels them when rights change.

A will that waits is a timer of the store, which knows nothing of rights. So its timer is cancelled as soon as its
publisher has lost the right: by every proxy when rights change, and by each when it starts, for rights may have changed
while there was none. A gateway with a store of its own, with or without workers, fires no timer before, and serves
meanwhile. Cancelling is safe for every process: a
session's owner that finds the timer gone takes the will for published. A will whose time comes while the stores of a
cluster run and no proxy does, or within the moment that a change takes to arrive, is published by the right that it had
when its connection ended.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from gateway.domain.access import Identity
from gateway.domain.errors import Refusal
from gateway.publishing.delayed import cancel_timer
from gateway.sessions.wills import NAMESPACE, WillRecord, will_in
from store.api.client import StoreClient
from store.api.message import Message
from store.base import logs
from store.base.errors import StoreError

PAGE: Final = 500  # records asked of the store at a time
PAUSE_S: Final = 1.0  # between two looks, while rights change again and again, and after the store has failed
TRIES_COUNT_MAX: Final = 5  # of the first look, until timers fire all the same: damaged keys may stay so for long

log = logs.get(__name__)


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
        self._looked: Callable[[], object] | None = None  # waits for the first look
        self._tries_left = TRIES_COUNT_MAX
        self.undecodable_count = 0  # records, when they were read last

    def begin(self, looked: Callable[[], object]) -> None:
        """Looks at all wills that wait, in a task of its own; then calls `looked`: from then on timers may fire."""
        self._looked, self._tries_left = looked, TRIES_COUNT_MAX
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
                    self._tries_left -= 1
                    if self._tries_left <= 0:
                        self._give_up()
                else:
                    self._has_looked()
                if self._due:
                    await asyncio.sleep(PAUSE_S)
        except Exception:  # our own bug: timers are not to wait for it
            self._has_looked()
            raise
        finally:
            self._running = False

    def _give_up(self) -> None:
        if self._looked is not None:
            log.error("wills that wait are published whatever rights their users have: these could not be checked")
        self._has_looked()

    def _has_looked(self) -> None:
        looked, self._looked = self._looked, None
        if looked is not None:
            looked()

    async def _look(self) -> None:
        after, undecodable = "", list[str]()
        while page := await self._store.keys.prefix(f"{NAMESPACE}/", after=after, limit=PAGE):
            for entry in page:
                record = will_in(entry)
                if record is None:
                    undecodable.append(entry.key)
                elif record.timer and record.who is not None:
                    await self._look_at(record, record.who)
            after = page[-1].key
        self.undecodable_count = len(undecodable)
        if undecodable:
            log.error(
                "wills cannot be decoded: those that wait are published whatever rights their users have",
                count=len(undecodable),
                first=undecodable[0],
            )

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
