"""Authenticates connections: users of the configuration and of the cluster, bearers of tokens and certificates, guests.

A name is the same however it was proven: permissions belong to the name (`Principal.rights`).
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from controller.api.client import User
from gateway.domain.errors import Cause, Refusal
from gateway.domain.identity import Claim, identity_of
from gateway.domain.principal import Principal
from gateway.domain.session_user import SessionUser, user_of
from gateway.port.adapter import Authenticate, Challenge
from gateway.security import scram
from gateway.security.auth_settings import AuthConfig, TlsConfig
from gateway.security.limits import network_of
from gateway.security.passwords import ComparisonCost, Passwords, verifier_in
from gateway.security.throttle import Throttle
from store.base import logs

if TYPE_CHECKING:
    from gateway.security.tokens import Tokens

GUEST = "guest"
TRUSTED_GATEWAY = "trusted_gateway"  # a user's right to speak for other devices
_ANYBODY = Principal(name="")
SALTS = "\0scram"  # which salts are made with; no user has such a name

log = logs.get(__name__)


class _Asker(NamedTuple):
    """The known attributes of a client that authenticates."""

    identity: str | None  # of the certificate
    loopback: bool
    network: str
    effort: ComparisonCost


class Authenticator:
    """Decides by `[auth]`, and by `user` for names that are not there.

    A refusal never says whether the name or the password was wrong, nor does the time that it takes. `secret` gives
    bytes that belong to a text and are the same in every process of a cluster, and after a restart.
    """

    def __init__(
        self,
        config: AuthConfig,
        user: Callable[[str], User | None],
        *,
        secret: Callable[[str], bytes],
        now_ms: Callable[[], int],
        tls: TlsConfig | None = None,
    ) -> None:
        self._config = config
        self._tls = tls or TlsConfig()
        self._user = user
        self._secret = secret
        self._now_ms = now_ms
        self.passwords = Passwords()
        self.throttle = Throttle(config.failures_max)
        self._tokens = tokens_of(config)
        self._verifiers: asyncio.Future[Mapping[str, scram.Verifier]] | None = None  # of the configuration's users

    def reload(self, config: AuthConfig) -> frozenset[str]:
        """Decides by another `[auth]` from now on; the names of its users that there are no more, or not as before.

        "" is among them where it is about others: see `admits`. Raises `ConfigError`, with everything as it was.
        """
        self._tokens = tokens_of(config)
        before, self._config = self._config, config
        self._verifiers = None
        self.throttle.failures_max = config.failures_max
        names = {*before.users, *config.users}
        changed = [name for name in names if before.users.get(name) != config.users.get(name)]
        if (before.anonymous, before.guest) != (config.anonymous, config.guest):
            changed.append("")
        return frozenset(changed)

    def has_own(self, name: str) -> bool:
        """Returns whether the configuration has a user of this name, who takes precedence over one of the cluster."""
        return name in self._config.users

    def admits(self, principal: Principal, *, loopback: bool) -> bool:
        """Returns whether clients without an own password are still let in from there; True for all others."""
        if principal.anonymous:
            return _admits(self._config.anonymous, loopback=loopback)
        return not principal.guest or _admits(self._config.guest, loopback=loopback)

    async def authenticate(
        self,
        request: Authenticate,
        *,
        loopback: bool,
        address: str = "",
        certificate: Mapping[str, Any] | None = None,
    ) -> Principal | Challenge:
        """Returns the principal of a client at `address`, with its verified `certificate`, if any, as `ssl` gives it.

        Raises `Refusal`: UNAUTHENTICATED, OVERLOAD where too many authentications are asked for at once, and QUOTA for
        an address that has to wait.
        """
        identity = identity_of(certificate, self._tls.client_identity)
        if request.mechanism == "anonymous":
            return self._nameless(identity, loopback=loopback)
        mechanism = _MECHANISMS.get(request.mechanism)
        if mechanism is None:
            raise Refusal(Cause.UNAUTHENTICATED, f"no mechanism {request.mechanism[:64]!r}")
        self.throttle.check(address, now_ms=self._now_ms())
        effort, network = ComparisonCost(), network_of(address)
        try:
            found = await mechanism(self, request, _Asker(identity, loopback, network, effort))
            if isinstance(found, Principal):
                found = self._vouched(found, identity)
            # Of many that were tried at once none is told from wrong ones once there have been too many of those.
            self.throttle.check(address, now_ms=self._now_ms())
        except Refusal as refusal:
            try:
                if refusal.cause is Cause.UNAUTHENTICATED:
                    self.throttle.check(address, now_ms=self._now_ms())
                    self.throttle.failed(address, now_ms=self._now_ms())
            finally:
                await self.passwords.even_out(effort, network=network)
            raise
        return found

    def vouched(self, name: str) -> Principal:
        """Returns the principal of a user whose key the protocol itself has verified, as OSCORE does."""
        return self._principal(Claim(name))

    @property
    def configured(self) -> Collection[str]:
        """Returns the names of the users of the configuration."""
        return self._config.users.keys()

    def session_user(self, principal: Principal) -> SessionUser | None:
        """Returns the owner of a new session of a principal; None where sessions are not bound to their users."""
        return user_of(principal) if self._config.sessions_bound else None

    # ---- mechanisms

    def _nameless(self, identity: str | None, *, loopback: bool) -> Principal:
        if identity is not None:
            return self._principal(Claim(identity))
        if _admits(self._config.anonymous, loopback=loopback):
            return _ANYBODY
        raise Refusal(Cause.UNAUTHENTICATED, "a name and a password are needed here")

    async def _by_certificate(self, request: Authenticate, asker: _Asker) -> Principal:
        identity = asker.identity
        if identity is None or request.username not in {"", identity}:
            raise Refusal(Cause.UNAUTHENTICATED, "there is no certificate in this name")
        return self._principal(Claim(identity))

    async def _by_password(self, request: Authenticate, asker: _Asker) -> Principal:
        name, password = request.username, request.password
        if not password and name and name == asker.identity:
            return self._principal(Claim(name))
        if self._tokens is not None and _may_be_token(password):
            return self._by_token(request)
        if await self._is_right(name, password, asker):
            return self._principal(Claim(name))
        if (
            name == GUEST
            and self._has_guest_password(password)
            and _admits(self._config.guest, loopback=asker.loopback)
        ):
            return Principal(name=GUEST, guest=True)
        raise _refused()

    async def _is_right(self, name: str, password: bytes, asker: _Asker) -> bool:
        """Returns whether a password is the named user's; takes as long for unknown names."""
        network, effort = asker.network, asker.effort
        user = self._config.users.get(name)
        if user is not None and user.password is not None:
            right = hmac.compare_digest(user.password.reveal().encode(), password)
            if not right:
                await self.passwords.pretend(password, network=network, effort=effort)
            return right
        hashed = self._hash_of(name)
        if hashed is not None:
            right = await self.passwords.verify(hashed, password, network=network, effort=effort)
            return right and self._hash_of(name) == hashed
        if not (name == GUEST and self._has_guest_password(password)):
            await self.passwords.pretend(password, network=network, effort=effort)
        return False

    def _has_guest_password(self, password: bytes) -> bool:
        """Returns whether this is the password that every guest has, and no user has the guests' name."""
        nobody = GUEST not in self._config.users and self._user(GUEST) is None
        return nobody and hmac.compare_digest(GUEST.encode(), password)

    async def _by_bearer(self, request: Authenticate, asker: _Asker) -> Principal:
        return self._by_token(request)

    def _by_token(self, request: Authenticate) -> Principal:
        if self._tokens is None:
            raise Refusal(Cause.UNAUTHENTICATED, "no tokens are taken here")
        claim = self._tokens.verify(request.password, now_ms=self._now_ms())
        if self._config.jwt.username_agrees and request.username not in {"", claim.name}:
            raise Refusal(Cause.UNAUTHENTICATED, "the token is in another name")
        return self._principal(claim)

    async def _by_scram(
        self,
        request: Authenticate,
        asker: _Asker,
    ) -> Principal | Challenge:
        exchange: scram.ScramExchange | None = request.exchange
        if exchange is None:
            verifiers = await self._prepared()
            exchange = scram.ScramExchange(lambda name: self._verifier(name, verifiers))
            if not request.data:  # the client leaves the first word to us (RFC 4422, 5.1)
                return Challenge(data=b"", exchange=exchange)
        answer = exchange.step(request.data)
        if not exchange.over:
            return Challenge(data=answer, exchange=exchange)
        if request.username not in {"", exchange.name}:
            raise _refused()
        if self._verifier(exchange.name, await self._prepared()) != exchange.verifier:  # changed meanwhile
            raise _refused()
        principal = self._principal(Claim(exchange.name))
        return _with(principal, final=answer)

    # ---- lookups by name

    def _hash_of(self, name: str) -> str | None:
        """Returns the hash that passwords of a name are compared with."""
        user = self._config.users.get(name)
        if user is not None:
            return None if user.password_hash is None else user.password_hash.reveal()
        known = self._user(name)
        return None if known is None else known.password

    def _verifier(self, name: str, verifiers: Mapping[str, scram.Verifier]) -> scram.Verifier:
        """Returns SCRAM's verifier of a name, or a fake one that no client can satisfy or recognise."""
        found = verifiers.get(name)
        if found is None and name not in self._config.users and (known := self._user(name)) is not None:
            found = verifier_in(known.password)
        if found is not None:
            return found
        stored_key, server_key = self._unknown("stored", name), self._unknown("server", name)
        return scram.Verifier(scram.ITERATIONS, self._salt(name), stored_key, server_key)

    async def _prepared(self) -> Mapping[str, scram.Verifier]:
        """Returns the verifiers of the configuration's users, made when the first client wants to use one."""
        making = self._verifiers
        if making is None or (making.done() and making.exception() is not None):
            making = self._verifiers = asyncio.ensure_future(self.passwords.work(self._derived))
        return await asyncio.shield(making)

    def _derived(self) -> Mapping[str, scram.Verifier]:
        scram.load_library()
        made: dict[str, scram.Verifier] = {}
        for name, user in self._config.users.items():
            if user.password_hash is not None:
                found = verifier_in(user.password_hash.reveal())
                if found is not None:
                    made[name] = found
            elif user.password is not None:
                try:
                    made[name] = scram.derive(user.password.reveal(), salt=self._salt(name))
                except ValueError as error:
                    log.warning("a user cannot use SCRAM", user=name, error=str(error))
        return made

    def _salt(self, name: str) -> bytes:
        return self._unknown("salt", name)[: scram.SALT_BYTES]

    def _unknown(self, what: str, name: str) -> bytes:
        """Returns secret bytes that depend on a name."""
        return hmac.digest(self._secret(SALTS), f"{what} {name}".encode(), "sha256")

    def _principal(self, claim: Claim) -> Principal:
        """Returns the principal of a proven claim: a name has its rights, however it was proven."""
        user = self._config.users.get(claim.name)
        known = self._user(claim.name) if user is None else None
        rights: Mapping[str, Any] = known.rights if known is not None else {}
        trusted = user.trusted_gateway if user is not None else rights.get(TRUSTED_GATEWAY) is True
        return Principal(
            name=claim.name,
            device=claim.device,
            trusted_gateway=trusted,
            rights=rights,
            expires_at_ms=claim.expires_at_ms,
        )

    def _vouched(self, principal: Principal, identity: str | None) -> Principal:
        """Adds a certificate's identity to a principal proven by other means. Raises `Refusal`."""
        if identity is None or identity == principal.name:
            return principal
        if self._tls.client_user_agrees:
            raise Refusal(Cause.UNAUTHENTICATED, "the certificate is in another name")
        return _with(principal, device=identity) if principal.device == principal.name else principal


def same_principal(one: Principal, other: Principal) -> bool:
    """Returns whether two have the same name and device; their permissions and their expiry may differ."""
    return (one.name, one.device) == (other.name, other.device)


def _with(principal: Principal, **changed: Any) -> Principal:
    return msgspec.structs.replace(principal, **changed)


def _admits(rule: str, *, loopback: bool) -> bool:
    return rule == "everyone" or (rule == "loopback" and loopback)


def _may_be_token(password: bytes) -> bool:
    """Returns whether this is meant as a token: three parts, the first of them JSON in base64url (RFC 7515, 3.1)."""
    return password.startswith(b"eyJ") and password.count(b".") == 2


def _refused() -> Refusal:
    return Refusal(Cause.UNAUTHENTICATED, "wrong name or password")


def tokens_of(config: AuthConfig) -> "Tokens | None":
    """Returns the verifier of tokens, where there are keys for it. Raises `ConfigError`."""
    if not config.jwt.enabled:
        return None
    from gateway.security.tokens import Tokens  # noqa: PLC0415 - 10 MB, which most gateways never need

    return Tokens(config.jwt)


_Mechanism = Callable[[Authenticator, Authenticate, _Asker], Awaitable[Principal | Challenge]]
_MECHANISMS: dict[str, _Mechanism] = {
    "password": Authenticator._by_password,  # noqa: SLF001 - this class's own table
    "bearer": Authenticator._by_bearer,  # noqa: SLF001
    "external": Authenticator._by_certificate,  # noqa: SLF001
    scram.MECHANISM: Authenticator._by_scram,  # noqa: SLF001
}
