"""Who a connection is: the users of the configuration and of the cluster, guests, and clients without a name."""

import hmac
from collections.abc import Callable

from controller.client import User
from gateway.config import AuthConfig
from gateway.errors import Cause, Refusal
from gateway.passwords import Passwords
from gateway.port import Authenticate, Principal

__all__ = ["TRUSTED_GATEWAY", "Authenticator"]

GUEST = "guest"
TRUSTED_GATEWAY = "trusted_gateway"  # a user's right to speak for other devices


class Authenticator:
    """Decides by `[auth]`, and by `user` for names that are not there.

    A refusal never says whether the name or the password was wrong.
    """

    def __init__(self, config: AuthConfig, user: Callable[[str], User | None]) -> None:
        self._config = config
        self._user = user
        self._passwords = Passwords()

    async def authenticate(self, request: Authenticate, *, loopback: bool) -> Principal:
        """The principal of a connection. Raises `Refusal` (UNAUTHENTICATED, OVERLOAD)."""
        if request.mechanism == "anonymous":
            if _admits(self._config.anonymous, loopback=loopback):
                return Principal(name="")
            raise Refusal(Cause.UNAUTHENTICATED, "a name and a password are needed here")
        if request.mechanism == "password":
            return await self._by_password(request, loopback=loopback)
        raise Refusal(Cause.UNAUTHENTICATED, f"no mechanism {request.mechanism!r}")

    async def _by_password(self, request: Authenticate, *, loopback: bool) -> Principal:
        user = self._config.users.get(request.username)
        if user is not None:
            if hmac.compare_digest(user.password.reveal().encode(), request.password):
                return Principal(name=request.username, trusted_gateway=user.trusted_gateway)
        elif (known := self._user(request.username)) is not None:
            if await self._passwords.verify(known.password, request.password):
                return Principal(name=known.name, trusted_gateway=known.rights.get(TRUSTED_GATEWAY) is True)
        elif (
            request.username == GUEST
            and hmac.compare_digest(GUEST.encode(), request.password)
            and _admits(self._config.guest, loopback=loopback)
        ):
            return Principal(name=GUEST)
        raise Refusal(Cause.UNAUTHENTICATED, "wrong name or password")


def _admits(rule: str, *, loopback: bool) -> bool:
    return rule == "everyone" or (rule == "loopback" and loopback)
