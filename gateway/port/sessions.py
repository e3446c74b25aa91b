"""Requests about durable sessions: opened, saved and ended, with the wills of their clients."""

from gateway.domain.access import Identity
from gateway.domain.cursor import Cursor
from gateway.port.adapter import Request, Value
from gateway.port.marks import NO_MARKS, OpenedMarks
from store.api.message import Message


class Will(Value, frozen=True, kw_only=True):
    """A message to publish once a connection is gone that has not withdrawn it (`DropWill`).

    It is published `delay_ms` later, or at the session's end if that is earlier; not if the session is resumed before.
    `message` is as of the time 0, without a time to live: it lives for `lives_ms` from its delivery on.
    """

    message: Message
    delay_ms: int = 0
    lives_ms: int | None = None
    who: Identity | None = None  # its owner; the gateway sets it


class OpenedSession(Value, frozen=True, kw_only=True):
    """A session that this connection now holds. Its two parts were stored by the last `SaveSession`, b"" at first."""

    present: bool
    state: bytes = b""
    exchanges: bytes = b""
    cursor: Cursor | None = None  # where deliveries go on; None: from now
    marks: OpenedMarks = NO_MARKS


class OpenSession(Request[OpenedSession], frozen=True, kw_only=True):
    """Take over or begin the durable session of a client.

    The connection that held it before, wherever it is, learns it by `Adapter.superseded`. With `clean` whatever was
    there is forgotten first. `expiry_s` is how long it outlives its connection: 0 not at all, None forever.
    """

    session_id: str  # the protocol's own name for it: an MQTT client identifier
    clean: bool
    expiry_s: int | None = 0
    will: Will | None = None


class SaveSession(Request[None], frozen=True, kw_only=True):
    """Store the session durably, as bytes only the adapter reads, in two parts: None leaves a part as it is.

    `exchanges` is the part that changes with every message and should be small; `state` is the rest. When both are
    given, `exchanges` is stored first. `marked` is to be stored before a message has `Marks`.
    """

    state: bytes | None = None
    exchanges: bytes | None = None
    expiry_s: int | None = 0
    marked: bool = False


class DropWill(Request[None], frozen=True, kw_only=True):
    """Do not publish this connection's will."""


class EndSession(Request[None], frozen=True, kw_only=True):
    """Forget this connection's session now."""
