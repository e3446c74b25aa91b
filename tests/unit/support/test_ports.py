"""Ports of processes that tests start: those of two that have not been started yet do not overlap."""

import pytest

from tests.support.process import ports
from tests.support.process.ports import free_offset, release_ports


@pytest.fixture
def all_given_back():
    release_ports()
    yield
    release_ports()


def test_two_processes_that_are_not_started_yet_share_no_port(monkeypatch, all_given_back):
    """One that is started later would find its port taken by the other."""
    monkeypatch.setattr(ports, "OFFSETS", range(15_000, 15_000 + ports.TRIES))
    taken: set[int] = set()
    for _ in range(8):
        offset = free_offset(lambda at: [at, at + 1, at + 5])
        asked = {offset, offset + 1, offset + 5}
        assert not asked & taken
        taken |= asked
