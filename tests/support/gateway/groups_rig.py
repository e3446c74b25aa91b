"""Consumer groups of several proxies over one store in one process, with a clock that the test sets."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any

from controller.api.client import Group, GroupConfig, Topic
from gateway.domain.errors import Refusal
from gateway.domain.principal import Principal
from gateway.groups.consumer_groups import ConsumerGroups
from gateway.groups.environment import GroupEnvironment
from gateway.groups.settings import GroupsConfig
from gateway.port.adapter import Request, Token
from gateway.port.groups import (
    CommitOffsets,
    GroupCursor,
    JoinGroup,
    LeaveGroup,
    Polled,
    PollGroup,
    Renewed,
    RenewMember,
)
from store.api.message import Message
from tests.support.gateway.asking import ask, refusal_of
from tests.support.process.clock import Clock
from tests.support.store.fake_store import unplaced

FIRST = 16  # the first queue of the topic


class Topics:
    """As much of a controller as groups ask."""

    def __init__(self, **topics: int) -> None:
        self.by_name: dict[str, Topic] = {}
        self.listeners: list[Callable[[], object]] = []
        self.unclean = False  # logs may lose their end
        for name, count in topics.items():
            self.put(name, range(FIRST, FIRST + count))

    def put(self, name: str, queues: Any, *, moved: Mapping[int, int] = MappingProxyType({})) -> None:
        self.by_name[name] = Topic(name=name, queues=tuple(queues), closed=tuple(moved), moved=moved)
        for listener in self.listeners:
            listener()

    def topic(self, name: str) -> Topic | None:
        return self.by_name.get(name)

    def group_of_queue(self, number: int) -> int:
        return 0

    def group(self, number: int) -> Group:
        return Group(number=number, config=GroupConfig(unclean_election=self.unclean))

    def watch(self, listener: Callable[[], object]) -> None:
        self.listeners.append(listener)


class Connection:
    """A connection."""

    protocol = "http"
    gone = ended = False


ANYBODY = Principal(name="")


class GroupsProxy:
    """One process. `die` is kill -9."""

    def __init__(
        self, store: Any, topics: Topics, clock: Clock, *, seed: int, config: GroupsConfig, may_come: bool = True
    ) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        environment = GroupEnvironment(
            store=store,
            controller=topics,  # type: ignore[arg-type]
            config=config,
            random=random.Random(seed),
            now_ms=clock.now_ms,
            clock=clock.now_s,
            may_come=may_come,
        )
        self.groups = ConsumerGroups(environment, spawn=self.spawn)

    def spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def ask(
        self,
        request: Request[Any],
        of: Principal = ANYBODY,
        connection: Connection | None = None,
        token: Token | None = None,
    ) -> Any:
        return await ask(connection or Connection(), request, who=of, token=token, groups=self.groups)

    async def refused(self, request: Request[Any], of: Principal = ANYBODY) -> Refusal:
        return await refusal_of(self.ask(request, of))

    async def die(self) -> None:
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- what members do

    async def join(self, group: str = "g", topic: str = "t", of: Principal = ANYBODY, **options: Any) -> str:
        joined = await self.ask(JoinGroup(group=group, topic=topic, **options), of)
        return str(joined.member)

    async def poll(
        self, member: str, after: GroupCursor | None = None, *, group: str = "g", limit: int = 100, wait_ms: int = 0
    ) -> Polled:
        request = PollGroup(group=group, member=member, after=after, limit=limit, wait_ms=wait_ms)
        found = await self.ask(request)
        assert isinstance(found, Polled)
        return found

    async def commit(self, member: str, cursor: GroupCursor, *, group: str = "g") -> Mapping[int, int]:
        found: Mapping[int, int] = await self.ask(CommitOffsets(group=group, member=member, cursor=cursor))
        return found

    async def renew(self, member: str, *, group: str = "g") -> Renewed:
        found = await self.ask(RenewMember(group=group, member=member))
        assert isinstance(found, Renewed)
        return found

    async def leave(self, member: str, *, group: str = "g") -> bool:
        return bool(await self.ask(LeaveGroup(group=group, member=member)))


async def publish(
    store: Any, bodies: Mapping[int, list[bytes]], *, address: str = "t/x", expires_at_ms: int | None = None
) -> None:
    """Stores messages in queues, as one frame."""
    messages = [
        (queue, Message(address=address, body=body, expires_at_ms=expires_at_ms))
        for queue, some in bodies.items()
        for body in some
    ]
    done = asyncio.get_running_loop().create_future()
    store.log.append(unplaced(messages), done.set_result)
    result = await done
    assert not isinstance(result, Exception), result


def bodies(polled: Polled) -> list[tuple[int, int, bytes]]:
    return [(queue, offset, message.body) for queue, offset, message in polled.messages]
