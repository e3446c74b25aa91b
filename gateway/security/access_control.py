"""Access at work in one process: the permissions of each principal, and their change when a user's rights change.

The rules of the configuration stand until it is read again. Those of the cluster's users are metadata: when they
change, all permissions of that name are looked at again, and `changed` is called, so that cached rights are forgotten.
A user with rules of its own that is removed leaves connections behind: they may do nothing any more.
"""

from collections.abc import Callable
from weakref import WeakSet

import msgspec

from controller.api.client import ControllerClient, User
from gateway.domain.access import NOTHING, Access, AccessRules, Identity, Permissions
from gateway.domain.access_settings import ACCESS, AccessConfig, Action, own_access
from gateway.domain.principal import Principal
from gateway.ops.metrics import Metrics
from store.api.message import Message
from store.base import logs

LOG_INTERVAL_S = 1.0  # between two lines of refusals; those in between are counted

log = logs.get(__name__)


class AccessControl:
    """Gives permissions out, on the event loop. `clock` counts seconds, `changed` is called after a change."""

    def __init__(
        self,
        config: AccessConfig,
        controller: ControllerClient,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self._rules = AccessRules(config)
        self._controller = controller
        self._metrics = metrics
        self._clock = clock
        self._changed = changed
        self._permissions: WeakSet[Permissions] = WeakSet()  # all that are in use
        self._unauthenticated: dict[str, Principal] = {}  # by protocol
        self.has_own: Callable[[str], bool] = lambda _name: False  # of users of the configuration, who take precedence
        self._ruled, self._names = self._users_with_rules(), self._names_of_users()
        self._silent_until_s = 0.0
        self._unlogged = 0  # denials since the last line
        self._on_denied = self._denied  # one object for all permissions
        controller.watch(self._look_again)

    def permissions(self, principal: Principal, *, client_id: str = "", protocol: str = "") -> Permissions:
        """Returns the permissions of a principal that was let in."""
        name = principal.name
        identity = Identity(
            name=name,
            client_id=client_id,
            device=principal.device,
            protocol=protocol,
            ruled=name in self._ruled and not self.has_own(name),
            guest=principal.guest,
        )
        permissions = Permissions(identity, self._access(identity), self._on_denied)
        self._permissions.add(permissions)
        return permissions

    def permissions_of(self, identity: Identity) -> Permissions:
        """Returns the permissions of a client that was let in before, and may be gone; they change as others' do."""
        permissions = Permissions(identity, self._access(identity), self._on_denied)
        self._permissions.add(permissions)
        return permissions

    def owner(self, identity: Identity) -> Identity:
        """Returns the identity of a client for work that goes on without it: of the cluster's users, until they go."""
        registered = identity.name in self._names and not self.has_own(identity.name)
        return msgspec.structs.replace(identity, ruled=True) if registered else identity

    def unauthenticated(self, protocol: str) -> Principal:
        """Returns the principal of a connection that has not authenticated yet."""
        found = self._unauthenticated.get(protocol)
        if found is None:
            found = self._unauthenticated[protocol] = Principal(
                name="", permissions=self.permissions(Principal(name=""), protocol=protocol)
            )
        return found

    def reload(self, config: AccessConfig) -> None:
        """Applies the rules of a new configuration, in every protocol and to all who are connected."""
        self._rules = AccessRules(config)
        for permissions in self._permissions:
            permissions.access = self._access(permissions.identity)
        self._changed()

    def check_publisher(self, identity: Identity, message: Message) -> None:
        """Raises `Refusal` (FORBIDDEN) unless a publisher, who may be gone, may now publish a message."""
        Permissions(identity, self._access(identity), self._on_denied).check_message(message)

    def _access(self, identity: Identity) -> Access | None:
        user = self._ruled.get(identity.name)
        if user is None:
            if identity.ruled and self._controller.user(identity.name) is None:
                return NOTHING
            return self._rules.access(identity)
        try:
            return self._rules.access(identity, own_access(user.rights[ACCESS]))
        except ValueError as error:  # of a version to come
            log.error(
                "the stored access rules of a user are invalid: the user may do nothing",
                user=user.name,
                error=str(error),
            )
            return NOTHING

    def _names_of_users(self) -> frozenset[str]:
        return frozenset([user.name for user in self._controller.users()])

    def _users_with_rules(self) -> dict[str, User]:
        return {user.name: user for user in self._controller.users() if ACCESS in user.rights}

    def _look_again(self) -> None:
        """Applies changes of users, as the metadata has changed."""
        before, self._ruled = self._ruled, self._users_with_rules()
        there, self._names = self._names, self._names_of_users()
        if before == self._ruled and there == self._names:
            return
        names = {name for name in (*before, *self._ruled) if before.get(name) != self._ruled.get(name)}
        gone = {name for name in names - self._names if not self.has_own(name)}
        names |= there ^ self._names
        changed = before != self._ruled
        for permissions in self._permissions:
            if permissions.identity.name in names:
                if permissions.identity.name in gone:
                    permissions.identity = msgspec.structs.replace(permissions.identity, ruled=True)
                old, permissions.access = permissions.access, self._access(permissions.identity)
                changed = changed or permissions.access is not old
        if changed:
            self._changed()

    def _denied(self, permissions: Permissions, action: Action, address: str, count: int) -> None:
        """Counts refusals, and logs them, not too often."""
        who = permissions.identity
        self._metrics.access_denied(who.protocol, action).inc(count)
        now_s = self._clock()
        if now_s < self._silent_until_s:
            self._unlogged += count
            return
        unlogged, self._unlogged = self._unlogged, 0
        self._silent_until_s = now_s + LOG_INTERVAL_S
        log.warning(
            "access denied",
            action=action,
            address=address[:256],
            user=who.name,
            client=who.client_id,
            protocol=who.protocol,
            more=unlogged,
        )
