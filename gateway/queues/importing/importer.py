"""The import of RabbitMQ's definitions: each thing is there already, is made, or is refused with a sentence.

Nothing that is there is changed, but users, who get the password and the permissions of the file; so an import that is
repeated makes nothing. A dry run asks the same questions and makes nothing. Things that this import makes count for
those behind them.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from controller.api.client import ControllerClient, ControllerError, User
from controller.api.commands import SetUser
from gateway.domain.access_names import VhostPermission
from gateway.domain.access_settings import ACCESS, OwnAccess, own_access, rights_of
from gateway.domain.errors import Refusal
from gateway.domain.identity import check_user_name
from gateway.domain.vhosts import check_vhost, in_vhost, said
from gateway.ops.amqp_report import ImportReport, ImportStep
from gateway.port.queues import (
    BindExchange,
    BindQueue,
    DeclareExchange,
    DeclareQueue,
)
from gateway.queues.importing.definitions_file import (
    OPERATOR_POLICY,
    VHOST_LIMITS,
    BindingEntry,
    DefinitionsFile,
    ExchangeEntry,
    ParameterEntry,
    PolicyEntry,
    QueueEntry,
    UserEntry,
    operator_policies,
)
from gateway.queues.importing.taken_policies import taken_policy
from gateway.queues.leaving.policies import PolicyPlace, StoredPolicy
from gateway.queues.model.bindings import Binding, predeclared
from gateway.queues.operated.vhosts import NO_LIMITS, VhostLimits
from gateway.queues.topology.exchange_registry import (
    check_binding,
    check_new_exchange,
    check_same_exchange,
    exchange_of,
)
from gateway.queues.topology.lane_names import RESERVED
from gateway.queues.topology.registry import QueueRegistry, check_new_queue, check_same_queue
from gateway.queues.topology.settings_registry import check_limits, said_policy
from gateway.security.rabbitmq_hashes import rabbitmq_hash
from store.base.errors import StoreError

MADE, KEPT, PARTLY, REFUSED = "made", "kept", "partly", "refused"
GUEST = "guest"
_NOT_EXPORTED = "RabbitMQ does not export internal exchanges: declare it, and import the file again"


class _Operator:
    """The connection in whose name things are made. It consumes nothing."""

    id = 0
    gone = False
    principal = None

    def deliver(self, _deliveries: object, /) -> int:
        """Takes nothing."""
        return 0


class Importer:
    """One import. `configured` are the users of the configuration, which no import changes."""

    def __init__(
        self,
        registry: QueueRegistry,
        controller: ControllerClient,
        *,
        configured: Collection[str],
        dry_run: bool,
    ) -> None:
        self._registry = registry
        self._controller = controller
        self._policies = registry.policies
        self._configured = configured
        self._dry_run = dry_run
        self._steps: list[ImportStep] = []
        # The present definitions, and those that this import makes.
        self._vhosts = dict(registry.vhosts.names)
        self._exchanges = {one.name: one for one in registry.exchanges}
        self._queues = dict.fromkeys(registry.queues)

    async def run(self, file: DefinitionsFile) -> ImportReport:
        """Makes the file's definitions that are not there."""
        for vhost in file.vhosts:
            await self._step(f"vhost '{vhost.name}'", self._vhost(vhost.name))
        await self._take_policies(file)
        for exchange in file.exchanges:
            await self._step(f"exchange {_shown(exchange.vhost, exchange.name)}", self._exchange(exchange))
        for queue in file.queues:
            await self._step(f"queue {_shown(queue.vhost, queue.name)}", self._queue(queue))
        for binding in file.bindings:
            what = f"binding of {binding.destination_type} {_shown(binding.vhost, binding.destination)} to exchange "
            await self._step(f"{what}'{binding.source}' by '{binding.routing_key}'", self._binding(binding))
        await self._users(file)
        for one in file.parameters:
            if one.component == VHOST_LIMITS:
                await self._step(f"limits of vhost '{one.vhost}'", self._limits(one))
            elif one.component != OPERATOR_POLICY:
                why = f"there is no {one.component} here; [[bridges]] of the configuration read from other brokers"
                self._report(f"parameter '{one.name}' of {one.component}", REFUSED, why)
        for setting in file.global_parameters:
            self._report(f"global parameter '{setting.name}'", REFUSED, "nothing here has such a parameter")
        return ImportReport(steps=self._steps)

    def _report(self, what: str, outcome: str, why: str = "") -> None:
        self._steps.append(ImportStep(what=what, outcome=outcome, why=why))

    async def _step(self, what: str, work: Awaitable[bool], left: str = "") -> None:
        """Does one step, which returns whether anything had to be made; `left` names the part not taken over."""
        try:
            outcome = MADE if await work else KEPT
            self._report(what, PARTLY if left else outcome, left)
        except (Refusal, ValueError) as refused:
            self._report(what, REFUSED, refused.detail if isinstance(refused, Refusal) else str(refused))
        except (StoreError, ControllerError) as error:
            self._report(what, REFUSED, f"{error}; import the file again")

    async def _make(self, make: Callable[[], Awaitable[object]]) -> bool:
        if not self._dry_run:
            await make()
        return True

    # ---- topology

    async def _vhost(self, vhost: str) -> bool:
        if vhost in self._vhosts:
            return False
        check_vhost(vhost)
        await self._make(lambda: self._registry.make_vhost(vhost))
        self._vhosts[vhost] = None
        self._exchanges |= predeclared(vhost)
        return True

    async def _limits(self, entry: ParameterEntry) -> bool:
        self._check_vhost(entry.vhost)
        try:
            limits = msgspec.convert(entry.value, VhostLimits)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        check_limits(entry.vhost, limits)
        existing = self._registry.vhosts.limits(entry.vhost)
        if existing == limits:
            return False
        if existing != NO_LIMITS:
            raise ValueError("it has others; `headgate amqp set-vhost-limits` replaces them")
        return await self._make(lambda: self._registry.set_limits(entry.vhost, limits))

    def _check_vhost(self, vhost: str) -> None:
        if vhost not in self._vhosts:
            raise ValueError(f"there is no vhost '{vhost}'")

    async def _exchange(self, entry: ExchangeEntry) -> bool:
        self._check_vhost(entry.vhost)
        request = DeclareExchange(
            name=in_vhost(entry.vhost, entry.name),
            kind=entry.type,
            durable=entry.durable,
            auto_delete=entry.auto_delete,
            internal=entry.internal,
            arguments=entry.arguments,
        )
        wanted, existing = exchange_of(request), self._exchanges.get(request.name)
        if existing is not None:
            check_same_exchange(existing, wanted)
            return False
        check_new_exchange(request)
        await self._make(lambda: self._registry.declare_exchange(_Operator(), request))
        self._exchanges[request.name] = wanted
        return True

    async def _queue(self, entry: QueueEntry) -> bool:
        self._check_vhost(entry.vhost)
        name = in_vhost(entry.vhost, entry.name)
        request = DeclareQueue(
            name=name, durable=entry.durable, auto_delete=entry.auto_delete, arguments=dict(entry.arguments)
        )
        if (existing := self._registry.queues.get(name)) is not None:
            check_same_queue(existing, request)
            return False
        if not entry.name or entry.name.startswith(RESERVED):
            raise ValueError(f"names that begin with {RESERVED!r} are reserved")
        check_new_queue(request)
        await self._make(lambda: self._registry.declare_queue(_Operator(), request))
        self._queues[name] = None
        return True

    async def _binding(self, entry: BindingEntry) -> bool:
        self._check_vhost(entry.vhost)
        source, target = in_vhost(entry.vhost, entry.source), in_vhost(entry.vhost, entry.destination)
        exchange = self._exchanges.get(source)
        to_exchange = entry.destination_type == "exchange"
        if not entry.source and not to_exchange:
            return False  # every queue is bound to the default exchange
        if exchange is None:
            raise ValueError(f"there is no exchange {said(source)}; {_NOT_EXPORTED}")
        if target not in (self._exchanges if to_exchange else self._queues):
            hint = f"; {_NOT_EXPORTED}" if to_exchange else ""
            raise ValueError(f"there is no {entry.destination_type} {said(target)}{hint}")
        binding = Binding(exchange=source, routing_key=entry.routing_key, arguments=dict(entry.arguments))
        check_binding(exchange, binding)
        if binding.identity in {one.identity for one in self._bindings_of(target, to_exchange=to_exchange)}:
            return False
        key, arguments = entry.routing_key, dict(entry.arguments)
        if to_exchange:
            link = BindExchange(destination=target, source=source, routing_key=key, arguments=arguments)
            return await self._make(lambda: self._registry.bind_exchange(_Operator(), link))
        bind = BindQueue(queue=target, exchange=source, routing_key=key, arguments=arguments)
        return await self._make(lambda: self._registry.bind(_Operator(), bind))

    def _bindings_of(self, target: str, *, to_exchange: bool) -> Sequence[Binding]:
        if to_exchange:
            exchange = self._registry.exchange(target)
            return () if exchange is None else exchange.bindings
        queue = self._registry.queues.get(target)
        return () if queue is None else queue.definition.bindings

    # ---- policies

    async def _take_policies(self, file: DefinitionsFile) -> None:
        """Sets the policies that there are none of the same name of."""
        entries: list[tuple[PolicyEntry | ParameterEntry, bool]] = [(one, False) for one in file.policies]
        entries += [(one, True) for one in operator_policies(file)]
        for entry, operator in entries:
            place = PolicyPlace(entry.vhost, entry.name, operator)
            what = said_policy(place)
            if isinstance(entry, ParameterEntry):
                self._report(what, REFUSED, "it is not understood")
                continue
            try:
                policy, left = taken_policy(entry, operator=operator)
            except ValueError as error:
                self._report(what, REFUSED, str(error))
                continue
            await self._step(what, self._policy(policy), f"not taken over of it: {', '.join(left)}" if left else "")

    async def _policy(self, policy: StoredPolicy) -> bool:
        self._check_vhost(policy.policy.vhost)
        existing = self._policies.configured.get(policy.place) or self._policies.stored.get(policy.place)
        if existing == policy:
            return False
        if existing is not None:
            raise ValueError("there is another one of this name; `headgate amqp set-policy` replaces it")
        return await self._make(lambda: self._registry.set_policy(policy))

    # ---- users

    async def _users(self, file: DefinitionsFile) -> None:
        permissions: dict[str, list[VhostPermission]] = {}
        for one in file.permissions:
            rights = VhostPermission(vhost=one.vhost, configure=one.configure, write=one.write, read=one.read)
            permissions.setdefault(one.user, []).append(rights)
        for user in file.users:
            await self._step(f"user '{user.name}'", self._user(user, permissions.get(user.name, ())))
            if user.tags:
                tags = user.tags if isinstance(user.tags, str) else ", ".join(user.tags)
                self._report(
                    f"tags of user '{user.name}'", REFUSED, f"{tags}: the gateway has no users with such rights"
                )
            if user.limits:
                why = "no user here has limits of connections and channels; `headgate check-config --keys` lists limits"
                self._report(f"limits of user '{user.name}'", REFUSED, why)
        for name in permissions.keys() - {one.name for one in file.users}:
            self._report(f"permissions of user '{name}'", REFUSED, "the file does not define this user")
        for topic in file.topic_permissions:
            what = f"topic permissions of user '{topic.user}' for exchange {_shown(topic.vhost, topic.exchange)}"
            self._report(what, REFUSED, "rights by routing key are rules here: `headgate cluster users rules`")

    async def _user(self, entry: UserEntry, permissions: Iterable[VhostPermission]) -> bool:
        if entry.name == GUEST:
            raise ValueError("auth.guest of the configuration decides who is let in as guest")
        if entry.name in self._configured:
            raise ValueError("the configuration has a user of this name")
        check_user_name(entry.name)
        password = rabbitmq_hash(entry.hashing_algorithm, entry.password_hash) if entry.password_hash else ""
        access = own_access(rights_of(OwnAccess(otherwise="deny", vhosts=tuple(permissions))))
        rights: Mapping[str, Any] = {ACCESS: rights_of(access)}
        existing = self._controller.user(entry.name)
        if existing is not None and existing.password == password and dict(existing.rights) == rights:
            return False
        if existing is not None and not existing.password.startswith("$rabbitmq-"):
            raise ValueError("there is a user of this name with a password of its own; remove it first")
        user = User(name=entry.name, password=password, rights=rights)
        return await self._make(lambda: self._controller.do(SetUser(user=user)))


def _shown(vhost: str, name: str) -> str:
    return f"'{name}' in vhost '{vhost}'"
