"""The half of a `ControllerClient` that is the same wherever requests go: reads of the state, and `do`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from controller.api.client import (
    HOME_GROUP,
    ControllerRequest,
    Group,
    KnownMetadata,
    Member,
    NamedQueue,
    Topic,
    User,
    answer_type,
)
from controller.api.commands import (
    ClusterLimits,
    Command,
    ConfigureTopic,
    CreateTopic,
    DropQueue,
    ForgetQueue,
    NameQueue,
)
from controller.metadata.state import MetadataState
from controller.wire.wire import BadAnswer
from store.base.listeners import Listeners

T = TypeVar("T")
_ASK: Final = object()  # the state here does not answer a command


class StateClient(ABC):
    """Answers reads from a `MetadataState` in this process; `_request` is where its requests go."""

    def __init__(self, state: MetadataState, limits: ClusterLimits, now_ms: Callable[[], int]) -> None:
        self.state = state
        self._limits = limits
        self._now_ms = now_ms
        self._listeners = Listeners[[]]("the state of the controllers")

    @abstractmethod
    async def _request(self, request: ControllerRequest[Any]) -> Any:
        """Performs a request when it is safe, and returns its answer. Raises `ControllerError`."""

    @abstractmethod
    def _applied(self) -> int:
        """Returns how far the state is: the index of the newest command in it, or of a later entry; 0: it is empty."""

    async def do(self, request: ControllerRequest[T]) -> T:
        """Performs a request and returns its answer; some commands are answered from the state here."""
        if isinstance(request, Command):
            known = self._known(request)
            if known is not _ASK:
                return cast("T", known)
            request = request.filled(self._limits, self._now_ms())
        answer = await self._request(request)
        kind = answer_type(type(request))
        if not isinstance(answer, kind):
            raise BadAnswer(f"{type(request).__name__} is answered with {kind.__name__}, not {type(answer).__name__}")
        return cast("T", answer)

    def _known(self, command: Command[Any]) -> Any:
        """Returns the answer to a command that has nothing to change by the state here, for those asked for often."""
        state = self.state
        match command:
            case CreateTopic() if not command.queues and not command.config:
                return state.topics.get(command.name, _ASK)
            case ConfigureTopic():
                there = state.topics.get(command.name)
                return there if there is not None and dict(there.config) == dict(command.config) else _ASK
            case NameQueue():
                return state.named.get(command.name, _ASK)
            case ForgetQueue() if command.name not in state.named:
                return None
            case DropQueue() if command.number not in state.owner:
                return None
            case _:
                return _ASK

    # ---- reads

    def topic(self, name: str) -> Topic | None:
        """Returns a topic by name."""
        return self.state.topics.get(name)

    def topics(self) -> Sequence[Topic]:
        """Returns all topics, by name."""
        return [self.state.topics[name] for name in sorted(self.state.topics)]

    def topic_of_queue(self, number: int) -> str | None:
        """Returns the name of the topic a queue belongs to."""
        return self.state.owner.get(number)

    def group_of_queue(self, number: int) -> int | None:
        """Returns the group in which a topic's queue or a named queue lies; None for a queue that there is not."""
        return self.state.group_of.get(number)

    def named_queues(self) -> Mapping[str, NamedQueue]:
        """Returns the named queues by name."""
        return self.state.named

    def dropped(self, group: int) -> frozenset[int]:
        """Returns the queues of a group that were dropped."""
        return frozenset(number for number, there in self.state.dropped.items() if there == group)

    @property
    def home(self) -> int:
        """The group that holds keys and values."""
        return HOME_GROUP

    @property
    def cluster(self) -> str:
        """The cluster's id, empty as long as that is not known here."""
        return self.state.cluster

    def groups(self) -> Sequence[Group]:
        """Returns all store groups, by number."""
        return [self.state.groups[number] for number in sorted(self.state.groups)]

    def group(self, number: int) -> Group | None:
        """Returns a store group by number."""
        return self.state.groups.get(number)

    def users(self) -> Sequence[User]:
        """Returns all users, by name."""
        return [self.state.users[name] for name in sorted(self.state.users)]

    def user(self, name: str) -> User | None:
        """Returns a user by name."""
        return self.state.users.get(name)

    def members(self) -> Sequence[Member]:
        """Returns the controllers, by id."""
        return [self.state.members[id_] for id_ in sorted(self.state.members)]

    def known(self) -> KnownMetadata:
        """Returns how much of the metadata the state holds."""
        return KnownMetadata(self._applied(), self.state.digest, self.state.next_queue)

    def watch(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls `listener` on the event loop after every change. Returns a function that stops it."""
        return self._listeners.add(listener)
