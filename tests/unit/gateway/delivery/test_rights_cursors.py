"""Sealed cursors: all of one length, each another one, good for one user alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.delivery.search_cursors import CURSOR_CHARS, CursorSeal, PlainCursors
from gateway.domain.errors import Cause, Refusal
from store.format.frame import LogOffset, Position

POSITIONS = st.builds(
    lambda frame, row: Position(LogOffset(frame), row), st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1)
)
SEAL, OTHER = CursorSeal(b"a" * 32), CursorSeal(b"b" * 32)


@given(POSITIONS)
def test_a_cursor_is_read_by_who_got_it_alone(position):
    cursors = [SEAL.seal(position) for _ in range(2)]
    assert [len(one) for one in cursors] == [CURSOR_CHARS] * 2
    assert cursors[0] != cursors[1]
    assert [SEAL.open(one) for one in cursors] == [position] * 2
    refused(OTHER, cursors[0])
    assert PlainCursors().open(PlainCursors().seal(position)) == position


@given(st.text(max_size=60) | st.text("Aa0_-", min_size=54, max_size=54))
def test_anything_else_is_refused(text):
    refused(SEAL, text)


def refused(cursors, text):
    with pytest.raises(Refusal) as caught:
        cursors.open(text)
    assert caught.value.cause is Cause.MALFORMED
