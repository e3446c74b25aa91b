"""The policies and virtual hosts that the admin port of a process lists and changes."""

from collections import Counter
from collections.abc import Awaitable, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec

from controller.api.client import ControllerError, UnknownGroup
from controller.api.commands import SetUser
from gateway.domain.access_settings import ACCESS, own_access, rights_of, without_vhost
from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import check_vhost
from gateway.ops.amqp_report import (
    ADD_VHOST_PATH,
    CLEAR_LIMITS_PATH,
    CLEAR_POLICY_PATH,
    DELETE_VHOST_PATH,
    POLICIES_PATH,
    SET_LIMITS_PATH,
    SET_POLICY_PATH,
    VHOSTS_PATH,
    ClearPolicy,
    LimitVhost,
    ListingRows,
    PolicyReport,
    VhostOrder,
    VhostReport,
)
from gateway.port.operated import Described, OperatedAdapter
from gateway.queues.leaving.policies import PolicyConfig, PolicyPlace, StoredPolicy, check_stored
from gateway.queues.operated.vhosts import VhostLimits
from gateway.runtime.admin_rows import rows_of, wanted_rows
from gateway.runtime.connection import Connection
from gateway.runtime.hub import ProcessHub
from store.base import logs
from store.base.admin import ActionRefused, Operations
from store.base.errors import StoreError

T = TypeVar("T")

_STATUSES: Final = {
    Cause.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Cause.CONFLICT: HTTPStatus.CONFLICT,
    Cause.QUOTA: HTTPStatus.INSUFFICIENT_STORAGE,
    Cause.FORBIDDEN: HTTPStatus.CONFLICT,
    Cause.PRECONDITION: HTTPStatus.BAD_REQUEST,
}

log = logs.get(__name__)


class AmqpSettings:
    """The settings of AMQP that operators change while a process serves. All methods raise `ActionRefused`."""

    def __init__(self, hub: ProcessHub) -> None:
        self._hub = hub

    @property
    def operations(self) -> Operations:
        """Returns the listings and actions, by path."""
        actions = {
            SET_POLICY_PATH: self.set_policy,
            CLEAR_POLICY_PATH: self.clear_policy,
            ADD_VHOST_PATH: self.add_vhost,
            DELETE_VHOST_PATH: self.delete_vhost,
            SET_LIMITS_PATH: self.set_limits,
            CLEAR_LIMITS_PATH: self.clear_limits,
        }
        return Operations({POLICIES_PATH: self.policies, VHOSTS_PATH: self.vhosts}, actions)

    async def policies(self, query: Mapping[str, str]) -> ListingRows[PolicyReport]:
        """Returns the policies, by virtual host and name, those of operators behind the others."""
        policies = self._hub.queues.registry.policies
        every = {**policies.stored, **policies.configured}
        found = [_reported(one, configured=place in policies.configured) for place, one in every.items()]
        found.sort(key=lambda one: (one.vhost, one.operator, one.name))
        return rows_of(wanted_rows(found, query, lambda one: one.vhost), query)

    async def set_policy(self, body: bytes) -> PolicyReport:
        """Sets a policy, in the place of the one of its name."""
        said = read_order(body, PolicyReport)
        fields = {key: getattr(said, key) for key in PolicyConfig.__struct_fields__}
        try:
            policy = StoredPolicy(policy=msgspec.convert(fields, PolicyConfig), operator=said.operator)
            check_stored(policy)
        except ValueError as error:
            raise ActionRefused(HTTPStatus.BAD_REQUEST, str(error)) from error
        await done(self._hub.queues.registry.set_policy(policy))
        log.info("an operator has set a policy", **_place(policy.place))
        return _reported(policy, configured=False)

    async def clear_policy(self, body: bytes) -> ClearPolicy:
        """Removes a policy that was set at run time."""
        wanted = read_order(body, ClearPolicy)
        place = PolicyPlace(wanted.vhost, wanted.name, wanted.operator)
        await done(self._hub.queues.registry.clear_policy(place))
        log.info("an operator has removed a policy", **_place(place))
        return wanted

    # ---- virtual hosts

    async def vhosts(self, query: Mapping[str, str]) -> ListingRows[VhostReport]:
        """Returns the virtual hosts, by name."""
        known = self._hub.queues.registry.vhosts
        open_ones = [described(one) for one in self._hub.connections.values()]
        connections = Counter(one.vhost for one in open_ones if one is not None)
        found = []
        for vhost in sorted(known.names):
            limits = known.limits(vhost)
            found.append(
                VhostReport(
                    vhost=vhost,
                    queues=known.queues(vhost),
                    connections=connections[vhost],
                    max_connections=limits.max_connections,
                    max_queues=limits.max_queues,
                    configured=vhost in known.configured,
                )
            )
        return rows_of(wanted_rows(found, query, lambda one: one.vhost), query)

    async def add_vhost(self, body: bytes) -> VhostOrder:
        """Makes a virtual host, unless it is there."""
        wanted = read_order(body, VhostOrder)
        try:
            check_vhost(wanted.vhost)
        except ValueError as error:
            raise ActionRefused(HTTPStatus.BAD_REQUEST, str(error)) from error
        await done(self._hub.queues.registry.make_vhost(wanted.vhost))
        return wanted

    async def delete_vhost(self, body: bytes) -> VhostOrder:
        """Deletes a virtual host with its contents, and with the users' rights there."""
        wanted = read_order(body, VhostOrder)
        registry = self._hub.queues.registry
        await done(registry.check_deletable(wanted.vhost))
        await done(self._end_rights(wanted.vhost))  # before: one that is made by this name again begins without any
        log.info("an operator deletes a virtual host", vhost=wanted.vhost)
        await done(registry.delete_vhost(wanted.vhost))
        return wanted

    async def _end_rights(self, vhost: str) -> None:
        controller = self._hub.controller
        await controller.barrier()
        for user in controller.users():
            if ACCESS not in user.rights:
                continue
            try:
                own = own_access(user.rights[ACCESS])
            except ValueError as error:
                log.warning("the rights of a user are not understood, and stay", user=user.name, error=str(error))
                continue
            left = without_vhost(own, vhost)
            if left != own:
                rights = {**user.rights, ACCESS: rights_of(left)}
                await controller.do(SetUser(user=msgspec.structs.replace(user, rights=rights)))

    async def set_limits(self, body: bytes) -> LimitVhost:
        """Sets the limits of a virtual host."""
        wanted = read_order(body, LimitVhost)
        try:
            limits = msgspec.convert(wanted.limits, VhostLimits)
        except ValueError as error:
            raise ActionRefused(HTTPStatus.BAD_REQUEST, str(error)) from error
        await done(self._hub.queues.registry.set_limits(wanted.vhost, limits))
        return wanted

    async def clear_limits(self, body: bytes) -> VhostOrder:
        """Removes the limits of a virtual host."""
        wanted = read_order(body, VhostOrder)
        await done(self._hub.queues.registry.clear_limits(wanted.vhost))
        return wanted


def described(connection: object) -> Described | None:
    """Returns the state of a connection; None of one that is not operated, or not open."""
    adapter = connection.adapter if isinstance(connection, Connection) else None
    return adapter.describe() if isinstance(adapter, OperatedAdapter) else None


def read_order(body: bytes, kind: type[T]) -> T:
    """Parses an operator's request. Raises `ActionRefused`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except ValueError as error:
        raise ActionRefused(HTTPStatus.BAD_REQUEST, str(error)) from error


async def done(work: Awaitable[T]) -> T:
    """Awaits a change. Raises `ActionRefused` where it is refused or fails."""
    try:
        return await work
    except Refusal as refusal:
        status = _STATUSES.get(refusal.cause, HTTPStatus.SERVICE_UNAVAILABLE)
        raise ActionRefused(status, refusal.detail) from refusal
    except UnknownGroup as error:
        raise ActionRefused(HTTPStatus.NOT_FOUND, str(error)) from error
    except (StoreError, ControllerError) as error:
        raise ActionRefused(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error


def _reported(one: StoredPolicy, *, configured: bool) -> PolicyReport:
    fields: dict[str, Any] = {key: getattr(one.policy, key) for key in PolicyConfig.__struct_fields__}
    return PolicyReport(**fields, operator=one.operator, configured=configured)


def _place(place: PolicyPlace) -> dict[str, Any]:
    return {"policy": place.name, "vhost": place.vhost, "operator": place.operator}
