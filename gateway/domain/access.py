"""Access: a client's rights to publish, read, and manage. Rules in, answers out; nothing here waits or knows a socket.

Everything is an address, so that one language of filters covers all: messages are at their addresses (those for AMQP
exchanges at `$amqp/{exchange}/{routing key}`), named queues at `$queue/{name}`, exchanges at `$exchange/{name}`, keys
at `$kv/{namespace}/{key}`, consumer groups at `$group/{name}`,
subscriptions with sinks at `$subscription/{owner}/{id}`. A leading wildcard does not match a `$`.

A deny wins over every allow; within one effect, order does not matter; where no rule speaks, the default counts. The
permissions of one client are put together once (`AccessRules.access`), and are None where nothing restricts it.

A placeholder never widens a rule. A value that could be more than one plain level (it holds `/`, `+`, `#` or U+0000, or
begins a level with `$`), or that there is none of, makes an allow match nothing. A deny then matches more: any level in
place of a value that there is none of, and below the levels in front of it all, where the value is not plain.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

import msgspec

from gateway.domain.access_filters import EVERYTHING, MANY, ONE, Levels, covers, levels_of, matches, meet, touches
from gateway.domain.access_names import NameClause, VhostPermission, names_of, reaches_everybodys
from gateway.domain.access_settings import ACTIONS, PLACEHOLDER, AccessConfig, Action, OwnAccess, Permission
from gateway.domain.errors import Cause, Refusal
from gateway.domain.named import denied_name
from store.api.message import Message

REMEMBERED_COUNT_MAX = 8_192  # addresses of one client and action whose answer is remembered
REMEMBERED_CHARS_MAX = 256  # longer addresses are decided each time: the cache is limited in bytes too

MEANT_COUNT_MAX = 4_096  # names whose rules are cached

_UNSOUND = re.compile("[/+#\0]")


class Denied(Refusal):
    """The refusal (FORBIDDEN) of an action on an address that a user has no right to."""

    def __init__(self, user: str, action: Action, address: str) -> None:
        super().__init__(Cause.FORBIDDEN, f"not allowed: to {action} {address[:REMEMBERED_CHARS_MAX]!r}")
        self.user = user
        self.action = action
        self.address = address


class Identity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The attributes of a client that access rules can tell clients apart by."""

    name: str = ""  # "": the client has not authenticated
    client_id: str = ""
    device: str = ""
    protocol: str = ""
    ruled: bool = (
        False  # a user with rules of its own, or work for one of the cluster: without its user nothing is allowed
    )
    guest: bool = False  # let in by the password that every guest has; no rule asks for it


class Clause(NamedTuple):
    """One filter of a rule, for one client."""

    levels: Levels
    origin: str  # the rule, as its writer finds it again


class ActionClauses(NamedTuple):
    """The clauses about one action."""

    denies: tuple[Clause, ...] = ()
    allows: tuple[Clause, ...] = ()  # none where the default is to allow, for which they change nothing
    names: tuple[NameClause, ...] = ()  # the same by the names of things; there are no denies by name


class ActionRules(NamedTuple):
    """All rules of one action for one client: those shared with others, its own, and the default."""

    shared: ActionClauses
    own: ActionClauses
    otherwise: bool

    @property
    def denies(self) -> Iterator[Clause]:
        """The denies."""
        return chain(self.shared.denies, self.own.denies)

    @property
    def allows(self) -> Iterator[Clause]:
        """The allows."""
        return chain(self.shared.allows, self.own.allows)


class _Answer(Protocol):
    """Says of an address whether, and remembers it."""

    __wrapped__: Callable[..., bool]  # the same without remembering

    def __call__(self, address: str, /) -> bool: ...


class Decision(NamedTuple):
    """An answer, and the rule that it comes from; "" for the default."""

    allowed: bool
    origin: str


def decide(saying: ActionRules, address: str) -> Decision:
    """Returns the decision about an address."""
    levels = address.split("/")
    for clause in saying.denies:
        if matches(clause.levels, levels):
            return Decision(allowed=False, origin=clause.origin)
    for clause in saying.allows:
        if matches(clause.levels, levels):
            return Decision(allowed=True, origin=clause.origin)
    for name in saying.own.names:
        if name.matches(levels):
            return Decision(allowed=True, origin=name.origin)
    return Decision(allowed=saying.otherwise, origin="")


def _allowed(saying: ActionRules, address: str) -> bool:
    return decide(saying, address).allowed


class Access:
    """The rights of one client that something restricts. It never changes; answers are remembered by address."""

    __slots__ = ("__weakref__", "_answers", "_by_action")

    def __init__(self, by_action: tuple[ActionRules, ...]) -> None:
        """Takes the rules by action: those of `ACTIONS`, in their order."""
        self._by_action = by_action
        self._answers: dict[Action, _Answer] = {}  # made when they are first asked for: most clients ask for few

    def may(self, action: Action, address: str) -> bool:
        """Returns whether an address may be published to, read or managed."""
        answer = self._answers.get(action) or self._remember(action)
        return answer(address) if len(address) <= REMEMBERED_CHARS_MAX else answer.__wrapped__(address)

    def _remember(self, action: Action) -> _Answer:
        remembered = lru_cache(REMEMBERED_COUNT_MAX)(partial(_allowed, self._rules_of(action)))
        self._answers[action] = remembered
        return remembered

    def _rules_of(self, action: Action) -> ActionRules:
        return self._by_action[ACTIONS.index(action)]

    def reaches(self, action: Action, pattern: str) -> bool:
        """Returns whether the action is allowed on at least one address that a filter matches.

        Several denies that only together leave none of them are not recognised: the answer is then True.
        """
        saying, wanted = self._rules_of(action), levels_of(pattern)
        found = [wanted] if saying.otherwise else [meet(clause.levels, wanted) for clause in saying.allows]
        found += [wanted for name in saying.own.names if name.meets(wanted)]
        return any(one is not None and not any(covers(deny.levels, one) for deny in saying.denies) for one in found)

    def reaches_all(self, action: Action, pattern: str) -> bool:
        """Returns whether every address that a filter matches is certainly allowed; `#` may stand anywhere."""
        saying, wanted = self._rules_of(action), levels_of(pattern)
        if any(touches(deny.levels, wanted) for deny in saying.denies):
            return False
        if saying.otherwise or any(covers(clause.levels, wanted) for clause in saying.allows):
            return True
        return any(name.covers(wanted) for name in saying.own.names)

    def explain(self, action: Action, address: str) -> Decision:
        """Returns the decision about an address, and the rule it comes from."""
        return decide(self._rules_of(action), address)


_ALL_DENIED = ActionRules(ActionClauses((Clause(EVERYTHING, "its user is gone"),)), ActionClauses(), otherwise=False)
NOTHING: Final = Access((_ALL_DENIED,) * len(ACTIONS))
_NO_TERMS = (ActionClauses(),) * len(ACTIONS)


class _ClientRules(NamedTuple):
    """The configured rules for some clients: those that are the same for all of them, and those with placeholders."""

    allowing: tuple[ActionClauses, ...]  # of `ACTIONS`, where the default is to allow
    denying: tuple[ActionClauses, ...]  # and where it is to deny
    placed: tuple[tuple[str, Permission], ...]


class AccessRules:
    """The rules of a configuration, put together with a client's own."""

    def __init__(self, config: AccessConfig) -> None:
        self._config = config
        self._meant: dict[
            tuple[int, ...], _ClientRules
        ] = {}  # by the rules' numbers; as many as there are kinds of clients
        self._numbers = lru_cache(MEANT_COUNT_MAX)(self._numbers_of)
        self._same: WeakValueDictionary[tuple[ActionRules, ...], Access] = WeakValueDictionary()

    def access(self, identity: Identity, own: OwnAccess | None = None) -> Access | None:
        """Returns the rights of a client; None where nothing restricts it. Clients with equal rules share one."""
        numbers = self._numbers(identity.name, identity.protocol)
        if not numbers and own is None and self._config.default != "deny":
            return None
        meant = self._meant.get(numbers) or self._learn(numbers)
        otherwise = self._config.default != "deny" and (own is None or own.otherwise == "allow")
        placed = list(meant.placed)
        if own is not None:
            placed += [(f"rule {i} of user {identity.name}", one) for i, one in enumerate(own.rules)]
        shared = meant.allowing if otherwise else meant.denying
        mine = _terms(placed, identity, otherwise=otherwise) if placed else _NO_TERMS
        if own is not None and own.vhosts and not otherwise:
            mine = _with_names(mine, own.vhosts, identity.name)
        by_action = tuple([ActionRules(terms, more, otherwise) for terms, more in zip(shared, mine, strict=True)])
        if otherwise and not any(one.shared.denies or one.own.denies for one in by_action):
            return None
        access = self._same.get(by_action)
        if access is None:
            access = self._same[by_action] = Access(by_action)
        return access

    def _numbers_of(self, name: str, protocol: str) -> tuple[int, ...]:
        return tuple([i for i, rule in enumerate(self._config.rules) if rule.is_meant_for(name, protocol)])

    def _learn(self, numbers: tuple[int, ...]) -> _ClientRules:
        said = [(f"access.rules[{i}]", self._config.rules[i]) for i in numbers]
        plain = [(origin, one) for origin, one in said if not _has_placeholders(one)]
        placed = [(origin, one) for origin, one in said if _has_placeholders(one)]
        nobody = Identity()
        meant = _ClientRules(
            _terms(plain, nobody, otherwise=True), _terms(plain, nobody, otherwise=False), tuple(placed)
        )
        self._meant[numbers] = meant
        return meant


def _with_names(
    terms: tuple[ActionClauses, ...], said: Sequence[VhostPermission], user: str
) -> tuple[ActionClauses, ...]:
    """Returns the terms of a client with its permissions by names."""
    found = []
    for action, one in zip(ACTIONS, terms, strict=True):
        allows = one.allows
        if reaches_everybodys(said, action):
            allows = (*allows, Clause((MANY,), f"amq.topic of user {user}"))
        found.append(one._replace(allows=allows, names=names_of(said, action, user)))
    return tuple(found)


def _has_placeholders(permission: Permission) -> bool:
    return any(PLACEHOLDER.search(pattern) for pattern in permission.filters)


def _terms(said: Sequence[tuple[str, Permission]], identity: Identity, *, otherwise: bool) -> tuple[ActionClauses, ...]:
    """Returns the terms of permissions for one client, of `ACTIONS` in their order."""
    clauses = [
        (one, Clause(levels, origin))
        for origin, one in said
        if one.effect == "deny" or not otherwise
        for pattern in one.filters
        if (levels := expand(pattern, identity, deny=one.effect == "deny")) is not None
    ]
    return tuple(
        [
            ActionClauses(
                tuple([clause for one, clause in clauses if one.effect == "deny" and one.names(action)]),
                tuple([clause for one, clause in clauses if one.effect == "allow" and one.names(action)]),
            )
            for action in ACTIONS
        ]
    )


def expand(pattern: str, identity: Identity, *, deny: bool) -> Levels | None:
    """Returns a filter for one client; None where an allow matches nothing."""
    if "${" not in pattern:
        return levels_of(pattern)
    levels: list[str] = []
    for level in pattern.split("/"):
        names = PLACEHOLDER.findall(level)
        values = {name: _value(identity, name) for name in names}
        first = values[names[0]] if PLACEHOLDER.match(level) else ""
        if any(_UNSOUND.search(value) for value in values.values()) or first.startswith("$"):
            if not deny:
                return None
            return (*levels, MANY) if levels else EVERYTHING
        if "" in values.values():
            if not deny:
                return None
            levels.append(ONE)
        else:
            levels.append(PLACEHOLDER.sub(lambda found: values[found[1]], level) if names else level)  # noqa: B023
    return tuple(levels)


def _value(identity: Identity, name: str) -> str:
    match name:
        case "username":
            return identity.name
        case "client_id":
            return identity.client_id
        case "device":
            return identity.device
        case _:  # no configuration has it
            return ""


def _uncounted(_permissions: "Permissions", _action: Action, _address: str, _count: int) -> None:
    """Counts nothing."""


class Permissions:
    """A principal's identity and its current rights, checked at every entry point.

    `access` is replaced when the rules of its user change; None restricts nothing. `on_denied` is called for every
    refusal, with the permissions, the action, an address or filter, and the count.
    """

    __slots__ = ("__weakref__", "_on_denied", "access", "identity")

    def __init__(
        self,
        identity: Identity,
        access: Access | None,
        on_denied: Callable[["Permissions", Action, str, int], Any] = _uncounted,
    ) -> None:
        self.identity = identity
        self.access = access
        self._on_denied = on_denied

    @property
    def matters(self) -> bool:
        """Returns whether it restricts anything, or may before `Fanout.restrict` is called: not without a name."""
        return self.access is not None or bool(self.identity.name)

    def check(self, action: Action, address: str) -> None:
        """Raises `Refusal` (FORBIDDEN) unless the action on an address is allowed."""
        if self.access is not None and not self.access.may(action, address):
            raise self.refusal(action, address)

    def check_filter(self, pattern: str) -> None:
        """Raises `Refusal` (FORBIDDEN) where nothing that a filter matches may be read."""
        if self.access is not None and not self.access.reaches("subscribe", pattern):
            raise self.refusal("subscribe", pattern)

    def check_all(self, action: Action, pattern: str) -> None:
        """Raises `Refusal` (FORBIDDEN) unless the action is allowed on all that a filter matches."""
        if self.access is not None and not self.access.reaches_all(action, pattern):
            raise self.refusal(action, pattern)

    def refusal(self, action: Action, address: str, count: int = 1) -> Refusal:
        """Counts a denied action and returns its refusal."""
        self._on_denied(self, action, address, count)
        return Denied(self.identity.name, action, address)

    def refused(self, messages: Sequence[Message]) -> dict[int, Refusal]:
        """Returns the refusals of messages that may not be published, by index. Checks each address once.

        The addresses that they name besides are checked too (`gateway.domain.named`).
        """
        access = self.access
        if access is None:
            return {}
        may = access.may
        denied = {address for address in {message.address for message in messages} if not may("publish", address)}
        found: dict[int, Refusal] = {}
        if denied:
            places = [(index, message.address) for index, message in enumerate(messages) if message.address in denied]
            counts = dict.fromkeys(denied, 0)
            for _, address in places:
                counts[address] += 1
            refusals = {address: self.refusal("publish", address, count) for address, count in counts.items()}
            found = {index: refusals[address] for index, address in places}
        allowed: set[tuple[int, str]] = set()  # plain events of a batch have the same `native`, the very object
        for index, message in enumerate(messages):
            native, reply_to = message.native, message.reply_to
            if (native is None and reply_to is None) or index in found:
                continue
            what = id(native), message.address
            if reply_to is None and what in allowed:
                continue
            named = denied_name(message, may)
            if named is not None:
                found[index] = self.refusal(*named)
            elif reply_to is None:
                allowed.add(what)
        return found

    def check_message(self, message: Message) -> None:
        """Raises `Refusal` (FORBIDDEN) unless a message may be published."""
        for refusal in self.refused((message,)).values():
            raise refusal

    def reads(self, address: str) -> bool:
        """Returns whether an address may be read; for messages that are skipped in silence where it may not."""
        return self.access is None or self.access.may("subscribe", address)

    def reads_all(self, patterns: Iterable[str]) -> bool:
        """Returns whether everything that some filters match may be read; for reads that skip the rest silently."""
        access = self.access
        return access is None or all(access.reaches_all("subscribe", pattern) for pattern in patterns)

    def readable(self, messages: Sequence[Message]) -> list[Message]:
        """Returns those of some messages that may be read. The others are skipped in silence."""
        access = self.access
        if access is None:
            return list(messages)
        return [message for message in messages if access.may("subscribe", message.address)]


OPEN: Final = Permissions(Identity(), None)  # of clients that need not authenticate, and of this process itself
