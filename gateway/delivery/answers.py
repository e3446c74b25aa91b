"""Waits for answers: messages that come with the correlation of a request to the address where it wants its answer.

All waits of a process are one subscriber of the fan-out, with a subscription for each address and each identity that
waits there. A subscription stays for a while after its last wait: a client that sends one command after the other
does not have the fan-out plan anew each time.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Protocol

from gateway.delivery.fanout import Fanout
from gateway.delivery.lanes import Subscriber
from gateway.delivery.last_value import QueuesAt, anywhere, last_stored
from gateway.delivery.read_slots import ReadSlots
from gateway.domain.access import OPEN, Identity, Permissions
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Deliveries, SubscriptionId
from gateway.port.reads import ANSWER_WAIT_MS_MAX, AwaitAnswer, ExpectAnswer, ForgetAnswer
from store.api.client import StoreClient
from store.api.message import Message
from store.base import logs
from store.base.errors import StoreError
from store.format.frame import Position, group_of

WAITS_COUNT_MAX = 1_024  # of this process
USER_WAITS_COUNT_MAX = 128  # of one user, or of all clients without a name at one host
PLACES_COUNT_MAX = 1_024  # subscriptions; beyond, none stays without a wait
LINGER_S = 10.0  # that a subscription stays without a wait

log = logs.get(__name__)


class Asker(Protocol):
    """A connection, as far as it is known here."""

    host: str

    @property
    def ended(self) -> bool:
        """Returns whether the peer has closed its half: it may be gone, and is not waited for."""


class _Place:
    """A subscription, and the number of waits that it is for."""

    __slots__ = ("counted", "key", "permissions", "sub", "timed", "used")

    def __init__(self, key: tuple[str, Identity], sub: SubscriptionId, permissions: Permissions) -> None:
        self.key = key
        self.sub = sub
        self.permissions = permissions
        self.counted = 0
        self.used = False  # since the timer was started
        self.timed = False  # a timer will look whether it is still used

    @property
    def address(self) -> str:
        """Returns the address that is subscribed to."""
        return self.key[0]


class _Wait:
    """An expected answer."""

    __slots__ = ("answer", "correlation", "place", "until_s", "user")

    def __init__(self, user: str, place: _Place, correlation: bytes, until_s: float) -> None:
        self.user = user
        self.place = place
        self.correlation = correlation
        self.until_s = until_s
        self.answer: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()


class AnswerWaits:
    """The answers that connections of this process expect (`gateway.delivery.lanes.Receiver`)."""

    def __init__(
        self,
        fanout: Fanout,
        store: StoreClient,
        reads: ReadSlots,
        *,
        now_ms: Callable[[], int],
        later: Callable[[float, Callable[[], object]], object],
        queues_at: QueuesAt = anywhere,
    ) -> None:
        self._queues_at = queues_at
        self._fanout = fanout
        self._store = store
        self._reads = reads
        self._now_ms = now_ms
        self._later = later
        self._subscriber = Subscriber(self)
        self._subs = 0
        self._places: dict[tuple[str, Identity], _Place] = {}
        self._waits: dict[Asker, dict[int, _Wait]] = {}
        self._expected: dict[bytes, list[_Wait]] = {}  # by correlation
        self._users: Counter[str] = Counter()
        self._stopped = False

    @property
    def count(self) -> int:
        """Returns how many answers are expected."""
        return self._users.total()

    def stop(self) -> None:
        """Ends all waits, as the process goes down: each is told that there is no answer."""
        self._stopped = True
        for asker in list(self._waits):
            self.left(asker)

    def left(self, asker: Asker) -> None:
        """Ends the waits of a connection that is gone, or may be."""
        for number in list(self._waits.get(asker, ())):
            self._forget(asker, number)

    # ---- requests (`gateway.port.reads`)

    async def expect(self, asker: Asker, who: Principal, request: ExpectAnswer) -> None:
        """Notes an answer that is to come. Raises `Refusal` (QUOTA, OVERLOAD)."""
        user = f"user {who.name}" if who.name else f"host {request.host or asker.host}"
        if self._users[user] >= USER_WAITS_COUNT_MAX:
            those = "of this user" if who.name else "without a user from this host"
            detail = f"{USER_WAITS_COUNT_MAX} requests {those} wait for answers here"
            raise Refusal(Cause.QUOTA, detail, retry_after_ms=1_000)
        if self._users.total() >= WAITS_COUNT_MAX:
            detail = f"{WAITS_COUNT_MAX} requests wait for answers here"
            raise Refusal(Cause.OVERLOAD, detail, retry_after_ms=1_000)
        waits = self._waits.setdefault(asker, {})
        assert request.number not in waits
        wait_ms = 0 if asker.ended else min(request.wait_ms, ANSWER_WAIT_MS_MAX)
        until_s = asyncio.get_running_loop().time() + wait_ms / 1_000
        wait = waits[request.number] = _Wait(user, self._place(request.address, who), request.correlation, until_s)
        self._expected.setdefault(wait.correlation, []).append(wait)
        self._users[user] += 1

    async def wait(self, asker: Asker, who: Principal, request: AwaitAnswer) -> Message | None:
        """Returns an expected answer; None where its time is up, or the wait has been ended."""
        wait = self._waits.get(asker, {}).get(request.number)
        if wait is None:
            return None
        try:
            if request.behind is not None and who.permissions.reads(wait.place.address) and not self._stopped:
                await self._seek(wait, request.behind)
            left_s = wait.until_s - asyncio.get_running_loop().time()
            if not self._stopped:
                await asyncio.wait([wait.answer], timeout=max(left_s, 0))
            return wait.answer.result() if wait.answer.done() else None
        finally:
            if self._waits.get(asker, {}).get(request.number) is wait:
                self._forget(asker, request.number)

    async def _seek(self, wait: _Wait, behind: Position) -> None:
        """Takes the last message at the address if it is the answer to a request that is stored at a position.

        In another log than the request's an earlier message cannot be told from a later one.
        """
        try:
            async with asyncio.timeout_at(wait.until_s):
                look = partial(last_stored, self._store, wait.place.address, queues_at=self._queues_at)
                found = await self._reads.read(lambda: look(now_ms=self._now_ms()))
        except (StoreError, TimeoutError) as error:  # an answer that is still to come is heard all the same
            log.warning("the answer to a repeated command cannot be looked for", error=str(error) or "no time left")
            return
        if found is None or wait.answer.done():
            return
        at, last = found
        earlier = group_of(at.frame) == group_of(behind.frame) and at <= behind
        if last.correlation == wait.correlation and not earlier:
            wait.answer.set_result(last)

    async def forget(self, asker: Asker, _who: Principal, request: ForgetAnswer) -> None:
        """Ends a wait, if it has not ended yet."""
        if request.number in self._waits.get(asker, ()):
            self._forget(asker, request.number)

    def _forget(self, asker: Asker, number: int) -> None:
        waits = self._waits[asker]
        wait = waits.pop(number)
        if not waits:
            del self._waits[asker]
        alike = self._expected[wait.correlation]
        alike.remove(wait)
        if not alike:
            del self._expected[wait.correlation]
        self._users[wait.user] -= 1
        if not self._users[wait.user]:
            del self._users[wait.user]
        if not wait.answer.done():
            wait.answer.set_result(None)
        self._unused(wait.place)

    # ---- subscriptions

    def _place(self, address: str, who: Principal) -> _Place:
        key = address, who.permissions.identity
        place = self._places.get(key)
        if place is None:
            self._subs += 1
            place = self._places[key] = _Place(key, SubscriptionId(self._subs), who.permissions)
            self._fanout.subscribe(self._subscriber, place.sub, address, None, permissions=who.permissions)
        place.counted += 1
        place.used = True
        return place

    def _unused(self, place: _Place) -> None:
        place.counted -= 1
        if place.counted:
            return
        if len(self._places) > PLACES_COUNT_MAX or self._stopped:
            self._end(place)
        elif not place.timed:
            place.timed, place.used = True, False
            self._later(LINGER_S, partial(self._look, place))

    def _look(self, place: _Place) -> None:
        """Ends a subscription that no wait has used since the timer was started."""
        place.timed = False
        if place.counted or self._places.get(place.key) is not place:
            return
        if place.used:
            place.timed, place.used = True, False
            self._later(LINGER_S, partial(self._look, place))
        else:
            self._end(place)

    def _end(self, place: _Place) -> None:
        del self._places[place.key]
        self._fanout.unsubscribe(self._subscriber, place.sub)

    def permissions_of(self, sub: SubscriptionId) -> Permissions:
        """Returns the permissions of a subscription's waits, as rules may restrict them from now on."""
        return next((place.permissions for place in self._places.values() if place.sub == sub), OPEN)

    # ---- from the fan-out

    def deliver(self, deliveries: Deliveries) -> int:
        """Takes all messages, and gives those that are answers to the waits for them."""
        batch = deliveries.batch
        for index, subs in zip(deliveries.picks, deliveries.subs, strict=True):
            correlation = batch.messages[index].correlation
            for wait in () if correlation is None else self._expected.get(correlation, ()):
                if wait.place.sub in subs and not wait.answer.done():
                    wait.answer.set_result(batch.message(index))
        return len(deliveries.picks)
