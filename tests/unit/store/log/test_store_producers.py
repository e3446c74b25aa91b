"""Idempotent producers."""

import pytest

from store.base.errors import SequenceOutOfOrder
from store.format.frame import ONCE_PRODUCER
from store.log import producers
from store.log.producers import ProducerTable


def test_new_repeated_and_out_of_order():
    table = ProducerTable()
    assert table.find(1, 100) is None
    for n in range(3):
        table.add(1, 100 + n, n * 64)
    assert [table.find(1, 100 + n) for n in range(4)] == [0, 64, 128, None]
    for sequence in (99, 104):
        with pytest.raises(SequenceOutOfOrder):
            table.find(1, sequence)


def test_producers_are_apart():
    table = ProducerTable()
    table.add(1, 5, 0)
    assert table.find(2, 5) is None


def test_only_the_newest_sequences_are_known(monkeypatch):
    monkeypatch.setattr(producers, "SEQUENCES_KEPT", 3)
    table = ProducerTable()
    for n in range(1, 6):
        table.add(1, n, n)
    assert [table.find(1, n) for n in (3, 4, 5)] == [3, 4, 5]
    with pytest.raises(SequenceOutOfOrder, match="too old"):
        table.find(1, 2)


def test_the_producer_that_wrote_longest_ago_is_forgotten(monkeypatch):
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    table = ProducerTable()
    table.add(1, 1, 0)
    table.add(2, 1, 64)
    table.add(1, 2, 128)
    table.add(3, 1, 192)
    assert dict(table) == {1: 2, 3: 1}


def test_what_is_taken_back_brings_back_what_it_has_pushed_out(monkeypatch):
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    monkeypatch.setattr(producers, "SEQUENCES_KEPT", 2)
    table = ProducerTable()
    for sequence in (1, 2, 3):
        table.add(1, sequence, sequence)
    table.add(2, 7, 4)
    table.keep()
    table.add(1, 4, 5)
    table.add(3, 1, 6)  # 2 is forgotten
    table.add(3, 2, 7)
    table.add(2, 20, 8)  # 1 is forgotten, 2 begins again
    assert dict(table) == {3: 2, 2: 20}
    table.take_back()
    assert list(table) == [(1, 3), (2, 7)]
    assert [table.find(1, n) for n in (2, 3, 4)] == [2, 3, None]
    assert [table.find(2, n) for n in (7, 8)] == [4, None]
    table.take_back()
    assert list(table) == [(1, 3), (2, 7)]


def test_producers_of_a_single_frame_make_nobody_else_forgotten(monkeypatch):
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    monkeypatch.setattr(producers, "ONCE_MAX", 3)
    table = ProducerTable()
    table.add(1, 5, 0)
    table.add(2, 7, 64)
    table.keep()
    for n in range(1, 6):
        table.add(ONCE_PRODUCER | n, 1, n * 128)
    assert table.find(1, 5) == 0
    assert dict(table) == {1: 5, 2: 7, **{ONCE_PRODUCER | n: 1 for n in (3, 4, 5)}}
    table.take_back()
    assert dict(table) == {1: 5, 2: 7}
