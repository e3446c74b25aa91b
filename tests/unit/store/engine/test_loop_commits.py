"""The rule for commits on the event loop: on a disk that is fast, for little, and never behind a slow sync."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.engine.loop_commits import (
    DEBT_S_MAX,
    FAST_COUNT,
    LOOP_BYTES_MAX,
    LOOP_SYNC_S_MAX,
    REST_FACTOR,
    REST_S_MAX,
    LoopCommits,
)

FAST_S, SLOW_S = LOOP_SYNC_S_MAX / 4, LOOP_SYNC_S_MAX + 2 * DEBT_S_MAX
OWED_S = SLOW_S - LOOP_SYNC_S_MAX


def fast(rule, now_s, count=FAST_COUNT):
    for _ in range(count):
        rule.synced(FAST_S, now_s)
    return rule


def test_nothing_is_committed_by_the_loop_before_the_disk_has_shown_that_it_is_fast():
    rule = LoopCommits()
    assert not rule.allows(100, 0.0)
    assert not fast(rule, 0.0, FAST_COUNT - 1).allows(100, 0.0)
    assert fast(rule, 0.0, 1).allows(100, 0.0)


def test_a_large_batch_is_the_commit_threads():
    rule = fast(LoopCommits(), 0.0)
    assert rule.allows(LOOP_BYTES_MAX, 1.0)
    assert not rule.allows(LOOP_BYTES_MAX + 1, 1.0)


def test_now_and_then_a_slow_sync_changes_nothing():
    rule, now_s = fast(LoopCommits(), 0.0), 0.0
    for _ in range(100):
        rule.synced(LOOP_SYNC_S_MAX * 2, now_s)
        assert rule.allows(100, now_s)
        now_s += LOOP_SYNC_S_MAX * REST_FACTOR  # in which the debt is paid


def test_slow_syncs_that_follow_each_other_keep_commits_off_the_loop():
    rule, took_s = fast(LoopCommits(), 0.0), LOOP_SYNC_S_MAX + DEBT_S_MAX / 3.5
    for _ in range(3):
        rule.synced(took_s, 1.0)
        assert rule.allows(100, 1.0)
    rule.synced(took_s, 1.0)
    assert not fast(rule, 1.0).allows(100, 1.0)
    assert rule.allows(100, 1.0 + 4 / 3.5 * DEBT_S_MAX * REST_FACTOR + 1e-6)


def test_a_slow_sync_before_the_disk_has_shown_that_it_is_fast_begins_the_count_anew():
    rule = fast(LoopCommits(), 0.0, FAST_COUNT - 1)
    rule.synced(LOOP_SYNC_S_MAX * 2, 0.0)
    assert not fast(rule, 0.0, FAST_COUNT - 1).allows(100, 10.0)
    assert fast(rule, 0.0, 1).allows(100, 10.0)


def test_syncs_that_a_thread_has_waited_for_owe_nothing():
    rule = fast(LoopCommits(), 0.0)
    rule.synced(SLOW_S, 1.0)
    for now_s in (1.02, 1.05, 1.1):
        rule.synced(SLOW_S, now_s)
    fast(rule, 1.1)
    assert rule.allows(100, 1.0 + OWED_S * REST_FACTOR + 1e-6)


def test_a_slow_sync_keeps_commits_off_the_loop_for_a_multiple_of_its_time():
    rule = fast(LoopCommits(), 0.0)
    rule.synced(SLOW_S, 1.0)
    fast(rule, 1.0)
    assert not rule.allows(100, 1.0 + OWED_S * REST_FACTOR - 1e-6)
    assert rule.allows(100, 1.0 + OWED_S * REST_FACTOR + 1e-6)


def test_after_a_slow_sync_the_disk_has_to_show_again_that_it_is_fast():
    rule = fast(LoopCommits(), 0.0)
    rule.synced(SLOW_S, 1.0)
    assert not fast(rule, 1.0, FAST_COUNT - 1).allows(100, 1_000.0)
    assert fast(rule, 1.0, 1).allows(100, 1_000.0)


@pytest.mark.parametrize("took_s", [REST_S_MAX / REST_FACTOR + LOOP_SYNC_S_MAX, 3_600.0])
def test_even_the_slowest_sync_is_forgotten(took_s):
    rule = fast(LoopCommits(), 0.0)
    rule.synced(took_s, 10.0)
    fast(rule, 10.0)
    assert not rule.allows(100, 10.0 + REST_S_MAX - 1)
    assert rule.allows(100, 10.0 + REST_S_MAX)


@given(st.lists(st.floats(0.00005, 2.0), min_size=1, max_size=300))
def test_slow_syncs_take_a_small_part_of_the_loops_time(times):
    rule, now_s, waited_s = fast(LoopCommits(), 0.0), 0.0, 0.0  # waited: beyond what any sync may take
    longest_s = max(times)
    for took_s in times:
        here = rule.allows(100, now_s)
        now_s += took_s
        rule.synced(took_s, now_s)
        if here and took_s > LOOP_SYNC_S_MAX:
            waited_s += took_s - LOOP_SYNC_S_MAX
    assert waited_s <= now_s / REST_FACTOR + longest_s + DEBT_S_MAX


def test_a_small_write_that_waits_for_the_disk_counts_as_a_slow_sync():
    rule = fast(LoopCommits(), 0.0)
    rule.wrote(100, FAST_S, 1.0)
    assert rule.allows(100, 1.0)
    rule.wrote(LOOP_BYTES_MAX + 1, SLOW_S, 1.0)  # which takes its time on any disk
    assert rule.allows(100, 1.0)
    rule.wrote(100, SLOW_S, 1.0)
    assert not fast(rule, 1.0, FAST_COUNT - 1).allows(100, 1_000.0)
    assert not fast(rule, 1.0).allows(100, 1.0)
    assert rule.allows(100, 1.0 + OWED_S * REST_FACTOR + 1e-6)


def test_fast_writes_alone_say_nothing_of_syncs():
    rule = LoopCommits()
    for _ in range(2 * FAST_COUNT):
        rule.wrote(100, FAST_S, 1.0)
    assert not rule.allows(100, 1.0)
