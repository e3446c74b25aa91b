import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.format.frame import LogOffset, Position


@given(st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 32) - 1))
def test_a_position_survives_its_text(frame, row):
    position = Position(LogOffset(frame), row)
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize(
    "text", ["", ".", "1", "1.", ".1", "-1.0", "1.-1", "01.0", "1.0 ", "1.0.0", "g.0", "1_0.0", "A.0", f"{1 << 63:x}.0"]
)
def test_any_other_text_is_none(text):
    with pytest.raises(ValueError, match=r".*"):
        Position.parse(text)
