"""Shares of topics that are used up are remembered for a moment."""

from gateway.domain.errors import Cause, Refusal
from gateway.publishing.topic_shares import ANYBODY, REMEMBERED_COUNT_MAX, REMEMBERED_S, UsedShares

FULL = Refusal(Cause.QUOTA, "full")


def test_the_controllers_are_asked_again_after_a_moment_and_for_others_at_once():
    now_s = [100.0]
    used = UsedShares(lambda: now_s[0])
    assert used.refusal("user eve") is None
    assert used.note("user eve", FULL) is FULL
    assert [used.refusal(one) for one in ("user eve", "user bob", ANYBODY, "")] == [FULL, None, None, None]
    now_s[0] += REMEMBERED_S
    assert used.refusal("user eve") is None


def test_the_gateways_own_topics_are_always_asked_for_and_memory_is_bounded():
    used = UsedShares(lambda: 1.0)
    used.note("", FULL)
    assert used.refusal("") is None
    for n in range(REMEMBERED_COUNT_MAX + 1):
        used.note(f"user {n}", FULL)
    assert len(used._used) == 1
