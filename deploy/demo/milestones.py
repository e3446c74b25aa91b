"""The times from the start of the demonstration to what a visitor waits for: dashboard, tables, a finding."""

from collections.abc import Callable


class Milestones:
    """Conditions, and when each was first found to hold. `clock_s` gives seconds; the start is now."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s, self._began_s = clock_s, clock_s()
        self._checks: dict[str, Callable[[], bool]] = {}
        self._reached: dict[str, float] = {}  # after so many seconds

    def expect(self, words: str, holds: Callable[[], bool]) -> None:
        """Adds a condition, by its words in the line."""
        self._checks[words] = holds

    @property
    def all_reached(self) -> bool:
        """Returns whether nothing is left to look for."""
        return self._checks.keys() == self._reached.keys()

    def look(self) -> None:
        """Notes the time for each condition that holds for the first time. Blocking, as the conditions are."""
        for words, holds in self._checks.items():
            if words not in self._reached and holds():
                self._reached[words] = self._clock_s() - self._began_s

    def line(self) -> str:
        """Returns all in one line; empty where nothing was expected."""
        parts = [
            f"{words} after {self._reached[words]:.1f} s" if words in self._reached else f"not {words}"
            for words in self._checks
        ]
        return f"from the start: {', '.join(parts)}" if parts else ""
