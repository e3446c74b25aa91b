"""The pressure on memory and disk: when it begins, and when it ends."""

from gateway.ops.pressure import CALM_LOOKS, CROWDED_LOOKS, Pressure


class MachineFigures:
    """The figures that the pressure looks at."""

    def __init__(self) -> None:
        self.crowded, self.low, self.resident = False, False, 0
        self.pressure = Pressure(
            memory_bytes_max=1_000,
            crowded=lambda: self.crowded,
            low_disk=lambda: self.low,
            resident=lambda: self.resident,
        )

    def looks(self, count: int) -> list[str]:
        """Looks this many times, and returns the reason after each look."""
        found = []
        for _ in range(count):
            before = self.pressure.reason
            assert self.pressure.look() is (self.pressure.reason != before)
            found.append(self.pressure.reason)
        return found


def test_a_moment_of_too_much_is_no_pressure():
    machine = MachineFigures()
    for _ in range(3):
        machine.crowded = True
        assert set(machine.looks(CROWDED_LOOKS - 1)) == {""}
        machine.crowded = False
        assert machine.looks(1) == [""]


def test_too_much_for_some_time_is_until_it_is_over_for_some_time():
    machine = MachineFigures()
    machine.crowded = True
    assert machine.looks(CROWDED_LOOKS)[-2:] == ["", "low on memory"]
    machine.crowded = False
    machine.looks(CALM_LOOKS - 1)
    machine.crowded = True
    assert machine.looks(1) == ["low on memory"]
    machine.crowded = False
    assert machine.looks(CALM_LOOKS)[-2:] == ["low on memory", ""]


def test_a_process_that_holds_too_much_is_short_of_memory():
    machine = MachineFigures()
    for resident, reason in ((1_000, ""), (1_001, "low on memory"), (960, "low on memory"), (949, ""), (1_000, "")):
        machine.resident = resident
        assert machine.looks(1) == [reason]


def test_disk_and_memory_are_named():
    machine = MachineFigures()
    machine.low = True
    assert machine.looks(1) == ["low on disk"]
    machine.resident = 2_000
    assert machine.looks(1) == ["low on memory & disk"]
    machine.low = False
    assert machine.looks(1) == ["low on memory"]
