"""Whatever a peer says, a Raft node refuses it or ignores it or goes by it, and stays in order itself."""

import random

import hypothesis.strategies as st
import msgspec
from hypothesis import given, settings

from controller.raft import (
    BadMessage,
    ChangeKind,
    Entry,
    EntryKind,
    Membership,
    MembershipChange,
    RaftError,
    RaftMember,
    Snapshot,
    decode,
    encode,
)
from controller.raft.log import Log
from controller.raft.membership import encode_change
from controller.raft.messages import (
    NUMBER_MAX,
    Append,
    AppendReply,
    HeartbeatReply,
    InstallSnapshot,
    LeaderHeartbeat,
    ReadReply,
    ReadRequest,
    TimeoutNow,
    Vote,
    VoteReply,
)
from controller.raft.quorum import Tally, majority_index, tally
from controller.raft.settings import RaftSettings
from controller.raft.storage import MemoryStorage
from tests.support.controller.raft_rig import ELECTION_TICKS, Net
from tests.support.process.examples import examples

NODES = st.integers(1, 5)
NUMBERS = st.one_of(
    st.integers(0, 12), st.integers(0, 12), st.integers(NUMBER_MAX - 3, NUMBER_MAX), st.integers(0, NUMBER_MAX)
)
TERMS = st.one_of(st.integers(1, 8), st.integers(1, 8), st.integers(1, NUMBER_MAX))
CHANGES = st.builds(
    MembershipChange, kind=st.sampled_from(ChangeKind), node=st.integers(-1, 70), address=st.text(max_size=5)
)
ENTRIES = st.one_of(
    st.builds(Entry, TERMS, NUMBERS, st.sampled_from([EntryKind.COMMAND, EntryKind.EMPTY]), st.binary(max_size=3)),
    st.builds(Entry, TERMS, NUMBERS, st.just(EntryKind.CHANGE), CHANGES.map(encode_change)),
    st.builds(Entry, TERMS, NUMBERS, st.just(EntryKind.CHANGE), st.binary(max_size=3)),
)
MEMBERS = st.builds(RaftMember, id=st.integers(0, 5), address=st.just(""), learner=st.booleans())
SNAPSHOTS = st.builds(
    Snapshot,
    index=NUMBERS,
    term=NUMBERS,
    membership=st.lists(MEMBERS, max_size=4).map(lambda members: Membership(members=tuple(members))),
    data=st.binary(max_size=3),
)
BASE = {"sender": NODES, "to": st.just(1), "term": TERMS}


@st.composite
def well_formed_appends(draw):
    """Appends whose entries follow each other, which get further in."""
    prev = draw(st.integers(1, 10))
    terms = sorted(draw(st.lists(st.integers(1, 6), max_size=4)))
    of = draw(st.integers(1, terms[0] if terms else 6))
    kinds = draw(st.lists(ENTRIES, min_size=len(terms), max_size=len(terms)))
    entries = tuple(
        Entry(term, index, one.kind, one.data)
        for index, (term, one) in enumerate(zip(terms, kinds, strict=True), prev + 1)
    )
    term = draw(st.integers(terms[-1] if terms else of, 9))
    commit = draw(NUMBERS)
    return Append(sender=draw(NODES), to=1, term=term, prev_index=prev, prev_term=of, commit=commit, entries=entries)


MESSAGES = st.one_of(
    st.builds(Vote, **BASE, last_index=NUMBERS, last_term=NUMBERS, pre=st.booleans(), forced=st.booleans()),
    st.builds(VoteReply, **BASE, granted=st.booleans(), pre=st.booleans()),
    st.builds(
        Append,
        **BASE,
        prev_index=NUMBERS,
        prev_term=NUMBERS,
        commit=NUMBERS,
        entries=st.lists(ENTRIES, max_size=3).map(tuple),
    ),
    well_formed_appends(),
    well_formed_appends(),
    st.builds(AppendReply, **BASE, index=NUMBERS, refused=st.booleans(), hint_index=NUMBERS, hint_term=NUMBERS),
    st.builds(LeaderHeartbeat, **BASE, commit=NUMBERS, read=NUMBERS),
    st.builds(HeartbeatReply, **BASE, read=NUMBERS),
    st.builds(InstallSnapshot, **BASE, snapshot=SNAPSHOTS),
    st.builds(TimeoutNow, **BASE),
    st.builds(ReadRequest, **BASE, context=st.binary(max_size=4)),
    st.builds(ReadReply, **BASE, context=st.binary(max_size=4), index=NUMBERS),
)
STEPS = st.one_of(
    MESSAGES,
    MESSAGES,
    MESSAGES,
    st.sampled_from(["tick", "tick", "propose", "read", "add", "work", "compact", "elect"]),
)


def invariants(node, before):
    """Checks what holds of a node by itself, whatever others do."""
    raft, log = node.raft.node, node.raft.node.log
    assert log.applied <= log.committed <= log.last_index
    assert raft.term >= before.term
    assert log.committed >= before.commit
    if raft.term == before.term and before.vote is not None:
        assert raft.vote == before.vote
    terms = [log.term(index) for index in range(max(log.first_index, log.last_index - 50), log.last_index + 1)]
    assert terms == sorted(terms)
    assert None not in terms
    assert not terms or terms[-1] <= raft.term
    assert raft.membership.problem() is None


def do(net, node, step):
    """Makes one step; the one error of the peer's may refuse what it says."""
    raft = node.raft
    if isinstance(step, str):
        try:
            {
                "tick": raft.tick,
                "propose": lambda: raft.propose(b"x"),
                "read": lambda: raft.read_index(b"r"),
                "add": lambda: raft.propose_change(MembershipChange(kind=ChangeKind.ADD_LEARNER, node=6)),
                "work": node.work,
                "compact": lambda: raft.compact(raft.status().applied, b"s"),
                "elect": lambda: [raft.tick() for _ in range(2 * ELECTION_TICKS)],
            }[step]()
        except BadMessage:
            raise
        except RaftError:
            return
    else:
        try:
            raft.step(step)
        except BadMessage:
            return


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(STEPS, max_size=30), st.sampled_from([1, 3, 5]), st.booleans())
def test_no_message_breaks_a_node(steps, voters, elected):
    net = Net(voters, cache_bytes_max=0)
    node = net[1]
    if elected:
        net.elect(1)
        net.propose(b"a")
    committed = {}
    for step in steps:
        before = node.status
        do(net, node, step)
        invariants(node, before)
        log = node.raft.node.log
        for index in range(log.first_index, min(log.committed, log.first_index + 100) + 1):
            assert committed.setdefault(index, log.term(index)) == log.term(index)
    node.work()
    invariants(node, node.status)


@settings(max_examples=examples(200), deadline=None)
@given(MESSAGES)
def test_every_message_survives_its_bytes(message):
    assert decode(encode(message)) == message


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200), st.integers(0, 10_000), MESSAGES)
def test_any_bytes_are_a_message_or_refused(noise, seed, message):
    rng = random.Random(seed)
    damaged = bytearray(encode(message))
    damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    for data in (noise, bytes(damaged), bytes(damaged[: rng.randrange(len(damaged))])):
        try:
            found = decode(data)
        except BadMessage:
            continue
        assert isinstance(found, msgspec.Struct)
        net = Net(3)
        do(net, net[1], found)


@given(st.lists(st.integers(0, 20), max_size=9))
def test_a_majority_index_is_what_counting_says(indexes):
    counted = [n for n in range(21) if 2 * sum(index >= n for index in indexes) > len(indexes)]
    assert majority_index(indexes) == max(counted, default=0)


@given(st.sets(st.integers(1, 9)), st.dictionaries(st.integers(1, 12), st.booleans()))
def test_a_tally_is_what_counting_says(voters, votes):
    won = 2 * sum(votes.get(voter, False) for voter in voters) > len(voters)
    possible = 2 * sum(votes.get(voter, True) for voter in voters) > len(voters)
    assert tally(sorted(voters), votes) is (Tally.WON if won else Tally.OPEN if possible else Tally.LOST)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.integers(0, 14), st.integers(0, 6))
def test_where_two_logs_may_agree_is_what_a_walk_finds(terms, index, term):
    terms.sort()
    log = Log(MemoryStorage(), RaftSettings())
    log.append([Entry(of, at, EntryKind.COMMAND) for at, of in enumerate(terms, 1)])
    held = [0, *terms]
    walk = max(at for at in range(min(index, len(terms)) + 1) if held[at] <= term)
    assert log.last_not_above(index, term) == (walk, held[walk])
