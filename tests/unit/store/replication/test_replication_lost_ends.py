"""Replicas that have lost the ends of their logs: what they must have again, and what no group ever had."""

import pytest

from store.format.frame import LogOffset
from store.replication.messages import Welcome
from store.replication.replica_core import Stage
from tests.support.store.replication_kit import Following, FrameLog, Leading

HELD = LogOffset(1_000)  # five frames of epoch 1


def short(frames: int, **kinds) -> Following:
    """Returns a replica that has this many of the five frames that it once had."""
    return Following(2, FrameLog().fill(1, frames), [(1, 0)], promised=1, held=HELD, **kinds)


def welcomed(follower: Following, **kinds) -> Following:
    fields = {"first": 0, "end": 600, "cut_to": 400, "confirmed": 400, "needs_snapshot": False}
    said = Welcome(**{"session": 102, "epoch": 3, "epochs": ((1, 0), (3, 600))} | fields | kinds)
    follower.core.connect(3, session=102, now_ms=0, unclean_epoch=kinds.get("epochs", ((0, 0),))[-1][0])
    follower.core.receive(said, now_ms=0)
    follower.work()
    return follower


@pytest.mark.parametrize("frames", [0, 2, 3])
@pytest.mark.parametrize("epoch", [2, 9])
def test_a_tail_of_a_former_master_that_is_lost_everywhere_is_not_waited_for(frames, epoch):
    """It was never confirmed: the master that was elected since does not have it, and nobody brings it again."""
    follower = short(frames)
    leading = Leading(epoch, FrameLog().fill(1, 3), [(1, 0)], followers=[follower], min_in_sync=2, sync_set={1})
    assert follower.core.lacks_end
    leading.connect(2)
    assert not follower.core.lacks_end
    assert follower.log.frames == leading.log.frames
    leading.pass_time(4_000)
    assert leading.master.sync_set == {1, 2}
    assert leading.master.writable


def test_what_the_master_has_is_to_be_had_again_before_the_log_counts_as_whole():
    follower = short(2)
    leading = Leading(2, FrameLog().fill(1, 6), [(1, 0)], followers=[follower])
    follower.lazy = True
    leading.connect(2)
    assert follower.core.lacks_end
    follower.core.flushed_to(LogOffset(800))
    assert follower.core.lacks_end
    follower.core.flushed_to(HELD)
    assert not follower.core.lacks_end


def test_what_the_master_has_is_to_be_had_again_from_its_successor_too():
    """A replica lost its log from 400 on. The first master begins at 600 and writes on; its successor has 800."""
    follower = short(2)
    follower.lazy = True
    Leading(2, FrameLog().fill(1, 3), [(1, 0)], followers=[follower]).connect(2)
    follower.core.flushed_to(follower.core.end)
    assert not follower.core.lacks_end
    again = Following(
        2, FrameLog().fill(1, 2), [(1, 0), (2, 600)], promised=2, held=LogOffset(800)
    )  # lost it once more
    again.lazy = True
    Leading(4, FrameLog().fill(1, 3).fill(2, 1), [(1, 0), (2, 600)], followers=[again]).connect(2)
    again.core.flushed_to(LogOffset(600))
    assert again.core.lacks_end
    again.core.flushed_to(LogOffset(800))
    assert not again.core.lacks_end


def test_what_views_have_followed_was_confirmed_and_is_waited_for():
    follower = welcomed(short(2, followed=LogOffset(800)))
    assert follower.core.stage is Stage.STREAMING
    assert follower.core._held == 800
    assert follower.core.lacks_end


@pytest.mark.parametrize(("unclean", "lacks"), [(1 << 61, True), (3, False)])
def test_nothing_is_given_up_where_nobody_knows_which_unclean_election_the_log_has_followed(unclean, lacks):
    follower = welcomed(short(2, unclean=unclean), epochs=((1, 0), (3, 400)), end=400)
    assert follower.core.stage is Stage.STREAMING
    assert follower.core.lacks_end is lacks


def test_a_snapshot_of_a_master_that_has_less_is_not_waited_on_for_more():
    follower = short(1)
    said = {"epochs": ((1, 0), (3, 600)), "first": 400, "cut_to": 200, "needs_snapshot": True}
    follower.core.connect(3, session=102, now_ms=0)
    follower.core.receive(Welcome(**{"session": 102, "epoch": 3, "end": 600, "confirmed": 600} | said), now_ms=0)
    follower.work()
    assert follower.snapshots == [3]
    assert follower.core.reach == 600


def test_one_that_starts_over_waits_for_all_that_it_has_acknowledged_to_the_master():
    follower = short(2)
    leading = Leading(2, FrameLog().fill(1, 3), [(1, 0)], followers=[follower], confirmed=LogOffset(600))
    leading.connect(2).append(4).settle()
    assert follower.core.start_over()
    assert follower.core.reach == follower.core.end == 1_400


@pytest.mark.parametrize("held", [HELD, LogOffset(600)])
def test_a_log_that_has_grown_since_is_cut_to_where_it_is_the_masters(held):
    """It has more by now than it ever had when it was opened; nothing is lost of what both have."""
    follower = Following(2, FrameLog().fill(1, 3), [(1, 0)], promised=1, held=held)
    first = FrameLog().fill(1, 3)
    Leading(2, first, [(1, 0)], followers=[follower]).connect(2).append(4).settle()
    assert follower.log.end == 1_400
    successor = FrameLog()
    for one in first.frames[:5]:
        successor.append(one)
    leading = Leading(3, successor, [(1, 0), (2, 600)], followers=[follower], confirmed=LogOffset(600))
    leading.connect(2)
    assert follower.log.end == follower.core.end == 1_000
    leading.append(2).settle()
    assert follower.log.frames == successor.frames
    assert not follower.core.lacks_end
