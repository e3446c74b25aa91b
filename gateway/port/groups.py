"""Consumer groups at the port: requests that adapters make by `Call`, and why they are refused.

A group reads one topic, in one of two ways. A *cursor group* has members, each of which reads queues of its own in
order and commits offsets. A *lease group* leases single messages to any client that asks, by handles, until they are
settled, given back, or their time is over (`store.api.leases`).

A group is there from its first member, or its creation, on until it is deleted, with or without members. A name is a
letter or digit, then letters, digits and `. _ -`, up to 64 in all; others are refused with MALFORMED. A member is named
by the id that it was given, and is the principal's who joined: refused with NOT_FOUND where it is not there any more,
with FORBIDDEN where it is another's.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Request, Value
from store.api.message import Message

TTL_S_MIN, TTL_S_MAX = 2, 3_600  # how long a member may send nothing
TTL_S = 30  # unless it says something else
WAIT_MS_MAX = 60_000  # for messages
MESSAGES_COUNT_MAX = 1_000  # in one answer
CURSOR_CHARS_MAX = 40_000  # a thousand queues, the largest numbers
LEASED = "leases"  # in the place of a strategy: the group leases messages
LEASE_S_MAX = 12 * 3_600  # that a message may be leased for at a time
LEASE_S = 30  # unless the group says something else
ATTEMPTS_MAX = 1_000  # deliveries before a message is a dead letter
RETRY_S_MAX = 24 * 3_600  # that a message may be kept back for
HANDLES_COUNT_MAX = 1_000  # in one request

_CURSOR = re.compile(r"[0-9]{1,19}(?:~[0-9]{1,10}\.[0-9]{1,19})*")
_NUMBER_MAX: Final = (1 << 63) - 1  # that there can be: an offset, a generation


class NotOwned(Refusal):
    """Queues that the member does not have, or has got since: nothing was committed."""

    def __init__(self, queues: Sequence[int]) -> None:
        shown = ", ".join(map(str, queues[:10])) + (" and others" if len(queues) > 10 else "")
        super().__init__(Cause.CONFLICT, f"this member does not have, or got later, the queues {shown}")
        self.queues = list(queues)


class GroupCursor(NamedTuple):
    """The position of a member: the next offset of each queue where that differs from the committed one.

    An offset counts if the member has had the queue since `generation` or longer. As text: the generation, then
    `~queue.offset` for each.
    """

    generation: int
    offsets: Mapping[int, int]

    def __str__(self) -> str:
        return "".join([str(self.generation), *(f"~{queue}.{at}" for queue, at in sorted(self.offsets.items()))])

    @classmethod
    def parse(cls, text: str) -> "GroupCursor":
        """Parses the text that `str` writes. Raises ValueError."""
        if len(text) > CURSOR_CHARS_MAX or _CURSOR.fullmatch(text) is None:
            raise ValueError("not a cursor")
        generation, *items = text.split("~")
        offsets = {int(queue): int(at) for queue, _, at in (item.partition(".") for item in items)}
        if len(offsets) < len(items) or max(int(generation), *offsets.values(), 0) > _NUMBER_MAX:
            raise ValueError("not a cursor")
        return cls(int(generation), offsets)


class Joined(Value, frozen=True, kw_only=True):
    """A new member: it is there for `ttl_s` after each request of its own."""

    member: str
    topic: str
    strategy: str
    ttl_s: int


class JoinGroup(Request[Joined], frozen=True, kw_only=True):
    """Become a member; a group that is not there is made.

    `strategy` is one of `gateway.groups.assignment.STRATEGIES`. A group that is made begins where `start` says,
    "earliest" or "latest", and reads queues that the topic gets later from their beginning. Refused with CONFLICT where
    the group reads another topic or by another strategy, NOT_FOUND where there is no topic, QUOTA.
    """

    group: str
    topic: str
    strategy: str = "averaged"
    start: str = "earliest"
    ttl_s: int = TTL_S


class Renewed(Value, frozen=True, kw_only=True):
    """The queues of a member; it should commit those in `revoked` and poll again, which releases them."""

    ttl_s: int
    queues: Sequence[int]
    revoked: Sequence[int]


class RenewMember(Request[Renewed], frozen=True, kw_only=True):
    """Be there for another time to live."""

    group: str
    member: str


class LeaveGroup(Request[bool], frozen=True, kw_only=True):
    """Be no member any more, and have no queues. Answers whether it was one."""

    group: str
    member: str


class Polled(Value, frozen=True, kw_only=True):
    """Messages with the queue and the offset of each, those of a queue in order, their ids filled in.

    `after` is where to go on. `revoked`: see `Renewed`.
    """

    messages: Sequence[tuple[int, int, Message]]
    after: GroupCursor
    queues: Sequence[int]
    revoked: Sequence[int] = ()


class PollGroup(Request[Polled], frozen=True, kw_only=True):
    """Messages of the queues that a member has, from `after` on or from the committed offset.

    Releases queues that are to be another's, unless `after` has an uncommitted offset of them, and takes free ones that
    are to be this member's. Waits up to `wait_ms` for a message; one poll of a member at a time.
    """

    group: str
    member: str
    after: GroupCursor | None = None
    limit: int = 100
    wait_ms: int = 0


class CommitOffsets(Request[Mapping[int, int]], frozen=True, kw_only=True):
    """Commits offsets: all messages before them are processed. Answers the committed offset of each queue.

    All are committed or none: refused with `NotOwned`. One that is lower than the committed offset changes nothing.
    Refused with MALFORMED for an offset behind a queue's end.
    """

    group: str
    member: str
    cursor: GroupCursor


class LeaseTerms(Value, frozen=True, kw_only=True):
    """The rules by which a lease group leases messages.

    A message is leased for `lease_s`, unless it is asked for otherwise. One that comes back is leased again after
    `retry_s`, twice that the next time, and so on up to `retry_max_s`. After `attempts` deliveries it goes to the
    address `dead_letter`; both are given, or neither: then it is leased without end. An `ordered` group leases no two
    messages of one key at the same time, and those of one key in their order.
    """

    lease_s: int = LEASE_S
    attempts: int | None = None
    dead_letter: str | None = None
    retry_s: int = 0
    retry_max_s: int = 0
    ordered: bool = False


class LeaseGroup(Value, frozen=True, kw_only=True):
    """A lease group; `created` says whether it is new."""

    group: str
    topic: str
    terms: LeaseTerms
    created: bool


class CreateLeaseGroup(Request[LeaseGroup], frozen=True, kw_only=True):
    """Creates a lease group, or agrees with the one that exists. Refusals as of `JoinGroup`; CONFLICT for other terms.

    `start` is "earliest" or "latest".
    """

    group: str
    topic: str
    start: str = "earliest"
    terms: LeaseTerms = LeaseTerms()


class Received(NamedTuple):
    """A leased message. `deliveries` is how often, this time included; the holder of `handle` may settle it."""

    queue: int
    offset: int
    deliveries: int
    handle: str
    message: Message


class ReceiveMessages(Request[Sequence[Received]], frozen=True, kw_only=True):
    """Leases messages of a lease group, for `lease_s` or as the group says. Waits up to `wait_ms` for the first one.

    Refused with NOT_FOUND, and CONFLICT for a cursor group, as are the requests below.
    """

    group: str
    limit: int = 10
    wait_ms: int = 0
    lease_s: int | None = None


class SettleReceived(Request[Sequence[Refusal | None]], frozen=True, kw_only=True):
    """Settles messages for good. Each handle has its answer: CONFLICT where its lease has ended, MALFORMED for none."""

    group: str
    handles: Sequence[str]


class ReturnReceived(Request[Sequence[Refusal | None]], frozen=True, kw_only=True):
    """Gives messages back, to be leased again after `delay_s` or as the group says. Answers as `SettleReceived`."""

    group: str
    handles: Sequence[str]
    delay_s: int | None = None


class ExtendReceived(Request[Sequence[Refusal | str]], frozen=True, kw_only=True):
    """Lets leases end in `lease_s` from now, or in the group's own time.

    Answers with a handle each; the old one stays good.
    """

    group: str
    handles: Sequence[str]
    lease_s: int | None = None


class GroupName(Value, frozen=True, kw_only=True):
    """A group, its topic, and its kind."""

    group: str
    topic: str
    strategy: str


class GroupsPage(Value, frozen=True, kw_only=True):
    """A page of groups. `after` asks for the next page; None: this was the last."""

    groups: Sequence[GroupName]
    after: str | None


class ListGroups(Request[GroupsPage], frozen=True, kw_only=True):
    """Asks for a page of groups, by name."""

    limit: int = 100
    after: str = ""


class QueueDescription(Value, frozen=True, kw_only=True):
    """A group's `offset` in a queue that can be read from `first` to `end`; `member` is "" where none has the queue.

    Of a lease group it is the first offset that is neither settled nor leased, and `waiting` is the number of such
    messages.
    """

    queue: int
    offset: int
    first: int
    end: int
    member: str
    waiting: int | None = None

    @property
    def lag(self) -> int:
        """Returns how many messages are left to read."""
        if self.waiting is not None:
            return self.waiting
        return max(0, self.end - max(self.offset, self.first))


class GroupDescription(Value, frozen=True, kw_only=True):
    """A group with its live members and the queues of its topic, both ascending; `terms` are of a lease group."""

    group: str
    topic: str
    strategy: str
    members: Sequence[str]
    queues: Sequence[QueueDescription]
    terms: LeaseTerms | None = None


class DescribeGroup(Request[GroupDescription], frozen=True, kw_only=True):
    """Asks for the offsets and the members of a group. Refused with NOT_FOUND."""

    group: str


class ResetGroup(Request[Mapping[int, int]], frozen=True, kw_only=True):
    """Go back, or forward, in all queues or some. Answers where the group is in each of them now.

    One of: `to` "earliest" or "latest", `time_ms` the first message stored then or later, `offsets`. An offset outside
    of a queue is moved to its nearer end. The queues have no owner then: messages that their owners had read cannot be
    committed any more. A lease group goes on at the end alone ("latest"), which settles all messages that are not
    leased. Refused with NOT_FOUND for a group or a queue that is not there, CONFLICT for a reset that a lease group
    cannot do.
    """

    group: str
    to: str = ""
    time_ms: int | None = None
    offsets: Mapping[int, int] | None = None
    queues: Sequence[int] = ()  # all where it is empty


class DeleteGroup(Request[bool], frozen=True, kw_only=True):
    """Forget a group. Answers whether there was one. Refused with CONFLICT while it has members."""

    group: str
