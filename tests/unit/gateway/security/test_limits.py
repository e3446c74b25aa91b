"""Token buckets and the connection limiter, with a clock of the test's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import Cause, Refusal
from gateway.security.limits import REFUSING_COUNT_MAX, Bucket, ConnectionLimiter, SendingPace, network_of
from gateway.security.limits_settings import LimitsConfig

NOW_MS = 1_700_000_000_000


def test_a_bucket_gives_a_burst_and_then_a_rate():
    bucket = Bucket(10, 5, now_ms=NOW_MS)
    bucket.take(5, now_ms=NOW_MS)
    assert bucket.wait_ms(now_ms=NOW_MS) == 0
    assert bucket.wait_ms(now_ms=NOW_MS, need=1) == 100
    bucket.take(3, now_ms=NOW_MS)
    assert bucket.wait_ms(now_ms=NOW_MS) == 300
    assert bucket.wait_ms(now_ms=NOW_MS + 299) == 1
    assert bucket.wait_ms(now_ms=NOW_MS + 300) == 0
    assert bucket.wait_ms(now_ms=NOW_MS + 10_000, need=5) == 0
    assert bucket.wait_ms(now_ms=NOW_MS + 10_000, need=6) == 100


def test_a_clock_that_is_set_back_gives_nothing():
    bucket = Bucket(10, 1, now_ms=NOW_MS)
    bucket.take(1, now_ms=NOW_MS)
    bucket.take(1, now_ms=NOW_MS - 60_000)
    assert bucket.wait_ms(now_ms=NOW_MS - 60_000) == 100


def test_a_clock_that_is_set_back_makes_nobody_wait_until_it_is_where_it_was():
    """Without a take in between, which is how refused connections are, nothing came back for as long as the step."""
    bucket = Bucket(10, 1, now_ms=NOW_MS)
    bucket.take(1, now_ms=NOW_MS)
    assert bucket.wait_ms(now_ms=NOW_MS - 3_600_000, need=1) == 100
    assert bucket.wait_ms(now_ms=NOW_MS - 3_600_000 + 100, need=1) == 0


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 200)), max_size=60), st.integers(1, 1_000))
def test_who_waits_keeps_the_rate_whatever_comes_at_once(reads, per_s):
    """As many as the burst, the rate and one read allow: the debt of a read is paid before the next."""
    bucket, now_ms, taken, largest = Bucket(per_s, 100, now_ms=0), 0, 0, 0
    for quiet_ms, count in reads:
        now_ms += quiet_ms
        now_ms += bucket.wait_ms(now_ms=now_ms)
        bucket.take(count, now_ms=now_ms)
        taken, largest = taken + count, max(largest, count)
        assert taken <= 100 + now_ms * per_s / 1_000 + largest + 1


def test_without_a_limit_there_is_no_pace():
    assert SendingPace.of(LimitsConfig(), now_ms=NOW_MS) is None


def test_messages_and_bytes_are_limited_each_by_itself():
    config = LimitsConfig(messages_per_s=10, messages_burst=10, bytes_per_s=1_000, bytes_burst=100)
    pace = SendingPace.of(config, now_ms=NOW_MS)
    pace.read(100, now_ms=NOW_MS)
    assert pace.publish(10, 100, now_ms=NOW_MS) is None
    assert pace.wait_ms(now_ms=NOW_MS) == 0
    pace.read(50, now_ms=NOW_MS)
    assert pace.wait_ms(now_ms=NOW_MS) == 50
    assert pace.publish(1, 50, now_ms=NOW_MS) is None
    assert pace.wait_ms(now_ms=NOW_MS) == 100


def test_what_is_refused_costs_nothing():
    config = LimitsConfig(messages_per_s=10, messages_burst=10, bytes_per_s=1_000, bytes_burst=100, on_excess="refuse")
    pace = SendingPace.of(config, now_ms=NOW_MS)
    pace.read(10_000, now_ms=NOW_MS)
    assert pace.publish(20, 100, now_ms=NOW_MS) is None
    for _ in range(5):
        refusal = pace.publish(20, 100, now_ms=NOW_MS)
        assert (refusal.cause, refusal.retry_after_ms, refusal.retriable) == (Cause.RATE, 1_000, True)
    assert pace.wait_ms(now_ms=NOW_MS) == 0
    assert pace.publish(1, 500, now_ms=NOW_MS + 1_000) is None
    assert pace.publish(1, 1, now_ms=NOW_MS + 1_000).retry_after_ms == 400


# ---- the connection limiter


def causes(limiter, *addresses, now_ms=NOW_MS):
    admissions = [limiter.admit(address, now_ms=now_ms) for address in addresses]
    return [admission.refusal and admission.refusal.cause for admission in admissions]


def test_so_many_connections():
    limiter = ConnectionLimiter(LimitsConfig(), 2, now_ms=NOW_MS)
    first = limiter.admit("10.0.0.1", now_ms=NOW_MS)
    assert causes(limiter, "10.0.0.2", "10.0.0.3") == [None, Cause.QUOTA]
    limiter.release(first)
    assert causes(limiter, "10.0.0.3", "10.0.0.4") == [None, Cause.QUOTA]


def test_so_many_are_told_and_others_are_cut_off():
    limiter = ConnectionLimiter(LimitsConfig(), 0, now_ms=NOW_MS)
    told = [limiter.admit("10.0.0.1", now_ms=NOW_MS) for _ in range(REFUSING_COUNT_MAX)]
    assert all(admission.refusal is not None for admission in told)
    assert limiter.admit("10.0.0.1", now_ms=NOW_MS) is None
    limiter.release(told[0])
    assert limiter.admit("10.0.0.1", now_ms=NOW_MS) is not None


def test_so_many_connections_of_one_address():
    limiter = ConnectionLimiter(LimitsConfig(connections_per_address=1), 10, now_ms=NOW_MS)
    first = limiter.admit("10.0.0.1", now_ms=NOW_MS)
    assert causes(limiter, "10.0.0.1", "10.0.0.2", "") == [Cause.QUOTA, None, None]
    limiter.release(first)
    assert causes(limiter, "10.0.0.1") == [None]
    assert first.network in limiter.by_network


def test_who_comes_by_a_proxy_is_counted_where_he_comes_from():
    limiter = ConnectionLimiter(LimitsConfig(connections_per_address=1), 10, now_ms=NOW_MS)
    unknown, other = [limiter.admit("", now_ms=NOW_MS) for _ in range(2)]
    placed = limiter.place(unknown, "10.0.0.1")
    assert limiter.place(placed, "10.0.0.1") is placed  # it proves again who it is
    with pytest.raises(Refusal) as refused:
        limiter.place(other, "10.0.0.1")
    assert refused.value.cause is Cause.QUOTA
    assert causes(limiter, "10.0.0.1", "") == [Cause.QUOTA, None]
    for admission in (placed, other):
        limiter.release(admission)
    assert causes(limiter, "10.0.0.1") == [None]


def test_nothing_is_remembered_of_who_has_left():
    limiter = ConnectionLimiter(LimitsConfig(connections_per_address=3), 10, now_ms=NOW_MS)
    admissions = [limiter.admit(f"10.0.0.{n}", now_ms=NOW_MS) for n in (1, 1, 2)]
    for admission in admissions:
        limiter.release(admission)
    assert (limiter.by_network, limiter.inside, limiter.refusing) == ({}, 0, 0)


def test_so_many_new_connections_a_second():
    limiter = ConnectionLimiter(LimitsConfig(connections_per_s=2, connections_burst=2), 10, now_ms=NOW_MS)
    assert causes(limiter, "a", "a", "a") == [None, None, Cause.RATE]
    assert causes(limiter, "a", "a", now_ms=NOW_MS + 500) == [None, Cause.RATE]
    assert causes(limiter, "a", "a", "a", now_ms=NOW_MS + 60_000) == [None, None, Cause.RATE]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "20010db800010002"),
        ("fe80::1%eth0", "fe80000000000000"),
        ("", ""),
        ("somebody", "somebody"),
    ],
)
def test_networks(address, network):
    assert network_of(address) == network
