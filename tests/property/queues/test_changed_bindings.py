"""The bindings that differ between two definitions, by what they say."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.queues.model.bindings import Binding, changed_bindings


def binding(key, *, value=0):
    return Binding(exchange="e", routing_key=key, arguments={"a": value, "b": 1})


KNOWN = [binding(key, value=value) for key in "abc" for value in range(2)]
SOME = st.lists(st.sampled_from(range(len(KNOWN))), unique=True)


@given(SOME, SOME, st.booleans())
def test_it_is_what_a_comparison_of_all_says(before, after, anew):
    """`anew`: other objects that say the same, as another proxy's definition has them."""
    old = tuple(KNOWN[n] for n in before)
    new = tuple(binding(KNOWN[n].routing_key, value=KNOWN[n].arguments["a"]) if anew else KNOWN[n] for n in after)
    gone, came = changed_bindings(old, new)
    assert [one.identity for one in gone] == [one.identity for one in old if one not in new]
    assert [one.identity for one in came] == [one.identity for one in new if one not in old]


def test_a_binding_more_compares_none():
    assert changed_bindings(tuple(KNOWN[:3]), tuple(KNOWN)) == ([], KNOWN[3:])
