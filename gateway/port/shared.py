"""Requests about shared subscriptions (MQTT 5.0, 4.8.2), for `gateway.port.adapter.Call`.

A shared subscription is a named queue that a filter fills and whose consumers are its members. A session is a member
from when it joins until it leaves or ends, connected or not; the queue exists as long as it has members.
"""

from collections.abc import Sequence
from typing import NamedTuple

from gateway.domain.address import hash64
from gateway.domain.errors import Cause, Refusal
from gateway.domain.filters import check_filter, is_sys
from gateway.port.adapter import Request

SHARED_PREFIX = "$share/"
QUEUE_NAME_BYTES_MAX = 255  # the controller's limit
_KEPT_BYTES = 230  # of a name that is too long; a hash stands for the rest


class SharedName(NamedTuple):
    """A shared subscription: its Share Name and its filter."""

    group: str
    pattern: str

    @property
    def queue(self) -> str:
        """Returns the name of its queue, which no other protocol can name."""
        name = f"{SHARED_PREFIX}{self.group}/{self.pattern}"
        raw = name.encode("utf-8", "surrogatepass")
        if len(raw) <= QUEUE_NAME_BYTES_MAX:
            return name
        return f"{raw[:_KEPT_BYTES].decode('utf-8', 'ignore')}~{hash64(name):016x}"


def shared_name(text: str) -> SharedName | None:
    """Returns the shared subscription that a topic filter names, None for one that names none.

    Raises `Refusal`: MALFORMED for one named wrongly (MQTT-4.8.2-1, MQTT-4.8.2-2), FORBIDDEN for `$SYS`, which is not
    published and so cannot be shared out.
    """
    if not text.startswith(SHARED_PREFIX):
        if text == SHARED_PREFIX[:-1]:
            raise Refusal(Cause.MALFORMED, f"{text!r} is not $share/GROUP/FILTER")
        return None
    group, slash, pattern = text.removeprefix(SHARED_PREFIX).partition("/")
    if not group or "+" in group or "#" in group:
        raise Refusal(Cause.MALFORMED, f"{text!r}: a group's name is not empty and holds no wildcard")
    if not slash or not pattern:
        raise Refusal(Cause.MALFORMED, f"{text!r} has no filter behind the group's name")
    check_filter(pattern)
    if is_sys(pattern):
        raise Refusal(Cause.FORBIDDEN, "each subscriber gets $SYS by itself: it cannot be shared")
    return SharedName(group, pattern)


class JoinShared(Request[Sequence[str | Refusal]], frozen=True, kw_only=True):
    """Joins the connection's session to shared subscriptions, durably.

    Answers, parallel to `names`, the queue to `Consume`, or why not: FORBIDDEN unless all that the filter matches may
    be read, QUOTA where there are as many as there may be, UNAVAILABLE. A subscription that exists stays as it is.
    """

    names: Sequence[SharedName]


class LeaveShared(Request[None], frozen=True, kw_only=True):
    """Ends the session's membership in shared subscriptions, durably.

    The connection may still settle messages that it holds, unless it was the last member: then the queue is gone.
    """

    names: Sequence[SharedName]
