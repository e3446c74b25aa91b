"""Tickets of delayed messages: the id of a timer, signed for the principal that has published the message."""

import base64
import hmac
from collections.abc import Sequence

from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from store.api.message import Message
from store.format.frame import Position
from store.format.timer_key import TimerKey

_MAC_BYTES = 16


_SEAL = "_"  # between an id and its MAC; in no id


_JOINT = "~"  # of the ids of one message's timers; stands in a path as it is (RFC 3986, 2.3)


def timer_id(message: Message, places: Sequence[Position]) -> str | None:
    """Returns the id of the timers that keep a stored message; None for one that is delivered at once."""
    if message.deliver_at_ms is None or not places:
        return None
    due_ms = max(message.deliver_at_ms, 0)
    return _JOINT.join([str(TimerKey(due_ms, at.frame, at.row)) for at in places])


def timer_ticket(principal: Principal, message: Message, places: Sequence[Position]) -> str | None:
    """Returns the ticket by which a publisher cancels its stored message; None for one that is delivered at once."""
    timer = timer_id(message, places)
    return None if timer is None else timer + _SEAL + _mac(principal, timer)


def timer_of(principal: Principal, ticket: str) -> str:
    """Returns the id that a ticket is for. Raises `Refusal` (NOT_FOUND) for one not given to this principal."""
    timer, _, mac = ticket.partition(_SEAL)
    if not hmac.compare_digest(mac.encode(), _mac(principal, timer).encode()):
        raise Refusal(Cause.NOT_FOUND, f"not a timer of yours: {ticket[:64]!r}")
    return timer


def _mac(principal: Principal, timer: str) -> str:
    mac = hmac.digest(principal.secret, timer.encode(), "sha256")[:_MAC_BYTES]
    return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()
