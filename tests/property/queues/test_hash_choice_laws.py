"""Consistent hashing: every key has one target, and moves only to one that comes or from one that goes."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.publishing.routing.hash_choice import HashChoice
from store.api.message import Message

names = st.sampled_from("abcdefgh")
weights = st.dictionaries(names, st.integers(1, 20), min_size=1)
KEYS = [f"key {n}" for n in range(200)]


def choice_of(targets: dict[str, int]) -> HashChoice:
    choice = HashChoice(lambda message: message.address)
    for name, weight in targets.items():
        choice.add(name, name, weight)
    return choice


@given(weights, names, st.integers(1, 20), st.randoms())
def test_keys_move_only_to_what_comes_and_from_what_goes(targets, name, weight, chance):
    targets.pop(name, None)
    choice, order = choice_of(targets), list(targets.items())
    chance.shuffle(order)
    before = [choice.of_key(key) for key in KEYS]
    assert before == [choice_of(dict(order)).of_key(key) for key in KEYS]
    assert all(one in targets for one in before) or not targets
    choice.add(name, name, weight)
    after = [choice.of_key(key) for key in KEYS]
    assert all(new in (old, name) for old, new in zip(before, after, strict=True))
    choice.remove(name)
    assert [choice.of_key(key) for key in KEYS] == before


@given(weights)
def test_exactly_one_binding_takes_a_message(targets):
    choice = HashChoice(lambda message: message.address)
    bindings = [choice.add(name, name, weight) for name, weight in targets.items()]
    for key in KEYS[:20]:
        assert sum(takes(Message(key)) for takes in bindings) == 1


def test_targets_have_shares_by_their_weights():
    targets = {"a": 1, "b": 2, "c": 5}
    choice = choice_of(targets)
    chosen = [choice.of_key(f"{n}") for n in range(8_000)]
    for name, weight in targets.items():
        assert abs(chosen.count(name) - 1_000 * weight) < 150 + 30 * weight
