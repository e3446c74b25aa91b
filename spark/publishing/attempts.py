"""The attempts at a request that may be repeated: the pauses between them, their end, and the reasons of refusals."""

import time
from collections.abc import Callable
from typing import Any, Final

import httpx
import msgspec

from store.base.streams import Backoff

PAUSE_MIN_S, PAUSE_MAX_S = 0.05, 2.0
DETAIL_CHARS_MAX: Final = 200  # of a response that is no problem document
_SAYS_LATER: Final = "retry-after"


class Attempts:
    """The attempts at one request, for `retry_s` seconds."""

    def __init__(self, retry_s: float, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._until_s = clock_s() + retry_s
        self._backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S)

    def pause_s(self, response: httpx.Response | None = None) -> float | None:
        """Returns the pause before the next attempt, None when the time would be over by then.

        The last attempt's `response`, if there was one, may ask for a longer pause (Retry-After).
        """
        pause_s = self._backoff.next_s()
        said = "" if response is None else response.headers.get(_SAYS_LATER, "")
        if said.isdecimal():
            pause_s = min(max(pause_s, float(said)), PAUSE_MAX_S)
        return pause_s if self._clock_s() + pause_s <= self._until_s else None


def document_of(response: httpx.Response) -> Any:
    """Returns the JSON of a response, None where there is none."""
    try:
        return msgspec.json.decode(response.content) if response.content else None
    except ValueError:
        return None


def detail_of(response: httpx.Response) -> str:
    """Returns the problem document's sentence, and that of its first error (RFC 9457)."""
    found = document_of(response)
    if not isinstance(found, dict):
        return response.text[:DETAIL_CHARS_MAX] or response.reason_phrase
    text = str(found.get("detail") or found.get("title") or response.reason_phrase)
    errors = found.get("errors")
    if isinstance(errors, list) and errors and isinstance(errors[0], dict):
        text += f" (message {errors[0].get('index')} of the request: {errors[0].get('detail')})"
    return text
