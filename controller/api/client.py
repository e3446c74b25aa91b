"""The controllers' interface for all other parts, in this process or over the network.

A cluster is store groups; a group is replicas of one log, of which one is master. Terms and fencing are RocketMQ's: an
epoch is the term of a master, and the SyncStateSet (`sync_set`) names the replicas that have everything the master has
acknowledged.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args

import msgspec

HOME_GROUP = 0  # holds keys and values; the only group of a single node
OUTAGE_LEASE_MS = 4_000  # of an `AskService` answer; longer than controllers take to elect another leader

Acknowledge: TypeAlias = Literal["all_in_sync", "quorum", "master"]


class ControllerError(Exception):
    """The root of all refusals of a controller."""


class ControllerDamaged(ControllerError):
    """The controller's stored state cannot be read, and it cannot be made from anything else."""


class ControllerClosed(ControllerError):
    """The client, or this node, is shut down."""


class MetadataForgotten(ControllerError):
    """The controllers do not have metadata that is known here to have been agreed on: they have lost their memory."""


class ControllerUnreachable(ControllerError):
    """The controllers have not answered in time. The command may have been done; it can be repeated."""


class ControllerOverloaded(ControllerError):
    """Too much is in flight; nothing was done."""


class UnknownTopic(ControllerError):
    """The topic does not exist."""


class TopicExists(ControllerError):
    """The topic exists with another configuration."""


class TopicLimit(ControllerError):
    """The cluster has as many topics or queues as its configuration allows."""


class UnknownQueue(ControllerError):
    """The queue belongs to no topic."""


class QueueClosed(ControllerError):
    """The queue is closed already, or is the topic's last open one, or would have to be closed first."""


class UnknownGroup(ControllerError):
    """The store group does not exist."""


class GroupExists(ControllerError):
    """The store group exists, or existed."""


class GroupNotEmpty(ControllerError):
    """The group still has queues, or holds the keys and values."""


class UnknownReplica(ControllerError):
    """The group has no replica of that id."""


class ReplicaIdTaken(ControllerError):
    """The id was given to another replica, or is not the next one: ask for the next one again."""


class ReplicaElsewhere(ControllerError):
    """The replica is alive at another address, and cannot be at two: one data directory is a copy of the other."""


class ReplicaInSync(ControllerError):
    """The replica is in its group's SyncStateSet: its records may be nowhere else."""


class StaleEpoch(ControllerError):
    """Decided on epochs that are no longer in force, or by one who is not master: nothing was changed."""


class NoMaster(ControllerError):
    """The group has no master now, and only a master can answer the request."""


class NotElectable(ControllerError):
    """The replica cannot be made master without risk to acknowledged records."""


class WrongCluster(ControllerError):
    """The client belongs to another cluster than the controller."""


class WrongLog(ControllerError):
    """The replica has a log of its own, which is not that of its group."""


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic: the unit of configuration, retention and access.

    `queues` are all queue numbers to read, by index, those to write to before the closed ones; `groups` are the groups
    they lie in, one for each. `closed` are those of `queues` that take no more messages and are being drained. A queue
    that was closed by moving it is in `moved`, with the queue that took its place: a key's messages in the old one
    come before those in the new one. Without `groups` everything lies in the home group.
    """

    name: str
    queues: tuple[int, ...]
    config: Mapping[str, Any] = msgspec.field(default_factory=dict)
    groups: tuple[int, ...] = ()
    closed: tuple[int, ...] = ()
    moved: Mapping[int, int] = msgspec.field(default_factory=dict)
    creator: str = ""  # the creator whose share of the topics it counts against; "": none

    def __post_init__(self) -> None:
        if not self.groups:
            msgspec.structs.force_setattr(self, "groups", (HOME_GROUP,) * len(self.queues))
        if len(self.groups) != len(self.queues):
            raise ValueError(f"{len(self.queues)} queues in {len(self.groups)} groups")
        if self.closed and self.queues[-len(self.closed) :] != self.closed:
            raise ValueError("closed queues come last")

    @property
    def open(self) -> tuple[int, ...]:
        """The queue numbers to write to; a key's hash picks one. Never empty."""
        return self.queues[: len(self.queues) - len(self.closed)]


class NamedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with a name of its own: the index behind an AMQP queue. It lies in `group`."""

    name: str
    number: int
    group: int = HOME_GROUP


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A group's settings for keeping its log.

    `replicas` is the intended number of replicas, learners not counted. A write is acknowledged when all of the
    SyncStateSet have it, or a majority of it, and never while fewer than `min_in_sync` are in it; or when the master
    alone has it, whoever is in the set.
    `unclean_election` lets a replica outside the set become master when there is no other: acknowledged writes can be
    lost.
    """

    replicas: int = 1
    min_in_sync: int = 1
    acknowledge: Acknowledge = "all_in_sync"
    unclean_election: bool = False


class GroupChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a `GroupConfig` that are to be others; None: as it is."""

    replicas: int | None = None
    min_in_sync: int | None = None
    acknowledge: Acknowledge | None = None
    unclean_election: bool | None = None


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """One replica of a group's log.

    `id` is given once, from 1 on, and never again. `address` is where its node serves ("host:port"). Of equals the one
    of the higher `priority` is elected. A learner follows the log from afar and is never elected or counted. `check` is
    the code by which the node proves that it was given this id. `log` is the id of the log that it had when it said so;
    empty: none.
    """

    id: int
    node: str
    address: str
    priority: int = 0
    zone: str = ""
    learner: bool = False
    check: str = ""
    log: str = ""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A store group: the replicas of one log.

    `master` is a replica's id; None while no replica can be elected, and before the first election. `master_epoch`
    grows with every change of master, also to None. `sync_set` ascends and includes the master; it is empty only before
    the first election. `sync_epoch` grows with every change of the set. No new queues are placed on a `closed` group.
    `log` is the id of the group's log forever, from the first election on: that of the log which was elected, or a new
    one.
    """

    number: int
    config: GroupConfig = GroupConfig()
    replicas: tuple[Replica, ...] = ()
    master: int | None = None
    master_epoch: int = 0
    sync_set: tuple[int, ...] = ()
    sync_epoch: int = 0
    closed: bool = False
    next_replica: int = 1  # greater than every id ever given
    elected_ms: int = 0  # when `master_epoch` began
    log: str = ""
    unclean_epoch: int = 0  # the newest that an unclean election began: frames that its master lacked are lost; 0: none

    def replica(self, id_: int) -> Replica | None:
        """Returns a replica by id."""
        return next((one for one in self.replicas if one.id == id_), None)

    @property
    def epochs(self) -> tuple[int, int]:
        """Returns the master's epoch and the set's, which order the states of a group."""
        return self.master_epoch, self.sync_epoch

    @property
    def voters(self) -> tuple[int, ...]:
        """The ids of those that may be in the SyncStateSet: all but learners."""
        return tuple(one.id for one in self.replicas if not one.learner)


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A group's service, as the controllers know it: whether it takes and answers writes.

    For `sure_ms` no proxy was told otherwise. `room` are the replicas in sync that have room on their disks.
    """

    number: int
    served: bool
    sure_ms: int
    room: tuple[int, ...] = ()


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user that may connect. The gateway alone understands `password`, a hash, and `rights`."""

    name: str
    password: str
    rights: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A controller: its Raft id, and where its node serves ("host:port")."""

    id: int
    node: str
    address: str


class KnownMetadata(msgspec.Struct, frozen=True, array_like=True):
    """The extent of a cluster's metadata that is known somewhere: commands up to `index`, whose digest is `digest`.

    Every queue number ever given is smaller than `next_queue`. Metadata that has less has been forgotten.
    """

    index: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)] = 0
    digest: Annotated[bytes, msgspec.Meta(max_length=64)] = b""  # empty: not known
    next_queue: Annotated[int, msgspec.Meta(ge=0, le=1 << 32)] = 0

    def joined(self, other: "KnownMetadata") -> "KnownMetadata":
        """Returns the knowledge of both."""
        newest = max(self, other, key=lambda one: one.index)
        return KnownMetadata(newest.index, newest.digest, max(self.next_queue, other.next_queue))


A_co = TypeVar("A_co", covariant=True)  # the answer to a request


class ControllerRequest(msgspec.Struct, Generic[A_co], frozen=True, kw_only=True):
    """A request to the controllers' leader, whose class names the type of its answer."""


def answer_type(request: type[ControllerRequest[Any]]) -> type[Any]:
    """Returns the type of a request's answer: `Topic` for `class CreateTopic(Command[Topic])`."""
    base: Any = request.__dict__["__orig_bases__"][0]
    answer: type[Any] = get_args(base)[0]
    return answer


class ControllerClient(Protocol):
    """The metadata of a cluster, as a cache that is read, and requests that change it.

    The cache is never behind a request this client has awaited.
    """

    def topic(self, name: str) -> Topic | None:
        """Returns a topic by name."""

    def topics(self) -> Sequence[Topic]:
        """Returns all topics, by name."""

    def topic_of_queue(self, number: int) -> str | None:
        """Returns the name of the topic a queue belongs to."""

    def group_of_queue(self, number: int) -> int | None:
        """Returns the group in which a topic's queue or a named queue lies; None for a queue that there is not."""

    def named_queues(self) -> Mapping[str, NamedQueue]:
        """Returns the named queues by name: a view that changes with them."""

    def dropped(self, group: int) -> frozenset[int]:
        """Returns the dropped queues of a group, as far back as is remembered: nothing is written to them."""

    @property
    def home(self) -> int:
        """The group that holds keys and values."""

    @property
    def cluster(self) -> str:
        """The cluster's id, by chance, the same forever; empty as long as that is not known here."""

    def groups(self) -> Sequence[Group]:
        """Returns all store groups, by number."""

    def group(self, number: int) -> Group | None:
        """Returns a store group by number."""

    def users(self) -> Sequence[User]:
        """Returns all users, by name."""

    def user(self, name: str) -> User | None:
        """Returns a user by name."""

    def members(self) -> Sequence[Member]:
        """Returns the controllers, by id."""

    def known(self) -> KnownMetadata:
        """Returns how much of the metadata is in the cache."""

    def watch(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls `listener` on the event loop after every change. Returns a function that stops it."""

    async def barrier(self) -> None:
        """Returns when the cache holds every change made before this call, by any client. Raises `ControllerError`."""

    async def do(self, request: ControllerRequest[A_co]) -> A_co:
        """Performs a request (`controller.api.commands`, `controller.api.requests`) and returns its answer.

        Every command is idempotent: again it changes nothing and answers the same. Raises `ControllerError`: the
        leader refuses it, `ControllerUnreachable`: it may have been done, and can be asked for again.
        """
