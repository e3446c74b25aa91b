"""Views of which bits of keys flip while they are open tell the truth or nothing, whatever is read or written."""

import asyncio
import logging
from bisect import bisect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.views import Views
from store.views.layout import TABLES
from tests.support.store.live_flips import answer, fill_deep, flipped, misplaced, plain_questions, view_questions
from tests.support.store.lmdb_pages import key_places
from tests.support.store.views_kit import told

pytestmark = pytest.mark.nightly  # by day tests/unit/store/views/test_views_keys.py tries some

ASKED = 150  # questions for each flip


class Deep:
    """Open views, the places of their keys, their entries, and questions with their true answers, all by table."""

    def __init__(self, directory):
        asyncio.run(fill_deep(directory))
        self.views = Views(directory / "views")
        self.places = key_places(directory / "views" / "data.mdb")
        self.branches = [place for place in self.places if place.branch]
        self.keys = {name: [key for its, key in told(self.views) if its == name] for name in TABLES}
        asked = {name: plain_questions(self.views, name) for name in TABLES}
        for name, more in view_questions(self.views).items():
            asked[name] += more
        self.asked = {name: [(one, answer(self.views, one)) for one in some] for name, some in asked.items()}

    def __repr__(self):
        return "Deep()"


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    found = Deep(tmp_path_factory.mktemp("deep"))
    yield found
    found.views.close()


@pytest.fixture(autouse=True)
def silent(caplog):
    caplog.set_level(logging.CRITICAL)


PLACES = st.tuples(st.booleans(), st.integers(0, 1 << 30), st.integers(0, 1 << 30), st.integers(0, 7))


def placed(deep, where, *, guarded=False):
    """Returns the place of a key, the place of a byte in the file and in the key, and a bit."""
    branch, which, within, bit = where
    places = deep.branches if branch else deep.places
    if guarded:
        places = [one for one in places if deep.views.tables[one.table].guarded]
    place = places[which % len(places)]
    return place, within % len(place.key), bit


@settings(deadline=None, max_examples=3_000)
@given(where=PLACES, random=st.randoms(use_true_random=False))
def test_a_flipped_key_is_never_the_cause_of_a_wrong_answer(deep, where, random):
    place, within, bit = placed(deep, where)
    some = deep.asked[place.table]
    with flipped(deep.views, place.at + within, bit):
        for question, true in random.sample(some, min(ASKED, len(some))):
            deep.views.tables[place.table].broken = ""  # each is the first to meet it
            assert answer(deep.views, question) in (true, ("refused", None))


@settings(deadline=None, max_examples=6_000)
@given(where=PLACES, random=st.randoms(use_true_random=False))
def test_what_is_written_beside_a_flipped_key_is_in_order_or_known_to_be_not(deep, where, random):
    place, within, bit = placed(deep, where, guarded=True)
    true = deep.keys[place.table]
    lie = bytes(byte ^ (1 << bit) if i == within else byte for i, byte in enumerate(place.key))
    low, high = sorted((place.key, lie))
    near = true[max(bisect(true, low) - 2, 0) : bisect(true, high) + 2]
    new = {key + bytes([random.randrange(256)]) for key in random.choices(near, k=random.randrange(6))}
    gone = random.sample(near, random.randrange(2))
    with flipped(deep.views, place.at + within, bit):
        assert misplaced(deep.views, place, true, sorted(new - set(true)), gone) == ""
