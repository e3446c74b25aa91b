"""Messages that are located ahead of the takes that want them."""

from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from store.leases.look_ahead import QUEUES_COUNT_MAX, TAKES_COUNT, LookAhead
from tests.support.process.examples import examples

MAX_BYTES = 1 << 20


def records(start, end):
    return [(offset, SimpleNamespace(start=100 * offset), offset % 7) for offset in range(start, end)]


def test_takes_one_behind_the_other_are_located_once():
    ahead, located = LookAhead(), []
    for at in range(0, 40, 10):
        ranges = ((at, at + 10),)
        found = ahead.take(16, ranges, MAX_BYTES, 0)
        if found is None:
            (wide,) = ahead.widened(ranges, 1_000)
            located.append(wide)
            found = ahead.keep(16, ranges, records(*wide), MAX_BYTES)
        assert found == records(at, at + 10)
    assert located == [(0, 10 * TAKES_COUNT)]


def test_nothing_is_located_behind_the_end_of_a_queue():
    assert LookAhead.widened(((5, 10),), 12) == ((5, 12),)
    assert LookAhead.widened(((5, 10),), 10) == ((5, 10),)
    assert LookAhead.widened(((5, 10),), None) == ((5, 10),)
    assert LookAhead.widened(((5, 10), (12, 13)), 100) == ((5, 10), (12, 13))


def test_a_take_of_fewer_bytes_is_not_answered_by_what_was_located_for_one_of_more():
    ahead = LookAhead()
    ahead.keep(16, ((0, 2),), records(0, 8), MAX_BYTES)
    assert ahead.take(16, ((2, 4),), MAX_BYTES - 1, 0) is None
    assert ahead.take(16, ((2, 4),), MAX_BYTES, 0) == records(2, 4)


def test_what_was_trimmed_off_the_log_is_not_kept():
    ahead = LookAhead()
    ahead.keep(16, ((0, 2),), records(0, 8), MAX_BYTES)
    assert ahead.take(16, ((4, 6),), MAX_BYTES, 200) is not None
    assert ahead.take(16, ((4, 6),), MAX_BYTES, 201) is None
    assert ahead.take(16, ((4, 6),), MAX_BYTES, 0) is None


def test_a_few_queues_have_messages_ahead():
    ahead = LookAhead()
    for queue in range(16, 17 + QUEUES_COUNT_MAX):
        ahead.keep(queue, ((0, 1),), records(0, 2), MAX_BYTES)
    kept = [ahead.take(queue, ((1, 2),), MAX_BYTES, 0) is not None for queue in range(16, 17 + QUEUES_COUNT_MAX)]
    assert kept == [False] + [True] * QUEUES_COUNT_MAX


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(
            st.sampled_from([16, 17]), st.integers(0, 40), st.integers(1, 12), st.integers(0, 3), st.integers(0, 30)
        ),
        max_size=30,
    )
)
def test_whatever_is_taken_is_what_was_asked_for(takes):
    ahead = LookAhead()
    for queue, start, count, gap, cut in takes:
        ranges = ((start, start + count),) if not gap else ((start, start + count), (start + count + gap, start + 50))
        wanted = [one for low, high in ranges for one in records(low, high)]
        found = ahead.take(queue, ranges, MAX_BYTES, 0)
        if found is None:
            wide = ahead.widened(ranges, max(60, start + count))
            located = [one for low, high in wide for one in records(low, high)][: max(1, 40 - cut)]
            found = ahead.keep(queue, ranges, located, MAX_BYTES)
            wanted = wanted[: len(found)]
            assert found
        assert found == wanted
