from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.replication.agreement import Acknowledge, agreed, needed

values = st.dictionaries(st.integers(1, 7), st.integers(0, 5))
members = st.sets(st.integers(1, 7), min_size=1)


@given(values, members, st.sampled_from(Acknowledge), st.integers(1, 8))
def test_it_is_the_greatest_that_enough_have_reached(reached, those, acknowledge, min_in_sync):
    need = needed(len(those), acknowledge, min_in_sync)
    enough = [n for n in range(6) if sum(reached.get(member, 0) >= n for member in those) >= need]
    assert agreed(reached, those, acknowledge, min_in_sync=min_in_sync) == max(enough)


@given(members, st.integers(1, 8))
def test_two_quorums_of_a_set_meet(those, min_in_sync):
    need = needed(len(those), Acknowledge.QUORUM, min_in_sync)
    assert len(those) < need + len(those) // 2 + 1
    assert need <= len(those)


@pytest.mark.parametrize("acknowledge", [Acknowledge.ALL_IN_SYNC, Acknowledge.MASTER])
def test_otherwise_everybody_is_needed(acknowledge):
    assert Counter(needed(size, acknowledge, 2) - size for size in range(1, 6)) == {0: 5}
