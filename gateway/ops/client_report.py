"""Sessions and subscriptions of one client as an operator is shown them: a listing of the admin port."""

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

SESSIONS_PATH = "/sessions"
SESSIONS_COUNT_MAX = 100  # connections and sessions of one client, in one answer
FILTERS_COUNT_MAX = 200  # of one session, in one answer

State: TypeAlias = Literal["connected", "away", "elsewhere"]
# "elsewhere": another process has its connection, or has ended with it
_KNOWN: Final = {"connected": 0, "elsewhere": 1, "away": 2}


class SubscriptionReport(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription: its address filter, and the greatest quality of service where its protocol knows one."""

    filter: str
    qos: int | None = None


class SessionReport(msgspec.Struct, frozen=True, kw_only=True):
    """A connection with its session, or a session without a connection.

    `subscriptions` is None where they cannot be read here. `partial`: there are more than are shown.
    """

    protocol: str
    client: str  # the client identifier; "" where the protocol has none
    user: str = ""  # "": the client has not authenticated, or the asker may not know
    state: State
    peer: str = ""
    listener: str = ""
    expiry_s: int | None = 0  # how long it outlives its connection; None: forever
    left_ms: int | None = None  # when its connection ended
    subscriptions: Sequence[SubscriptionReport] | None = ()
    partial: bool = False


class SessionReports(msgspec.Struct, frozen=True, kw_only=True):
    """The connections and sessions of one client; `more`: there are others."""

    rows: Sequence[SessionReport]
    more: bool = False


def merged(pages: Sequence[SessionReports]) -> SessionReports:
    """Returns several processes' reports of one client as one: a session once, from the process that has it."""
    every = [row for page in pages for row in page.rows]
    held = {_name(row) for row in every if row.state == "connected"}
    seen: set[tuple[str, str]] = set()
    rows = []
    for row in sorted(every, key=lambda one: _KNOWN[one.state]):
        if row.state != "connected":
            if _name(row) in held or _name(row) in seen:
                continue
            seen.add(_name(row))
        rows.append(row)
    more = len(rows) > SESSIONS_COUNT_MAX or any(page.more for page in pages)
    return SessionReports(rows=rows[:SESSIONS_COUNT_MAX], more=more)


def _name(row: SessionReport) -> tuple[str, str]:
    return row.protocol, row.client
