"""The bindings that differ between two definitions, by what they say."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.queues.model.bindings import Binding, changed_bindings


def binding(key, *, value=0):
    return Binding(exchange="e", routing_key=key, arguments={"a": value, "b": 1})


KNOWN = [binding(key, value=value) for key in "ab" for value in (0, 1, 1.0, True)]
SOME = st.lists(st.sampled_from(range(len(KNOWN))), unique=True)


@given(SOME, SOME, st.booleans())
def test_it_is_what_a_comparison_of_all_says(before, after, anew):
    """`anew`: other objects that say the same, as another proxy's definition has them."""
    old = tuple(KNOWN[n] for n in before)
    new = tuple(binding(KNOWN[n].routing_key, value=KNOWN[n].arguments["a"]) if anew else KNOWN[n] for n in after)
    gone, came = changed_bindings(old, new)
    said_before, said_after = ([one.identity for one in some] for some in (old, new))
    assert [one.identity for one in gone] == [one for one in said_before if one not in said_after]
    assert [one.identity for one in came] == [one for one in said_after if one not in said_before]


def test_what_python_takes_for_equal_is_not_the_same():
    """A headers exchange tells True from 1, and bindings with 1 and 1.0 are unbound one by one."""
    for one, other in ((1, True), (1, 1.0), (0, False)):
        before, after = binding("a", value=one), binding("a", value=other)
        assert changed_bindings((before,), (after,)) == ([before], [after])


def test_a_binding_more_compares_none():
    assert changed_bindings(tuple(KNOWN[:3]), tuple(KNOWN)) == ([], KNOWN[3:])
