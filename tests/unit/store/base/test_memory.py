"""The memory of a process: its limit, and when freed memory is given back to the system."""

import pytest

from store.base.memory import (
    FUTILE_BYTES,
    FUTILE_INTERVAL_MS,
    LITTLE_BYTES,
    PEAK_BYTES,
    TRIM_INTERVAL_MS,
    HeapTrimming,
    memory_limit_bytes,
    resident_bytes,
)

LIMIT_BYTES = 1 << 30


class TrimmedProcess:
    """A process whose figures a test sets, looked at once a second."""

    def __init__(self) -> None:
        self.trimming = HeapTrimming(LIMIT_BYTES)
        self.now_ms = self.peak = self.held = self.resident = 0
        self.gives = FUTILE_BYTES  # a trim, of memory

    def look(self, after_ms: int = 1_000) -> bool:
        """Looks, and trims where that is due; returns whether it was."""
        self.now_ms += after_ms
        due = self.trimming.due(
            peak_bytes=self.peak, held_bytes=self.held, resident_bytes=self.resident, now_ms=self.now_ms
        )
        if due:
            self.peak = self.held
            self.trimming.trimmed(self.gives, now_ms=self.now_ms)
        return due

    def flood(self, peak: int = PEAK_BYTES, left: int = 0) -> None:
        """Notes a flood, of which this much is left."""
        self.peak, self.held = peak, left


def test_a_quiet_process_is_not_trimmed():
    process = TrimmedProcess()
    assert not any(process.look() for _ in range(1_000))


def test_a_flood_that_is_over_for_a_look_is_trimmed_behind_once():
    process = TrimmedProcess()
    process.flood(left=PEAK_BYTES)
    assert not any(process.look() for _ in range(100))
    process.flood(left=LITTLE_BYTES)
    assert [process.look() for _ in range(100)] == [False, True, *[False] * 98]


def test_a_flood_that_goes_on_after_a_moment_is_not_over():
    process = TrimmedProcess()
    for _ in range(10):
        process.flood()
        assert not process.look()
        process.flood(left=PEAK_BYTES)
        assert not process.look()


def test_little_is_no_flood():
    process = TrimmedProcess()
    process.flood(PEAK_BYTES - 1)
    assert not any(process.look() for _ in range(100))


def test_a_second_flood_waits_for_its_turn():
    process = TrimmedProcess()
    process.flood()
    assert [process.look() for _ in range(2)] == [False, True]
    process.flood()
    assert not any(process.look() for _ in range(TRIM_INTERVAL_MS // 1_000 - 1))
    assert process.look()


def test_a_process_above_its_limit_is_trimmed_again_and_again_where_that_helps():
    process = TrimmedProcess()
    process.resident = LIMIT_BYTES + 1
    assert process.look()
    assert not process.look(TRIM_INTERVAL_MS - 1)
    assert process.look(1)
    process.resident = LIMIT_BYTES
    assert not process.look(TRIM_INTERVAL_MS)


def test_a_process_that_uses_what_it_holds_is_seldom_trimmed():
    process = TrimmedProcess()
    process.resident, process.gives = LIMIT_BYTES + 1, FUTILE_BYTES - 1
    assert process.look()
    assert not process.look(FUTILE_INTERVAL_MS - 1)
    assert process.look(1)
    process.flood()  # which is another reason
    assert [process.look(TRIM_INTERVAL_MS) for _ in range(2)] == [False, True]


def test_the_limit_is_a_share_of_the_machine_unless_configured():
    assert memory_limit_bytes(7) == 7
    assert memory_limit_bytes(0) > 64 << 20


@pytest.mark.skipif(not resident_bytes(), reason="this system does not say what a process holds")
def test_what_this_process_holds_is_known():
    assert resident_bytes() > 8 << 20
