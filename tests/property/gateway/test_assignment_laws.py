"""Laws of allocation, and of the cursor that members are given."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.groups.assignment import STRATEGIES, averaged, consistent_hash
from gateway.port.groups import GroupCursor

queues = st.lists(st.integers(0, 1 << 32), unique=True, max_size=60)
names = st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=12)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=list(STRATEGIES))
@given(queues, names, st.randoms())
def test_every_queue_has_one_member_whatever_the_order(strategy, queues, members, chance):
    found = strategy(queues, members)
    assert set(found) == set(members)
    assert sorted(queue for some in found.values() for queue in some) == (sorted(queues) if members else [])
    assert all(list(some) == sorted(some) for some in found.values())
    chance.shuffle(queues)
    chance.shuffle(members)
    assert strategy(queues, members) == found


@given(queues, names.filter(bool))
def test_averaged_differs_by_one_at_most(queues, members):
    sizes = [len(some) for some in averaged(queues, members).values()]
    assert max(sizes) - min(sizes) <= 1


@given(queues, names.filter(lambda names: len(names) > 1), st.integers(1, 20))
def test_consistent_hash_moves_what_the_leaver_had_and_nothing_else(queues, members, virtual_nodes):
    before = consistent_hash(queues, members, virtual_nodes)
    gone, *staying = members
    after = consistent_hash(queues, staying, virtual_nodes)
    for member in staying:
        assert set(before[member]) <= set(after[member])
        assert set(after[member]) - set(before[member]) <= set(before[gone])


@pytest.mark.parametrize("count", range(2, 9))
def test_consistent_hash_is_not_too_uneven(count):
    """With ten points a member: of a thousand queues nobody has four times its share."""
    chance = random.Random(count)
    for _ in range(10):
        members = [f"{chance.getrandbits(128):032x}" for _ in range(count)]
        sizes = [len(some) for some in consistent_hash(range(1_000), members).values()]
        assert max(sizes) <= 4 * 1_000 / count


numbers = st.integers(0, (1 << 63) - 1)
cursors = st.builds(GroupCursor, numbers, st.dictionaries(st.integers(0, (1 << 32) - 1), numbers, max_size=40))


@given(cursors)
def test_a_cursor_is_read_as_it_was_written(cursor):
    assert GroupCursor.parse(str(cursor)) == cursor


@given(st.one_of(st.text(), st.text("0123456789~.", max_size=40)))
def test_a_text_is_a_cursor_or_is_refused(text):
    try:
        found = GroupCursor.parse(text)
    except ValueError:
        return
    assert GroupCursor.parse(str(found)) == found


def test_what_is_no_cursor():
    for text in ("", "x", "1~", "1~2", "1~2.3~2.4", f"{1 << 63}", "1~2." + "9" * 19 + "9", "1~" + "1.1~" * 20_000):
        with pytest.raises(ValueError, match="not a cursor"):
            GroupCursor.parse(text)
