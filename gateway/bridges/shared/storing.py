"""Storing a bridge's messages: one batch in progress at a time, tried again for as long as the store refuses it."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from gateway.bridges.shared.figures import Figures
from gateway.domain.errors import Refusal
from gateway.domain.principal import Principal
from gateway.ownership.owners import OwnershipLost
from gateway.port.adapter import Outcome, Publish, Token
from gateway.port.marks import Fence
from gateway.publishing.publishing import PublishSource
from store.api.message import Message
from store.base import logs

CROWDED_S: Final = 0.05  # between two looks whether there is room again
AGAIN_S: Final = 1.0  # until messages that the store did not take are tried again, where it does not say itself
LAST_OUTCOME_S: Final = 30.0  # how long outcomes of messages in flight are awaited after the connection has ended

Store: TypeAlias = Callable[[PublishSource, Publish, int], None]  # `Ingest.publish`

log = logs.get(__name__)


class Batch:
    """Messages that are stored together, and how far that has come. They are named by their index."""

    def __init__(self, count: int) -> None:
        self.left = list(range(count))  # neither stored nor refused for good
        self.never: dict[int, Refusal] = {}  # refused for good

    def note(self, outcome: Outcome) -> Refusal | None:
        """Notes the outcome of storing those that were left; returns the reason why some still are, None: none is."""
        refused = outcome.refused if outcome.error is None else dict.fromkeys(range(len(self.left)), outcome.error)
        again: list[int] = []
        why: Refusal | None = None
        for at, refusal in sorted(refused.items()):
            if refusal.retriable:
                again.append(self.left[at])
                why = why or refusal
            else:
                self.never[self.left[at]] = refusal
        self.left = again
        return why


class BridgeStore:
    """Stores a bridge's batches, as a `PublishSource`; `hold` stops the bridge from reading."""

    principal: Principal | None = None

    def __init__(
        self,
        bridge: str,
        figures: Figures,
        store: Store,
        *,
        crowded: Callable[[], bool],
        chance: random.Random,
        hold: Callable[[], None],
    ) -> None:
        self.fence: Fence | None = None  # of the owner for which the bridge runs
        self._bridge = bridge
        self._figures = figures
        self._store = store
        self._crowded = crowded
        self._chance = chance
        self._hold = hold
        self._under_way: asyncio.Future[Outcome] | None = None
        self._asked = 0  # messages that were handed to the store last
        self._batch: Batch | None = None  # that is being stored
        self._tokens = 0

    async def stored(self, messages: Sequence[Message]) -> Mapping[int, Refusal]:
        """Stores a batch, as often as that takes; returns those that never will be stored, by index.

        Raises `OwnershipLost`.
        """
        batch = self._batch = Batch(len(messages))
        while batch.left:
            while self._crowded():
                self._hold()
                await asyncio.sleep(CROWDED_S)
            why = batch.note(await self._publish([messages[index] for index in batch.left]))
            if why is not None:
                await self._wait(why, len(batch.left))
            elif self._figures.connected:
                self._figures.error = ""
        self._batch = None
        return batch.never

    async def last_outcome(self) -> Batch | None:
        """Waits for messages in flight; returns the batch that was being stored, None where there was none.

        What is left of it is not stored, or it is not known that it is.
        """
        batch, self._batch = self._batch, None
        if batch is None or self._under_way is None:
            return batch
        try:
            async with asyncio.timeout(LAST_OUTCOME_S):
                outcome = await self._under_way
        except TimeoutError:
            log.warning(
                "bridge: the outcome of messages in flight is unknown; they are sent again", bridge=self._bridge
            )
        else:
            if not isinstance(outcome.error, OwnershipLost):
                batch.note(outcome)
        finally:
            self._under_way = None
        return batch

    async def _wait(self, refusal: Refusal, messages: int) -> None:
        self._hold()  # the upstream keeps the rest
        if self._figures.error != refusal.detail:
            log.warning("bridge: not stored yet", bridge=self._bridge, error=refusal.detail, messages=messages)
        self._figures.error = refusal.detail
        await asyncio.sleep((refusal.retry_after_ms / 1_000 or AGAIN_S) * self._chance.uniform(0.5, 1.0))

    async def _publish(self, messages: Sequence[Message]) -> Outcome:
        self._tokens += 1
        self._asked = len(messages)
        outcome = self._under_way = asyncio.get_running_loop().create_future()
        size = sum([len(message.body) for message in messages])
        self._store(self, Publish(messages, Token(self._tokens), fence=self.fence), size)
        found: Outcome = await asyncio.shield(outcome)
        self._under_way = None
        if isinstance(found.error, OwnershipLost):
            raise found.error
        return found

    def published(self, token: Token, outcome: Outcome, size_bytes: int) -> None:
        """See `PublishSource`. Counts stored messages, also once the connection has ended."""
        if token != self._tokens:
            return
        if outcome.error is None and self._asked > len(outcome.refused):
            self._figures.stored += self._asked - len(outcome.refused)
            self._figures.last_message_s = time.monotonic()
        if self._under_way is not None and not self._under_way.done():
            self._under_way.set_result(outcome)
