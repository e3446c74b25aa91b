"""The members of the cluster, and the changes of them: one server at a time (thesis, 4.1 and 4.2).

Any majority before a change of one server and any majority after it have a member in common, so no joint configuration
is needed.

A change takes effect on a node when it appends the entry, as the thesis has it, and not when it applies it, as in
etcd: so a majority of the remaining members uses it as soon as it is committed. Otherwise a node that was removed, and
may be gone, could still be needed: with members 1 and 3, the entry that removes 1 is committed when both have it, and
if 1 goes away before 3 learns of that, 3 waits for the vote of 1 forever. The price is that a membership is taken back
when the log is cut; `History` does that.

A leader proposes a change only after the one before it *and* an entry of its own term are committed (Ongaro, "bug in
single-server membership changes", raft-dev 2015): two leaders' changes of the same membership could have majorities
without a common member.

A member is a node with its memory: an id and an *incarnation*, which only the node's directory holds. A node that comes
back without its directory has another incarnation, and is another node that happens to have the same id: its votes and
acknowledgements are not counted, and it takes the place of the old one as any new node does, as a learner. So
everything the thesis proves about nodes that keep their memory holds. KRaft does the same (KIP-853: voter id and
directory id).
"""

import enum
from functools import cached_property

import msgspec

from controller.raft.errors import BadMessage, ChangeRefused

MEMBERS_MAX = 64  # voters and learners: each is sent everything
ADDRESS_BYTES_MAX = 1024
INCARNATION_CHARS_MAX = 64


class ChangeKind(enum.Enum):
    """The kinds of changes."""

    ADD_LEARNER = "add_learner"  # gets the log, does not count (thesis, 4.2.1)
    PROMOTE = "promote"  # a learner becomes a voter
    REMOVE = "remove"
    NAME = "name"  # the incarnation of a member that has none yet
    MOVE = "move"  # another address for the same node


class MembershipChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the membership.

    ADD_LEARNER of an id that is a member in another incarnation replaces that one: voters lose one node at most.
    """

    kind: ChangeKind
    node: int
    address: str = ""  # where the node is reached: of ADD_LEARNER and MOVE, opaque to the core
    incarnation: str = ""  # of ADD_LEARNER and NAME


class RaftMember(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster. An empty `incarnation` is not known yet, and stands for any."""

    id: int
    address: str = ""
    learner: bool = False
    incarnation: str = ""

    def is_(self, incarnation: str) -> bool:
        """Returns whether a node of this id with that incarnation is this member."""
        return self.incarnation in {"", incarnation}


class Membership(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The members, by id."""

    members: tuple[RaftMember, ...] = ()

    @classmethod
    def of(cls, *members: RaftMember) -> "Membership":
        """Returns a membership of these members in any order."""
        return cls(members=tuple(sorted(members, key=lambda member: member.id)))

    @cached_property
    def voters(self) -> tuple[int, ...]:
        """The ids that count for majorities, ascending."""
        return tuple(member.id for member in self.members if not member.learner)

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """All ids, ascending."""
        return tuple(member.id for member in self.members)

    def get(self, node: int) -> RaftMember | None:
        """Returns a member by its id."""
        return next((member for member in self.members if member.id == node), None)

    def votes(self, node: int, incarnation: str) -> bool:
        """Returns whether a node counts for majorities: its id votes, and it is the node that is meant."""
        there = self.get(node)
        return there is not None and not there.learner and there.is_(incarnation)

    def incarnation_of(self, node: int) -> str:
        """Returns the incarnation of a member; empty where that is not known."""
        there = self.get(node)
        return "" if there is None else there.incarnation

    def problem(self) -> str | None:
        """Returns why no cluster can have this membership; None when one can."""
        if list(self.ids) != sorted(set(self.ids)):
            return "ids are not ascending"
        if len(self.members) > MEMBERS_MAX:
            return f"there are more than {MEMBERS_MAX} members"
        if any(member.id < 1 for member in self.members):
            return "an id is less than 1"
        return None if self.voters else "there are no voters"

    def check(self, change: MembershipChange) -> None:
        """Raises `ChangeRefused` for a change that makes no sense here."""
        there = self.get(change.node)
        if len(change.address.encode("utf-8", "surrogatepass")) > ADDRESS_BYTES_MAX:
            raise ChangeRefused(f"an address has at most {ADDRESS_BYTES_MAX} bytes")
        if len(change.incarnation) > INCARNATION_CHARS_MAX:
            raise ChangeRefused(f"an incarnation has at most {INCARNATION_CHARS_MAX} characters")
        if change.kind is ChangeKind.ADD_LEARNER:
            self._check_addition(change, there)
        elif there is None:
            raise ChangeRefused(f"controller {change.node} is not a member")
        elif change.kind is ChangeKind.PROMOTE and not there.learner:
            raise ChangeRefused(f"controller {change.node} votes already")
        elif change.kind is ChangeKind.REMOVE and self.voters == (change.node,):
            raise ChangeRefused("nobody would be left to vote")
        elif change.kind is ChangeKind.NAME and (there.incarnation or not change.incarnation):
            raise ChangeRefused(f"controller {change.node} has an incarnation already, or is to get an empty one")

    def _check_addition(self, change: MembershipChange, there: RaftMember | None) -> None:
        if there is not None and change.incarnation in {"", there.incarnation}:
            raise ChangeRefused(f"controller {change.node} is a member already")
        if change.node < 1 or (there is None and len(self.members) >= MEMBERS_MAX):
            raise ChangeRefused(f"ids begin at 1, and there are at most {MEMBERS_MAX} members")
        if self.voters == (change.node,):
            raise ChangeRefused("nobody would be left to vote")

    def apply(self, change: MembershipChange) -> "Membership":
        """Returns the membership after a change; the same one where the change makes no sense, on every node alike."""
        try:
            self.check(change)
        except ChangeRefused:
            return self
        others = [member for member in self.members if member.id != change.node]
        there = self.get(change.node)
        if change.kind is ChangeKind.ADD_LEARNER:
            new = RaftMember(id=change.node, address=change.address, learner=True, incarnation=change.incarnation)
            return Membership.of(*others, new)
        if change.kind is ChangeKind.REMOVE:
            return Membership.of(*others)
        assert there is not None
        if change.kind is ChangeKind.PROMOTE:
            return Membership.of(*others, msgspec.structs.replace(there, learner=False))
        if change.kind is ChangeKind.NAME:
            return Membership.of(*others, msgspec.structs.replace(there, incarnation=change.incarnation))
        return Membership.of(*others, msgspec.structs.replace(there, address=change.address))


class History:
    """The memberships of a log since its snapshot: each is in force from the entry of its index on."""

    def __init__(self, index: int, membership: Membership) -> None:
        self.held = [(index, membership)]  # by index, never empty

    @property
    def newest(self) -> Membership:
        """The membership in force."""
        return self.held[-1][1]

    def at(self, index: int) -> Membership:
        """Returns the one after the entry of `index`."""
        return next(membership for since, membership in reversed(self.held) if since <= index)

    def append(self, index: int, change: MembershipChange) -> None:
        """Adds the membership after an entry that holds a change."""
        assert index > self.held[-1][0]
        self.held.append((index, self.newest.apply(change)))

    def cut(self, index: int) -> None:
        """Forgets the changes of the entry of `index` and of all after it, none of them in the snapshot."""
        while self.held[-1][0] >= index:
            del self.held[-1]

    def forget(self, index: int) -> None:
        """Forgets those before the one in force at `index`."""
        while len(self.held) > 1 and self.held[1][0] <= index:
            del self.held[0]


encode_change = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(MembershipChange)


def decode_change(data: bytes) -> MembershipChange:
    """Returns the change an entry holds. Raises `BadMessage`."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadMessage(f"not a change of the membership: {error}") from error
