"""Patterns of LIKE, at a cost that is bounded."""

import re
from collections.abc import Callable
from typing import Final

PATTERN_CHARS_MAX: Final = 256
LIKE_TEXT_CHARS_MAX: Final = 16_384  # a longer text is not looked at: the result is unknown
LIKE_ANY_CHARS_MAX: Final = 512  # the same where a _ stands between two %: looking for that costs their product


class Like:
    """A pattern of LIKE: fixed texts between the %, each found once, from the left (SQL92, 8.5).

    A part is looked for by `str.find`, whose cost is linear; only one with a _ in it needs a regular expression, and
    then a long text is not looked at.
    """

    def __init__(self, pattern: str, escape: str | None) -> None:
        """Raises ValueError where the escape character escapes nothing."""
        parts: list[list[str | None]] = [[]]  # characters, None for a _
        chars = iter(pattern)
        for char in chars:
            if char == escape:
                following = next(chars, None)
                if following is None or following not in {"%", "_", escape}:
                    raise ValueError(f"{escape!r} stands in front of %, _ or itself")
                parts[-1].append(following)
            elif char == "%":
                parts.append([])
            else:
                parts[-1].append(None if char == "_" else char)
        self._whole = len(parts) == 1
        self._first, self._last = parts[0], parts[-1]
        self._middle = [_finder(part) for part in parts[1:-1] if part]
        self._chars_max = LIKE_ANY_CHARS_MAX if any(None in part for part in parts[1:-1]) else LIKE_TEXT_CHARS_MAX

    def matches(self, text: str) -> bool | None:
        """Returns whether a text matches the pattern; None for one that is too long to decide."""
        if len(text) > self._chars_max:
            return None
        at, end = len(self._first), len(text) - len(self._last)
        if self._whole:
            return len(text) == at and _same(self._first, text)
        if end < at or not _same(self._first, text[:at]) or not _same(self._last, text[end:]):
            return False
        for find in self._middle:
            found = find(text, at, end)
            if found < 0:
                return False
            at = found
        return True


def _same(part: list[str | None], text: str) -> bool:
    return all(want is None or want == char for want, char in zip(part, text, strict=True))


def _finder(part: list[str | None]) -> Callable[[str, int, int], int]:
    """Returns a function that finds a part between two positions: the position behind it, -1 when it is not there."""
    if None not in part:
        plain, length = "".join([char for char in part if char is not None]), len(part)

        def find(text: str, at: int, end: int) -> int:
            found = text.find(plain, at, end)
            return found + length if found >= 0 else -1

        return find
    search = re.compile("".join(["." if char is None else re.escape(char) for char in part]), re.DOTALL).search

    def look(text: str, at: int, end: int) -> int:
        found = search(text, at, end)
        return found.end() if found is not None else -1

    return look
