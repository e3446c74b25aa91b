"""Options of the measurements' command lines: what may be given for them, and the sentence for what may not."""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def made_directory(text: str) -> Path:
    """Returns a directory, made where it is not there. Raises `ArgumentTypeError`."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be used: {error.strerror or error}") from error
    return path


def at_least(least: int) -> Callable[[str], int]:
    """Returns what reads a whole number from `least` on. It raises `ArgumentTypeError`."""

    def read(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if found < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
        return found

    return read


def above_zero(text: str) -> float:
    """Returns a number above 0. Raises `ArgumentTypeError`."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return found


@contextmanager
def scratch(inside: Path | None) -> Iterator[Path]:
    """Yields a new directory inside another one, or where temporary files go, and removes it at the end."""
    where = Path(tempfile.mkdtemp(prefix="bench-", dir=inside))
    try:
        yield where
    finally:
        shutil.rmtree(where, ignore_errors=True)
