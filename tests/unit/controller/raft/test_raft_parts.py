"""The small parts: arithmetic, progress, settings, bytes."""

import msgspec
import pytest

from controller.raft import BadMessage, Entry, EntryKind, MemoryStorage, RaftSettings, Snapshot, decode, encode
from controller.raft.errors import Compacted
from controller.raft.messages import NUMBER_MAX, Append, InstallSnapshot, LeaderHeartbeat, ReadRequest, Vote
from controller.raft.progress import Progress, ProgressState
from controller.raft.quorum import Tally, majority_index, tally
from controller.raft.storage import bounded


def test_majorities():
    assert [majority_index(list(range(1, n + 1))) for n in range(6)] == [0, 1, 1, 2, 2, 3]
    assert majority_index([5, 0, 9]) == 5


@pytest.mark.parametrize(
    ("voters", "votes", "result"),
    [
        ((1,), {1: True}, Tally.WON),
        ((1, 2), {1: True}, Tally.OPEN),
        ((1, 2), {1: True, 2: False}, Tally.LOST),
        ((1, 2, 3), {1: True, 9: True}, Tally.OPEN),
        ((1, 2, 3), {1: True, 2: True}, Tally.WON),
        ((1, 2, 3, 4), {1: True, 2: True, 3: False}, Tally.OPEN),
        ((1, 2, 3, 4), {1: False, 2: False}, Tally.LOST),
        ((), {1: True}, Tally.LOST),
    ],
)
def test_tallies(voters, votes, result):
    assert tally(voters, votes) is result


def replicating(match=5, **settings):
    progress = Progress(RaftSettings(**settings), next_index=match + 1)
    progress.acknowledged(match, 1)
    assert progress.state is ProgressState.REPLICATE
    return progress


def test_what_is_acknowledged_frees_the_window_up_to_it():
    progress = replicating(inflight_max=2)
    progress.sent(7, 10)
    progress.sent(9, 10)
    assert progress.full
    assert progress.next == 10
    assert progress.acknowledged(7, 1)
    assert not progress.full
    assert progress.status().inflight == 1
    assert not progress.acknowledged(7, 1)


def test_an_old_refusal_says_nothing():
    progress = replicating()
    progress.sent(9, 10)
    progress.refused(5, 3)
    assert progress.state is ProgressState.REPLICATE
    progress.refused(8, 3)
    assert (progress.state, progress.next) == (ProgressState.PROBE, 6)
    progress.refused(9, 3)  # not what was probed
    assert progress.next == 6


def test_a_probe_goes_back_to_the_hint_and_never_before_what_is_known():
    progress = Progress(RaftSettings(), next_index=100)
    progress.sent(99, 0)
    assert progress.paused
    progress.refused(99, 40)
    assert (progress.next, progress.paused) == (41, False)
    progress.match = 30
    progress.refused(40, 10)
    assert progress.next == 31
    progress.sent(30, 0)
    progress.refused(30, 10)
    assert (progress.next, progress.paused) == (31, True)


def test_a_follower_that_stands_still_is_nudged():
    progress = replicating()
    progress.heartbeat_answered(9)
    assert not progress.nudge
    progress.heartbeat_answered(9)
    assert progress.nudge
    progress.acknowledged(9, 1)
    progress.heartbeat_answered(9)
    assert not progress.nudge


@pytest.mark.parametrize(
    "settings", [{"election_ticks": 1}, {"heartbeat_ticks": 10}, {"inflight_max": 0}, {"cache_bytes_max": -1}]
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ValueError, match="_"):
        RaftSettings(**settings)


def test_settings_may_keep_no_cache_and_want_no_lag():
    assert RaftSettings(cache_bytes_max=0, promote_lag_max=0)


def test_messages_are_what_they_were():
    entries = (Entry(2, 6, EntryKind.COMMAND, b"x"), Entry(3, 7, EntryKind.EMPTY))
    who = {"sender": 1, "to": 2, "incarnation": "a", "addressee": "b"}
    message = Append(**who, term=3, prev_index=5, prev_term=2, commit=4, entries=entries)
    assert decode(encode(message)) == message
    assert type(decode(encode(message)).entries[0].kind) is EntryKind
    assert encode(message) == msgspec.msgpack.encode([3, 1, 2, 3, "a", "b", 5, 2, 4, [[2, 6, 0, b"x"], [3, 7, 2, b""]]])


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xc1",
        b"\x90" * 10_000,
        msgspec.msgpack.encode([99, 1, 2, 3]),
        msgspec.msgpack.encode([5, 1, 2, 3, "", "", "4", 0]),
        msgspec.msgpack.encode([5, 1, 2, 3, "a" * 65, "", 4, 0]),
        encode(LeaderHeartbeat(sender=0, to=1, term=1, commit=1)),
        encode(LeaderHeartbeat(sender=1, to=2, term=NUMBER_MAX + 1, commit=1)),
        encode(Vote(sender=1, to=2, term=1, last_index=-1, last_term=1)),
        encode(ReadRequest(sender=1, to=2, term=1, context=b"x" * 1025)),
        encode(InstallSnapshot(sender=1, to=2, term=1, snapshot=Snapshot(index=-5))),
    ],
)
def test_bytes_that_are_no_message_are_refused(message):
    with pytest.raises(BadMessage):
        decode(message)


def test_entries_are_bounded_and_there_is_always_one():
    entries = [Entry(1, index, EntryKind.COMMAND, b"x" * 84) for index in range(5)]
    assert [len(bounded(entries, size)) for size in (1, 100, 199, 200, 500, 9999)] == [1, 1, 1, 2, 5, 5]


def test_a_storage_says_what_it_does_not_hold():
    storage = MemoryStorage()
    assert (storage.first_index(), storage.last_index(), storage.term(0)) == (1, 0, 0)
    for low, high in ((0, 1), (1, 1), (1, 2)):
        with pytest.raises(Compacted):
            storage.entries(low, high, 10)
    with pytest.raises(Compacted):
        storage.term(1)
