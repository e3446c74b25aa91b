"""Frames of few rows are read without arrays: what is found in them is the same."""

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from gateway.queues.leaving import reading
from store.format import frame as frames
from store.format.frame import ROW, ROW_EXTRA, UnplacedFrame
from store.local import reader
from tests.support.store.store_kit import placed

QUEUES = (16, 17, 18)

# Records as ingest stores them: the length of each, its queue, and the named queues that it is in too.
RECORDS = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from(QUEUES), st.lists(st.sampled_from(QUEUES), max_size=3)),
    min_size=1,
    max_size=4,
)


@given(records=RECORDS, behind=st.booleans(), size_max=st.integers(0, 100))
def test_few_rows_are_read_as_many_are(records, behind, size_max):
    rows, extra, payload = [], [], b""
    for size, queue, others in records:
        rows.append(ROW.pack(queue, len(payload), size, 0, 0, 0, 0, 0))
        copies = [ROW.pack(other, len(payload), size, ROW_EXTRA, 0, 0, 0, 0) for other in others]
        (extra if behind else rows).extend(copies)  # behind all the records of the frame, or each behind its own
        payload += bytes(size)
    found = placed(UnplacedFrame.build(b"".join(rows + extra), payload), 64)
    answers = []
    for few in (0, 64):
        with mock.patch.object(frames, "FEW_ROWS", few):
            assert (found.few_rows() is None) == (few == 0)
            numbers = {queue: reader._rows(found, queue) for queue in QUEUES}
            there = {queue: picked for queue, picked in numbers.items() if picked}
            fitting = {queue: reader._fitting(found, picked, size_max) for queue, picked in there.items()}
            places = {queue: reading._places(found, picked) for queue, picked in there.items()}
            answers.append((numbers, fitting, places))
    assert answers[0] == answers[1]
