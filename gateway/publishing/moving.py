"""Moves leased messages: their replacements are stored, and they are settled, atomically where that is possible.

A frame is in one log. Rows for the store group of the queue that the messages leave are stored in the frame that
settles them; rows for other groups are stored there first, so that a crash in between may double them. Where one of
the groups refuses, the messages are moved again later: then only the rows that have not been stored are.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from controller.api.client import ControllerClient, ControllerError, TopicLimit
from controller.api.commands import CreateTopic
from controller.api.names import TOPIC_NAME_BYTES_MAX, check_name
from gateway.domain.errors import Cause, Refusal
from gateway.publishing.routing.placing import Elsewhere, Parts, Source
from gateway.publishing.routing.router import AMQP_TOPICS, Route, Router, UnknownTopicError
from gateway.publishing.topic_shares import UsedShares
from store.api.client import StoreClient
from store.api.log import Appended
from store.base.errors import StoreError, StoreOverloaded
from store.format.frame import QueueNumber, QueueOffset, UnplacedFrame

STORED_COUNT_MAX: Final = 100_000  # messages whose replacements are elsewhere, not settled: older ones may be doubled


@dataclass(frozen=True, slots=True, kw_only=True)
class Mover:
    """Moves messages leased from queues of a store."""

    store: StoreClient
    controller: ControllerClient
    router: Router
    appended: Callable[[Iterable[int]], None]  # takes the named queues that have received something
    creates_topics: bool  # a topic that is missing is made, as publishing makes it
    used_shares: UsedShares = field(default_factory=partial(UsedShares, time.monotonic))
    stored: dict[Source, set[int]] = field(default_factory=dict)  # the queues of replacements, before the settlement

    async def route(self, address: str, *, creator: str, inside: bool = False) -> Route:
        """Returns the route of an address; makes its topic. Raises `Refusal`, and `StoreError` to try again.

        QUOTA where there may be no more topics, or the share of `creator`, who caused the move, is used up. `inside`:
        see `Router.resolve`.
        """
        while True:
            try:
                return self.router.resolve(address, inside=inside)
            except UnknownTopicError as unknown:
                if not self.creates_topics:
                    raise Refusal(Cause.NOT_FOUND, f"there is no topic {unknown.topic!r}") from unknown
                await self._create(unknown.topic, "" if unknown.topic in AMQP_TOPICS else creator)

    async def _create(self, name: str, creator: str) -> None:
        """Makes a topic. Raises `Refusal` where there can be none of its name, and `StoreError` to try again."""
        try:
            check_name(name, TOPIC_NAME_BYTES_MAX)
        except ControllerError as error:
            raise Refusal(Cause.MALFORMED, f"the topic {name!r} cannot be made: {error}") from error
        refusal = self.used_shares.refusal(creator)
        if refusal is not None:
            raise refusal
        try:
            await self.controller.do(CreateTopic(name=name, creator=creator))
        except TopicLimit as full:
            raise self.used_shares.note(creator, Refusal(Cause.QUOTA, str(full))) from full
        except ControllerError as error:  # it may pass, whatever a later version's controllers say by it
            raise StoreOverloaded(f"the topic {name!r} cannot be made: {error}") from error

    def parts(self, here: int) -> Parts:
        """Returns parts for replacements of messages of a store group, without those stored by earlier attempts."""
        return Parts(self.router, here, self.stored)

    async def move(
        self, parts: Parts, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, group: str = ""
    ) -> None:
        """Stores the replacements of messages that an owner holds, and settles these. Raises `StoreError`."""
        rows, payload = parts.take_here()
        await self.store_elsewhere(parts)
        named = {"group": group} if group else {}  # the lanes of a named queue know of no other group
        if rows:
            await self.store.leases.forward(queue, owner, offsets, rows, payload, **named)
        else:
            await self.store.leases.settle(queue, owner, offsets, **named)
        for offset in offsets if self.stored else ():
            self.stored.pop((queue, group, offset), None)
        self.appended(parts.named)

    async def store_elsewhere(self, parts: Parts) -> None:
        """Stores the rows for other store groups. Raises `StoreError`."""
        if elsewhere := parts.elsewhere():
            outcomes = await asyncio.gather(*map(self._append, elsewhere), return_exceptions=True)
            for outcome in outcomes:  # now that it is known of each of them whether it was stored
                if outcome is not None:
                    raise outcome

    async def _append(self, part: Elsewhere) -> None:
        appended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(outcome: Appended | StoreError) -> None:
            if not isinstance(outcome, StoreError):
                self._note(part.placed)
            if appended.done():
                return
            if isinstance(outcome, StoreError):
                appended.set_exception(outcome)
            else:
                appended.set_result(None)

        self.store.log.append(UnplacedFrame.build(part.rows, part.payload), done)
        await appended

    def _note(self, placed: Sequence[tuple[Source, int]]) -> None:
        """Notes the queues that replacements are in now."""
        for source, queue in placed:
            self.stored.setdefault(source, set()).add(queue)
        while len(self.stored) > STORED_COUNT_MAX:
            del self.stored[next(iter(self.stored))]
