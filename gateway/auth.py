"""Who a connection is: the users of the configuration, guests, and clients without a name."""

import hmac

from gateway.config import AuthConfig
from gateway.errors import Cause, Refusal
from gateway.port import Authenticate, Principal

__all__ = ["Authenticator"]

GUEST = "guest"


class Authenticator:
    """Decides by `[auth]`. A refusal never says whether the name or the password was wrong."""

    def __init__(self, config: AuthConfig) -> None:
        self._config = config

    def authenticate(self, request: Authenticate, *, loopback: bool) -> Principal:
        """The principal of a connection. Raises `Refusal` (UNAUTHENTICATED)."""
        if request.mechanism == "anonymous":
            if _admits(self._config.anonymous, loopback=loopback):
                return Principal(name="")
            raise Refusal(Cause.UNAUTHENTICATED, "a name and a password are needed here")
        if request.mechanism == "password":
            return self._by_password(request, loopback=loopback)
        raise Refusal(Cause.UNAUTHENTICATED, f"no mechanism {request.mechanism!r}")

    def _by_password(self, request: Authenticate, *, loopback: bool) -> Principal:
        user = self._config.users.get(request.username)
        if user is not None:
            if hmac.compare_digest(user.password.reveal().encode(), request.password):
                return Principal(name=request.username, trusted_gateway=user.trusted_gateway)
        elif (
            request.username == GUEST
            and hmac.compare_digest(GUEST.encode(), request.password)
            and _admits(self._config.guest, loopback=loopback)
        ):
            return Principal(name=GUEST)
        raise Refusal(Cause.UNAUTHENTICATED, "wrong name or password")


def _admits(rule: str, *, loopback: bool) -> bool:
    return rule == "everyone" or (rule == "loopback" and loopback)
