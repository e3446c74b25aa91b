"""Lease groups for adapters: messages leased one by one, by handles that any proxy takes (`gateway.port.groups`).

The store leases (`store.api.leases`), to a group of its own in each queue of the topic; the keys have the group's
terms. A message that was delivered too often becomes a dead letter when it would be leased once more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from gateway.domain.address import check_address
from gateway.domain.errors import Cause, Refusal
from gateway.groups.consumer_groups import NEW, ConsumerGroups, GroupClient
from gateway.groups.joining import check_group_name, check_read, check_reader, check_reads, check_room, group_puts
from gateway.groups.lease_letters import LeaseLetters
from gateway.groups.state import GroupRecord, group_key
from gateway.groups.store import load_group, queues_of
from gateway.port.groups import (
    ATTEMPTS_MAX,
    HANDLES_COUNT_MAX,
    LEASE_S_MAX,
    LEASED,
    RETRY_S_MAX,
    CreateLeaseGroup,
    ExtendReceived,
    LeaseGroup,
    LeaseTerms,
    Received,
    ReceiveMessages,
    ReturnReceived,
    SettleReceived,
)
from gateway.publishing.publishing import refusal_of
from gateway.publishing.topic_shares import creator_of
from gateway.queues.leaving.reading import read
from gateway.queues.leaving.rules import NO_RULES
from store.api.handle import group_of_handle
from store.base.errors import BadHandle, LeaseLost, RevisionConflict, StoreError
from store.format.frame import QueueNumber, QueueOffset
from store.format.policy import DEFAULT, LeasePolicy

TRIES_COUNT_MAX = 16  # of a creation, while others create and delete the same
ROUNDS_COUNT_MAX = 16  # of takes for one answer; each asks all queues that may have more
QUEUES_AT_ONCE = 16  # of one answer
TAKES_COUNT_MAX = 32  # in flight in this process: each may bring a frame as long as frames can be
TAKE_BYTES_MIN = 64 << 10
LOOK_S = 5.0  # a waiting receiver looks at the group at least so often
PREPARED_COUNT_MAX = 100_000  # queues of groups whose policy this process knows to be set; beyond, it forgets them

T = TypeVar("T")
R = TypeVar("R")


class _Taken(NamedTuple):
    """The outcome of a take: the messages to deliver, and how many were leased in all."""

    received: list[Received]
    leased_count: int


class LeaseGroups:
    """The lease groups of this process's store. `groups` are the groups with members, and share their environment."""

    def __init__(self, groups: ConsumerGroups, *, letters: LeaseLetters) -> None:
        self._environment = environment = groups.environment
        self._store, self._controller = environment.store, environment.controller
        self._config, self._clock = environment.config, environment.clock
        self._random = random = environment.random
        self._groups = groups
        self._letters = letters
        # One owner for all: these leases end by themselves, and a client with a handle may end them before.
        self._owner: Final = (1 << 62) | random.getrandbits(61)  # connections' owners are small numbers
        self._takes = asyncio.Semaphore(TAKES_COUNT_MAX)
        self._prepared: set[tuple[str, int]] = set()
        self._waiting: dict[asyncio.Event, Sequence[int]] = {}  # receivers, and the queues that they wait for
        self._store.queues.watch(self._leasable)

    async def answer(
        self, method: Callable[["LeaseGroups", GroupClient, R], Awaitable[T]], asker: GroupClient, request: R
    ) -> T:
        """Answers a request of `gateway.port.groups` by one of the methods below. Raises `Refusal`, `StoreError`."""
        check_group_name(getattr(request, "group"))  # noqa: B009 - each of them has one
        return await method(self, asker, request)

    # ---- groups

    async def create(self, asker: GroupClient, request: CreateLeaseGroup) -> LeaseGroup:
        """See `CreateLeaseGroup`."""
        permissions = asker.principal.permissions
        check_reads(permissions, request.group, self._environment.patterns_of(request.topic))
        _check_terms(request.terms)
        check_read(self._controller, request, may_come=self._environment.may_come)
        if (address := request.terms.dead_letter) is not None:
            check_address(address)
            self._letters.check(request.topic, address)
        for _ in range(TRIES_COUNT_MAX):
            group = await load_group(self._store, request.group)
            if group.header is not None:
                record = group.header.record
                check_reads(permissions, group.name, self._environment.patterns_of(record.topic))
                if (record.topic, record.terms) != (request.topic, request.terms):
                    raise Refusal(
                        Cause.CONFLICT, f"the group {group.name!r} reads {record.topic!r}, or by other terms; delete it"
                    )
                return LeaseGroup(group=group.name, topic=record.topic, terms=request.terms, created=False)
            await check_room(self._store, self._config.groups_max)
            leases = f"group/{request.group}/{self._random.getrandbits(64):016x}"
            record = GroupRecord(request.topic, LEASED, request.terms, leases, creator_of(asker.principal))
            if request.start == "latest":
                await self._settle_all(record)
            try:
                async with self._groups.turns.within(NEW):
                    await check_room(self._store, self._config.groups_max)
                    await self._store.keys.transact({group_key(group.name): 0}, group_puts(group.name, record))
            except RevisionConflict:
                await self._store.groups.delete(leases)
                continue
            except Refusal:
                await self._store.groups.delete(leases)
                raise
            return LeaseGroup(group=group.name, topic=record.topic, terms=request.terms, created=True)
        raise Refusal(
            Cause.OVERLOAD, f"the group {request.group!r} is changed too often by others", retry_after_ms=1_000
        )

    async def _settle_all(self, record: GroupRecord) -> None:
        """Settles all messages that a group could lease."""
        queues = queues_of(self._controller, record.topic)
        await asyncio.gather(*(self._store.leases.purge(QueueNumber(one), group=record.leases) for one in queues))

    async def _record(self, asker: GroupClient, name: str) -> GroupRecord:
        """Returns the record of a lease group that the asker may read by. Raises `Refusal`."""
        group = await load_group(self._store, name)
        if group.header is None:
            raise Refusal(Cause.NOT_FOUND, f"there is no group {name!r}")
        record = group.header.record
        check_reader(asker.principal.permissions, name, self._environment.patterns_of(record.topic))
        if record.terms is None:
            raise Refusal(Cause.CONFLICT, f"the group {name!r} is read by members, and leases nothing")
        return record

    # ---- receiving

    async def receive(self, asker: GroupClient, request: ReceiveMessages) -> Sequence[Received]:
        """See `ReceiveMessages`."""
        _check_lease_s(request.lease_s)
        until_s = self._clock() + request.wait_ms / 1_000
        connection, waited = asker.connection, False
        with (
            self._listening(request.group) as woken,
            self._groups.waits.waiting(connection, asker.number, woken) as wanted,
        ):
            while True:
                woken.clear()
                record = await self._record(asker, request.group)
                if not wanted():
                    return ()
                queues = self._rotated(queues_of(self._controller, record.topic))
                ends: dict[int, int] = {}
                if request.wait_ms:
                    self._waiting[woken] = queues
                    ends = await self._ends(queues)
                found = await self._take(request, record, queues)
                if not wanted() or (waited and connection.ended):
                    self._give_back(record, found)
                    return ()
                left_s = until_s - self._clock()
                if found or left_s <= 0 or self._groups.stopping:
                    if found:
                        self._environment.delivered(connection.protocol, record.topic, len(found))
                    return found
                await self._groups.reader.wait(ends, woken, min(left_s, LOOK_S))
                waited = True
                if not wanted() or connection.ended:
                    return ()

    @contextmanager
    def _listening(self, group: str) -> Iterator[asyncio.Event]:
        """Yields an event that is set when the group, its topic, or the messages available to it have changed."""
        with self._groups.wakes.listening(group) as woken:
            try:
                yield woken
            finally:
                self._waiting.pop(woken, None)

    def _leasable(self, queues: Sequence[QueueNumber]) -> None:
        """Wakes receivers that wait for queues."""
        if self._waiting:
            found = frozenset(queues)
            for woken, waited in self._waiting.items():
                if not found.isdisjoint(waited):
                    woken.set()

    async def _ends(self, queues: Sequence[int]) -> dict[int, int]:
        """Returns the ends of queues: later messages end a wait."""
        bounds = await asyncio.gather(
            *(self._store.queues.bounds(QueueNumber(queue)) for queue in queues), return_exceptions=True
        )
        return {
            queue: int(found.next)
            for queue, found in zip(queues, bounds, strict=True)
            if not isinstance(found, BaseException)
        }

    def _rotated(self, queues: Sequence[int]) -> list[int]:
        start = self._random.getrandbits(16) % len(queues) if queues else 0
        return [*queues[start:], *queues[:start]]

    async def _take(self, request: ReceiveMessages, record: GroupRecord, queues: Sequence[int]) -> list[Received]:
        """Leases messages of some queues, fairly. Raises `StoreError` where all of them fail."""
        found: list[Received] = []
        failed: dict[int, StoreError] = {}
        size_left, active = self._config.response_bytes_max, list(queues)
        for _ in range(ROUNDS_COUNT_MAX):
            more: list[int] = []
            while active and len(found) < request.limit and size_left > 0:
                left = request.limit - len(found)
                some = active[: min(QUEUES_AT_ONCE, left)]
                active = active[len(some) :]
                count, size = left // len(some), max(size_left // len(some), TAKE_BYTES_MIN)
                takes = [self._take_of(request, record, QueueNumber(one), count, size) for one in some]
                for queue, taken in zip(some, await asyncio.gather(*takes), strict=True):
                    if isinstance(taken, StoreError):
                        failed[queue] = taken
                        continue
                    found += taken.received
                    size_left -= sum(len(one.message.body) for one in taken.received)
                    if taken.leased_count >= count:
                        more.append(queue)
            active = [*active, *more]
            if not active or len(found) >= request.limit or size_left <= 0:
                break
        if not found and failed and len(failed) == len(queues):
            raise next(iter(failed.values()))
        return found

    async def _take_of(
        self, request: ReceiveMessages, record: GroupRecord, queue: QueueNumber, count: int, size: int
    ) -> _Taken | StoreError:
        """Leases messages of one queue; settles expired ones, and moves dead letters."""
        terms = record.terms
        assert terms is not None
        async with self._takes:
            try:
                await self._prepare(record, queue)
                leases = await self._store.leases.take(
                    queue,
                    self._owner,
                    max_count=count,
                    max_bytes=size,
                    group=record.leases,
                    invisible_ms=1_000 * (terms.lease_s if request.lease_s is None else request.lease_s),
                )
                limit = None if terms.attempts is None else terms.attempts - 1
                found = read(leases, now_ms=self._environment.now_ms(), rules=replace(NO_RULES, delivery_limit=limit))
            except StoreError as error:
                return error
            received = [
                Received(queue, lease.offset, lease.deliveries + 1, lease.handle(), message)
                for lease, message in zip(found.live, found.messages, strict=True)
            ]
            try:
                if over := [*(letter.offset for letter in found.expired), *found.broken]:
                    await self._store.leases.settle(queue, self._owner, over, group=record.leases)
                if found.exhausted:
                    await self._letters.move(request.group, record, queue, self._owner, found.exhausted)
            except StoreError as error:
                if not received:
                    return error  # messages that could not be settled or moved come back when their leases end
            return _Taken(received, len(leases))

    async def _prepare(self, record: GroupRecord, queue: QueueNumber) -> None:
        """Ensures that the store leases a queue's messages by the group's terms."""
        terms = record.terms
        assert terms is not None
        backoff_ms, longest_ms = terms.retry_s * 1_000, terms.retry_max_s * 1_000
        policy = LeasePolicy(backoff_ms=backoff_ms, backoff_max_ms=longest_ms, ordered=terms.ordered)
        if policy == DEFAULT or (record.leases, queue) in self._prepared:
            return
        if await self._store.leases.policy(queue, group=record.leases) != policy:
            await self._store.leases.set_policy(queue, policy, group=record.leases)
        if len(self._prepared) >= PREPARED_COUNT_MAX:
            self._prepared.clear()
        self._prepared.add((record.leases, queue))

    def _give_back(self, record: GroupRecord, found: Sequence[Received]) -> None:
        """Gives back messages whose consumer's connection has ended."""
        for one in found:
            self._store.leases.requeue(
                QueueNumber(one.queue), self._owner, [QueueOffset(one.offset)], delivered=False, group=record.leases
            )

    # ---- handles

    async def settle(self, asker: GroupClient, request: SettleReceived) -> Sequence[Refusal | None]:
        """See `SettleReceived`."""
        return await self._each(asker, request, self._store.leases.settle_handles)

    async def give_back(self, asker: GroupClient, request: ReturnReceived) -> Sequence[Refusal | None]:
        """See `ReturnReceived`."""
        _check_seconds("delay_s", request.delay_s, RETRY_S_MAX)
        delay_ms = None if request.delay_s is None else request.delay_s * 1_000
        return await self._each(
            asker, request, lambda some: self._store.leases.requeue_handles(some, delay_ms=delay_ms)
        )

    async def extend(self, asker: GroupClient, request: ExtendReceived) -> Sequence[Refusal | str]:
        """See `ExtendReceived`."""
        _check_lease_s(request.lease_s)
        record = await self._record(asker, request.group)
        assert record.terms is not None
        lease_ms = 1_000 * (record.terms.lease_s if request.lease_s is None else request.lease_s)
        return await self._ask(
            record, request.handles, lambda some: self._store.leases.extend_handles(some, invisible_ms=lease_ms)
        )

    async def _each(
        self,
        asker: GroupClient,
        request: SettleReceived | ReturnReceived,
        ask: Callable[[Sequence[str]], Awaitable[Sequence[StoreError | None]]],
    ) -> list[Refusal | None]:
        return await self._ask(await self._record(asker, request.group), request.handles, ask)

    async def _ask(
        self,
        record: GroupRecord,
        handles: Sequence[str],
        ask: Callable[[Sequence[str]], Awaitable[Sequence[T | StoreError]]],
    ) -> list[T | Refusal]:
        """Asks the store about handles of a group; each has its answer, in their order."""
        if len(handles) > HANDLES_COUNT_MAX:
            raise Refusal(Cause.TOO_LARGE, f"handles: are at most {HANDLES_COUNT_MAX} in one request")
        known = [n for n, handle in enumerate(handles) if group_of_handle(handle) == record.leases]
        found: Mapping[int, T | StoreError] = {}
        if known:
            found = dict(zip(known, await ask([handles[n] for n in known]), strict=True))
        foreign = BadHandle("the handle belongs to another group, or to none")
        return [_refused(found.get(n, foreign)) for n in range(len(handles))]


def _refused(outcome: T | StoreError) -> T | Refusal:
    """Returns the outcome of a handle, an error as its refusal."""
    if not isinstance(outcome, StoreError):
        return outcome
    if isinstance(outcome, LeaseLost):
        return Refusal(Cause.CONFLICT, str(outcome))
    return Refusal(Cause.MALFORMED, str(outcome)) if isinstance(outcome, BadHandle) else refusal_of(outcome)


def _check_terms(terms: LeaseTerms) -> None:
    """Raises `Refusal` (MALFORMED)."""
    _check_lease_s(terms.lease_s)
    _check_seconds("retry_s", terms.retry_s, RETRY_S_MAX)
    _check_seconds("retry_max_s", terms.retry_max_s, RETRY_S_MAX)
    if (terms.attempts is None) != (terms.dead_letter is None):
        raise Refusal(Cause.MALFORMED, "attempts and dead_letter are given together: no message is thrown away")
    if terms.attempts is not None and not 1 <= terms.attempts <= ATTEMPTS_MAX:
        raise Refusal(Cause.MALFORMED, f"attempts: must be an integer from 1 to {ATTEMPTS_MAX}")


def _check_lease_s(seconds: int | None) -> None:
    if seconds is not None and not 1 <= seconds <= LEASE_S_MAX:
        raise Refusal(Cause.MALFORMED, f"lease_s: is a whole number from 1 to {LEASE_S_MAX}")


def _check_seconds(name: str, seconds: int | None, most: int) -> None:
    if seconds is not None and not 0 <= seconds <= most:
        raise Refusal(Cause.MALFORMED, f"{name}: is a whole number from 0 to {most}")
