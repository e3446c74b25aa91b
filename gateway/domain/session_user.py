"""The owner of a session: the client that began it, as far as that was proven. An unproven identity restricts no one.

Any client may take over a session that was begun without a name, or by a version that did not record its user; a
session of a name may be taken over by that name; a session of a name's device (the claim of a token, or of a
certificate beside a user name) by that device of that name. The client that has taken it over owns it from then on.
"""

import msgspec

from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from store.base import logs

log = logs.get(__name__)


class SessionUser(msgspec.Struct, frozen=True, array_like=True):
    """The owner of something, or the user who asks for it. It is stored: fields are only ever added at the end."""

    name: str = ""  # "": the client has not authenticated
    device: str = ""  # that was claimed beside the name; "": none was


NOBODY = SessionUser()


class NotItsUser(Refusal):
    """Raised when a session belongs to another user."""

    def __init__(self) -> None:
        super().__init__(Cause.FORBIDDEN, "the session belongs to another user")


def user_of(principal: Principal) -> SessionUser:
    """Returns the owner of a new session that a principal begins."""
    name, device = principal.name, principal.device
    if not name:
        return NOBODY
    return SessionUser(name, "" if device == name else device)


def check_user(session: str, user: SessionUser | None, who: SessionUser | None) -> None:
    """Raises `NotItsUser` (FORBIDDEN) unless the user may take over a session.

    `user` is its owner, None where that is not known; `who` is None where it does not matter who asks.
    """
    if user is None or who is None or _may_take(user, who):
        return
    log.info("a session belongs to another user", session=session, user=user.name, refused=who.name)
    raise NotItsUser


def _may_take(user: SessionUser, who: SessionUser) -> bool:
    return not user.name or (user.name == who.name and user.device in {"", who.device})
