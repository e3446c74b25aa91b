"""The view that an operator is shown of a controller."""

import msgspec

from controller.elections.registry import Registry
from controller.metadata.state import MetadataState
from controller.raft import RaftStatus


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A follower as the leader sees it."""

    match: int
    state: str
    active: bool


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A controller: whether it votes, and, on the leader, how far it is."""

    id: int
    address: str
    node: str = ""
    learner: bool = False
    peer: PeerStatus | None = None


class ControllerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A controller as it sees itself."""

    id: int
    role: str
    term: int
    leader: int | None
    applied: int
    commit: int
    last: int
    first: int
    snapshot: int
    members: tuple[MemberStatus, ...]
    topics: int = 0
    queues: int = 0
    groups: int = 0
    replicas_alive: int = 0
    cluster: str = ""
    full: bool = False  # its disk, so that it takes no entries


def status_of(
    raft: RaftStatus, state: MetadataState, registry: Registry, now_ms: int, *, full: bool = False
) -> ControllerStatus:
    """Returns a controller as it sees itself; `now_ms` is of the registry's clock."""
    return ControllerStatus(
        id=raft.id,
        role=raft.role.value,
        term=raft.term,
        leader=raft.leader,
        applied=raft.applied,
        commit=raft.commit,
        last=raft.last_index,
        first=raft.first_index,
        snapshot=raft.snapshot_index,
        members=tuple([_member(raft, state, id_) for id_ in raft.membership.ids]),
        topics=len(state.topics),
        queues=len(state.group_of),
        groups=len(state.groups),
        replicas_alive=sum(
            registry.heartbeat_if_alive(group.number, one.id, now_ms) is not None
            for group in state.groups.values()
            for one in group.replicas
        ),
        cluster=state.cluster,
        full=full,
    )


def _member(raft: RaftStatus, state: MetadataState, id_: int) -> MemberStatus:
    member, peer, known = raft.membership.get(id_), raft.progress.get(id_), state.members.get(id_)
    assert member is not None
    return MemberStatus(
        id=id_,
        address=member.address,
        node="" if known is None else known.node,
        learner=member.learner,
        peer=None if peer is None else PeerStatus(match=peer.match, state=peer.state.value, active=peer.active),
    )
