"""Crashes of the telemetry job at any step of a batch."""

from spark.tables.commits import Commits
from spark.tables.files import Location


class Crash(Exception):
    """The process ended here."""


def crashing(patch, survive: int, *, commit: str) -> None:
    """Lets so many files be written, removed and commits be made, by this method of `Commits`, and then none."""
    left = survive

    def step(real):
        def call(*args, **kwargs):
            nonlocal left
            if left <= 0:
                raise Crash
            left -= 1
            return real(*args, **kwargs)

        return call

    patch.setattr(Location, "writing", step(Location.writing))
    patch.setattr(Commits, commit, step(getattr(Commits, commit)))
    patch.setattr(Location, "remove", step(Location.remove))
