"""What others' replicated logs have got wrong, each as a story of its own. Numbers of issues are Apache RocketMQ's."""

import random
from pathlib import Path

import pytest
from cluster_history import History
from cluster_node import ORIGIN
from faulty_files import Disk
from replication_kit import Following, Leading, Log

from store.errors import NotMaster, StoreError
from store.format import LogOffset
from store.replication.agreement import Acknowledge
from store.replication.epoch_file import EpochFile
from store.replication.epochs import EpochList
from store.replication.errors import NotEnoughInSync
from store.replication.master import Master
from store.replication.messages import Hello, Welcome, decode, encode
from store.replication.pace import Pace
from store.replication.slave import Send, Stage

UNTIL_ELECTED_MS = 1_000


def three(seed: int, **kinds) -> History:
    """Three replicas in sync, some messages acknowledged, and nothing wrong yet."""
    kinds = {"replicas": 3, "learners": 0, "acknowledge": Acknowledge.ALL_IN_SYNC, "min_in_sync": 2} | kinds
    history = History(seed, **kinds)
    everybody = frozenset(history.replicas)

    def steady() -> bool:
        return history.controller.state[2] == everybody and len(history.operations) > 5 and history.master() is not None

    assert history.world.run(5_000, steady)
    history.world.run(history.world.now + 300)
    return history


def test_an_epoch_without_data_is_replaced_by_one_that_begins_at_the_same_place():
    """A takes epoch 2 at 400, B hears of it; A writes alone and dies; B's epoch 3 begins at 400 too; A comes back."""
    log_of_a, log_of_b = Log().fill(1, 2), Log().fill(1, 2)
    b = Following(2, log_of_b, [(1, 0)])
    a = Leading(2, log_of_a, [(1, 0)], followers=[b]).connect(2)
    assert b.saved[0].entries == ((1, 0), (2, 400))
    a.append(3)
    epochs_of_a = a.master.epochs.entries

    back = Following(2, log_of_a, epochs_of_a, promised=2, confirmed=400)
    leading = Leading(3, log_of_b, b.saved[0].entries, followers=[back])
    assert leading.master.epochs.entries == ((1, 0), (3, 400))
    leading.connect(2)
    assert log_of_a.frames == log_of_b.frames
    assert back.saved == (EpochList.of([(1, 0), (3, 400)]), 3)
    leading.append(2).settle()
    assert log_of_a.frames == log_of_b.frames


@pytest.mark.parametrize("seed", range(5))
def test_a_master_that_is_cut_off_acknowledges_nothing(seed):
    """7017: it went on with relaxed settings, and what it had acknowledged was gone when the network came back."""
    history = three(seed)
    old = history.master()
    history.isolate(old.number)  # but for its clients
    confirmed = old.core.confirmed
    assert history.world.run(history.world.now + UNTIL_ELECTED_MS, lambda: history.master().number != old.number)
    history.world.run(history.world.now + 1_000)
    assert isinstance(old.core, Master)
    assert old.core.confirmed == confirmed
    assert isinstance(old.core.refusal, NotEnoughInSync)
    assert history.master().core.confirmed > confirmed
    history.heal()


@pytest.mark.parametrize("seed", range(4))
def test_a_master_that_some_still_follow_does_not_answer_for_the_newest_state(seed):
    """Half of the group does not know of the new master yet, which takes writes alone: reads of keys wait."""
    history = three(seed, min_in_sync=1)
    old = history.master()
    [other, elected] = [node for node in history.nodes if node is not old]
    history.controller.heard.pop(other.number)
    for side in (elected.number, "controller"):
        history.cut(side, old.number)
        history.cut(side, other.number)
    assert history.world.run(history.world.now + UNTIL_ELECTED_MS, lambda: history.master() is elected)
    assert isinstance(old.core, Master)
    asked = old.core.ask_round()
    history.world.run(history.world.now + 800)
    assert isinstance(old.core, Master)
    assert old.core.round_agreed < asked
    history.heal()  # which looks at what the clients have read


def test_a_master_that_acknowledges_alone_stops_soon_after_it_is_cut_off():
    history = three(1, acknowledge=Acknowledge.MASTER, min_in_sync=1)
    old = history.master()
    history.isolate(old.number)
    history.world.run(history.world.now + old.pace.stall_ms + 200)
    assert isinstance(old.core.refusal, StoreError)
    end = old.log.end
    history.world.run(history.world.now + 1_000)
    assert old.log.end == end
    history.heal()


def test_a_dead_replica_leaves_the_set_and_a_live_one_stays():
    """10875: liveness was negated twice, so that the dead stayed."""
    history = three(2)
    dead = next(node for node in history.nodes if node is not history.master())
    history.crash(dead)
    live = frozenset(history.replicas) - {dead.number}
    assert history.world.run(history.world.now + 1_000, lambda: history.controller.state.sync_set == live)
    history.world.run(history.world.now + 1_000)
    assert history.controller.state.sync_set == live
    history.heal()


def test_offsets_are_never_narrowed():
    """Logs that are more than 4 GiB apart, in the last group there can be."""
    group = (1 << 15) - 1
    origin = group << 48
    far = origin + (5 << 32) + 200
    log = Log(far).fill(3, 2)
    follower = Following(2, Log(far).fill(3, 1), [(2, origin), (3, far)], group=group, confirmed=far)
    leading = Leading(4, log, [(2, origin), (3, far)], followers=[follower], group=group, confirmed=far)
    leading.connect(2).append(3).settle().pass_time(50)
    assert follower.log.frames == log.frames
    assert follower.slave.confirmed == leading.master.confirmed == log.end
    hello = Hello(group=group, replica=1, session=9, epoch=4, epochs=((3, origin), (4, far)), first=origin, end=far)
    assert decode(encode(hello)) == hello
    trimmed = Leading(4, Log(far + 200).fill(3, 1), [(3, far)], followers=[Following(2)], group=group)
    behind = Hello(group=group, replica=2, session=9, epoch=3, epochs=((3, far),), first=far, end=far)
    trimmed.master.receive(2, behind, now_ms=0)
    [(_, welcome)] = trimmed.master.take()
    assert isinstance(welcome, Welcome)
    assert welcome.needs_snapshot
    assert welcome.cut_to == far


def test_that_all_epochs_were_cut_is_on_disk():
    """A list that has become empty is as much of a change as any other."""
    disk = Disk(random.Random(1))
    home = Path("/home")
    disk.mount(home)
    follower = Following(2, Log().fill(1, 2), [(1, 0)])
    file = EpochFile(disk, home)
    file.save(*follower.saved)
    leading = Leading(2, Log(), followers=[follower])
    leading.master.epochs = EpochList()  # a group that began anew; any epoch it has would be in the list again
    leading.connect(2)
    assert follower.log.frames == []
    file.save(*follower.saved)
    disk.lose_power()
    assert EpochFile(disk, home).load() == (EpochList(), 2)


def test_two_milliseconds_of_latency_cost_next_to_nothing():
    """3664: replication that waited for each batch fell from 300 MB/s to 27 MB/s."""

    def took_us(latency_us: int) -> int:
        pace = Pace(batch_bytes=1 << 20, window_bytes=32 << 20)
        follower = Following(2, pace=pace)
        leading = Leading(followers=[follower], pace=pace).connect(2)
        frames, size = 100, 1 << 20
        leading.append(frames, size=size)
        free_us = now_us = 0  # the link is free again
        arriving: list[tuple[int, object]] = []
        while follower.slave.end < leading.log.end or leading.master.confirmed < leading.log.end:
            for _, message in leading.collect():
                free_us = max(now_us, free_us) + size // 300  # 300 MB/s
                arriving.append((free_us + latency_us, message))
            now_us, message = arriving.pop(0)
            leading.now = 1_000 + now_us // 1_000
            follower.slave.receive(message, now_ms=leading.now)
            follower.work()
            for sent in follower.sent:
                leading.master.receive(2, sent, now_ms=leading.now)
            follower.sent.clear()
        return now_us

    assert took_us(2_000) < 1.1 * took_us(0)


@pytest.mark.parametrize("seed", range(5))
def test_a_send_without_an_answer_is_stored_once_however_often_it_is_repeated(seed):
    """348, 2471: what timed out may have been stored, and the answer to its repetition says where."""
    history = three(seed)
    history.world.drop_chance = 0.2
    for _ in range(3):
        history.world.run(history.world.now + 700)
        history.crash(history.master() or history.nodes[0])
        for node in history.nodes:
            if not node.up:
                history.world.after(300, node.start)
    history.world.run(history.world.now + 2_000)
    history.heal()  # that nothing is there twice is looked at in every step
    assert len(history.acknowledged) > 20


def test_what_is_refused_says_so_before_anything_is_stored():
    leading = Leading(min_in_sync=2, followers=[Following(2)])
    assert isinstance(leading.master.refusal, NotEnoughInSync)
    leading.connect(2)
    assert leading.master.refusal is None
    leading.master.fenced(2)
    assert isinstance(leading.master.refusal, NotMaster)
    assert leading.master.refusal.retriable


def test_readers_do_not_see_what_one_slave_has_and_another_has_not():
    """A reader of the faster slave would have seen what a failover to the slower one takes away."""
    fast, slow = Following(2), Following(3)
    leading = Leading(followers=[fast, slow], min_in_sync=2).connect(2, 3)
    leading.append(2).settle().pass_time(50)
    assert fast.slave.confirmed == 400
    slow.lazy = True
    leading.append(2).settle().pass_time(200)
    assert fast.slave.flushed == 800
    assert fast.slave.confirmed == slow.slave.confirmed == leading.master.confirmed == 400

    elected = Leading(
        2,
        Log().fill(1, 2),
        [(1, 0)],
        followers=[Following(2, fast.log, fast.saved[0].entries, promised=1, confirmed=400)],
    )
    elected.connect(2)
    assert fast.log.end == 400


@pytest.mark.parametrize("seed", range(3))
def test_readers_stop_at_what_is_confirmed(seed):
    """As above, on the way: whatever any replica ever said was confirmed is there for good."""
    history = three(seed)
    for node in history.nodes:
        node.disk_ms = history.chance.choice([(0, 1), (20, 80)])
    for _ in range(3):
        history.crash(history.master() or history.nodes[0])
        history.world.run(history.world.now + 500)
        for node in history.nodes:
            if not node.up:
                node.start()
        history.world.run(history.world.now + 500)
    history.heal()


def test_a_slave_behind_the_beginning_of_the_log_starts_from_a_snapshot():
    history = three(4)
    slave = next(node for node in history.nodes if node is not history.master())
    history.crash(slave)
    history.world.run(history.world.now + 1_500)
    master = history.master()
    master.log.trim(master.views.applied)
    master.core.trimmed(master.log.first)
    slave.start()
    history.heal()
    assert slave.log.first >= master.log.first > ORIGIN


def test_a_replica_with_data_that_was_confirmed_and_is_nowhere_else_stands_still():
    """Unless unclean elections are allowed, somebody has to look at this."""
    follower = Following(2, Log().fill(1, 3), [(1, 0)], confirmed=600)
    leading = Leading(2, Log().fill(1, 2), [(1, 0)], followers=[follower]).connect(2)
    assert follower.slave.stage is Stage.DIVERGED
    assert follower.slave.diverged_at == LogOffset(400)
    assert len(follower.log.frames) == 3
    follower.slave.connect(leading.master.epoch, session=7, now_ms=1)
    follower.work()
    assert follower.sent == []
    assert len(follower.closed) == 2


def test_with_unclean_elections_it_starts_from_a_snapshot():
    follower = Following(2, Log().fill(1, 3), [(1, 0)], confirmed=600, unclean_election=True)
    Leading(2, Log().fill(1, 2), [(1, 0)], followers=[follower]).connect(2)
    assert follower.snapshots == [2]


@pytest.mark.parametrize("done", range(3))
def test_a_crash_while_the_log_is_cut_leaves_nothing_that_passes_for_something_else(done):
    """First the log, then the list: an epoch that lists what was written in another would be kept for good."""
    leading = Leading(3, Log().fill(1, 2), [(1, 0)]).append(4)
    log = Log().fill(1, 2).fill(2, 3)
    before = Following(2, log, [(1, 0), (2, 400)], promised=2)
    before.slave.connect(3, session=5, now_ms=0)
    hello = next(effect.message for effect in before.slave.take() if isinstance(effect, Send))
    leading.master.configure({1: False, 2: False}, min_in_sync=1, acknowledge=Acknowledge.ALL_IN_SYNC)
    leading.master.receive(2, hello, now_ms=0)
    [(_, welcome)] = leading.master.take()
    before.slave.receive(welcome, now_ms=0)
    [prepare] = before.slave.take()
    saved = before.saved[0]
    if done > 0:
        log.cut(prepare.cut_to)
    if done > 1:
        saved = prepare.epochs

    after = Following(2, log, saved.entries, promised=3)
    leading.followers[2] = after
    leading.connect(2)
    assert log.frames == leading.log.frames


@pytest.mark.parametrize("seed", range(3))
def test_with_every_controller_down_a_group_goes_on(seed):
    history = three(seed)
    history.controller.reachable = False
    acknowledged = len(history.acknowledged)
    history.world.run(history.world.now + 2_000)
    assert len(history.acknowledged) > acknowledged + 20
    slave = next(node for node in history.nodes if node is not history.master())
    history.crash(slave)  # only a controller can let it go
    confirmed = history.master().core.confirmed
    history.world.run(history.world.now + 2_000)
    assert history.master().core.confirmed - confirmed < 2_000
    history.heal()


@pytest.mark.parametrize("seed", range(3))
def test_a_switch_over_loses_nothing_and_takes_a_moment(seed):
    history = three(seed)
    old = history.master()
    target = next(node for node in history.nodes if node is not old)
    history.hand_over(target.number)
    assert history.world.run(history.world.now + 300, lambda: history.master() is target)
    taken_over = history.world.now
    assert history.world.run(taken_over + 500, lambda: target.core is not None and target.core.refusal is None)
    assert old.log.end <= target.log.end
    history.heal()


def test_a_frame_is_acknowledged_again_only_when_enough_have_it():
    """A repetition that the new master finds in its log is not safe because it is there."""
    history = three(5, producers=1, key_clients=0)
    old = history.master()
    producer = history.producers[0]
    for node in history.nodes:
        if node is not old:
            history.cut(node.number, producer.name)
            node.disk_ms = (30, 60)
    assert history.world.run(history.world.now + 2_000, lambda: old.log.end > old.core.confirmed)
    history.crash(old)
    history.world.cut.clear()
    history.world.run(history.world.now + 3_000)  # where each answer comes from is looked at in every step
    old.start()
    history.heal()
