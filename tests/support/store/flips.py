"""Damage to files: bits that are not what was written."""

from pathlib import Path


def flip(path: Path, *places: int, bit: int = 0) -> None:
    """Flips a bit of the bytes at some places of a file, in place: a memory map shows it at once."""
    with path.open("r+b") as file:
        for at in places:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << bit]))


def flip_all(path: Path, what: bytes, *, within: int = 5, bit: int = 2) -> int:
    """Flips a bit in every copy of some bytes of a file, `within` of their beginning; returns the number of copies."""
    data = path.read_bytes()
    places = []
    at = data.find(what)
    while at >= 0:
        places.append(at + within)
        at = data.find(what, at + 1)
    flip(path, *places, bit=bit)
    return len(places)


def flip_frame(directory, placed, at, bit=0):
    """Flips a bit of the byte that is `at` behind a frame's beginning; returns the segment's name."""
    for path in (directory / "log").iterdir():
        start = int(path.stem)
        if start <= placed.start < start + path.stat().st_size:
            flip(path, placed.start - start + at, bit=bit)
            return path.name
    raise AssertionError
