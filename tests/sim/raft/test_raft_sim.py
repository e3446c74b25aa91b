"""Seeded histories of Raft clusters: whatever fails, nothing that was agreed on changes, and then it goes on."""

import os
import random

import pytest

from controller.raft import BadMessage, RaftSettings
from controller.raft.messages import AppendReply
from controller.raft.progress import ProgressState
from tests.sim.raft.raft_cluster import TICK_MS, RaftCluster
from tests.sim.raft.raft_history import RaftHistory

SEEDS = int(os.environ.get("HEADGATE_SIM_SEEDS", "100"))
FIRST_SEED = int(os.environ.get("HEADGATE_SIM_FIRST", "0"))
BLOCK = 20  # seeds in one test: small enough for its time limit, large enough not to flood the report
STORY_SEEDS = 20  # of what is one story, in many orders of events
SOON_TICKS = 100  # some elections


def play(seed):
    history = RaftHistory(seed)
    try:
        history.run(random.Random(seed).choice([1000, 2000, 2000, 5000]))
    except BaseException as error:
        error.add_note(f"HEADGATE_SIM_FIRST={seed} HEADGATE_SIM_SEEDS=1 repeats this history")
        raise
    return history


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, BLOCK))
def test_what_is_agreed_on_stays_whatever_fails(first):
    for seed in range(first, min(first + BLOCK, FIRST_SEED + SEEDS)):
        play(seed)


def scan(found, *, seeds_max):
    """Plays seeds from FIRST_SEED on until `found(seed)` is true."""
    seeds = range(FIRST_SEED, FIRST_SEED + seeds_max)
    assert any(found(seed) for seed in seeds), f"no seed of {seeds} shows it"


def test_by_their_ids_alone_nodes_that_forget_lose_what_was_committed():
    """The faults are real: where incarnations say nothing, histories with them break what is promised."""

    def breaks(seed):
        try:
            RaftHistory(seed, incarnations=False).run(2000)
        except (AssertionError, BadMessage) as error:
            return "lacks entry" in str(error) or "votes twice" in str(error)
        return False

    scan(breaks, seeds_max=500)


@pytest.mark.parametrize("event", ["forgotten", "rolled_back", "replaced"])
def test_memories_are_lost_and_replaced_in_these_histories(event):
    scan(lambda seed: getattr(play(seed).cluster, event) > 0, seeds_max=200)


@pytest.mark.parametrize("lose", [RaftCluster.forget, RaftCluster.roll_back])
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + STORY_SEEDS))
def test_one_added_again_is_asked_for_its_snapshot_when_its_answer_was_lost(seed, lose):
    """A leader sent it nothing until it had given the snapshot up, which is later than this test waits."""
    cluster = RaftCluster(random.Random(seed), range(1, 4), RaftSettings(snapshot_ticks=10 * SOON_TICKS))
    assert cluster.run(SOON_TICKS * TICK_MS, lambda: cluster.leader() and cluster.leader().applied)
    leader = cluster.leader()
    lost = cluster.random.choice([host for host in cluster.hosts.values() if host is not leader])
    lost.disk.back_up()
    for number in range(20):  # more than a compaction leaves
        entry = cluster.propose(leader, b"%d" % number)
    assert cluster.run(SOON_TICKS * TICK_MS, lambda: leader.applied >= entry.index)
    first = leader.disk.snapshot().index
    cluster.compact(leader, 0)
    assert cluster.run(SOON_TICKS * TICK_MS, lambda: leader.disk.snapshot().index > first)
    compacted = leader.disk.snapshot().index
    lose(cluster, lost)
    cluster.lost = lambda said: said.sender == lost.id and isinstance(said, AppendReply) and not said.refused
    cluster.start(lost)
    assert cluster.run(SOON_TICKS * TICK_MS, lambda: lost.applied >= compacted), "it is not added again"
    assert leader.raft.status().progress[lost.id].state is ProgressState.SNAPSHOT
    cluster.lost = lambda said: False
    entry = cluster.propose(leader, b"after")
    assert cluster.run(SOON_TICKS * TICK_MS, lambda: lost.applied >= entry.index), "it is not asked for its snapshot"
    assert cluster.leader() is leader
