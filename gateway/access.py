"""Access: what a client may publish to, read, and manage. Rules in, answers out; nothing here waits or knows a socket.

Everything is an address, so that one language of filters covers all: messages are at their addresses (those for AMQP
exchanges at `$amqp/{exchange}/{routing key}`), named queues at `$queue/{name}`, exchanges at `$exchange/{name}`, keys
at `$kv/{namespace}/{key}`, consumer groups at `$group/{name}`. A leading wildcard does not match a `$`.

A deny wins over every allow; within one effect, order does not matter; where no rule speaks, the default counts. What
rules say for one client is put together once (`Rules.access`), and is None where nothing restricts it.

A placeholder never widens a rule. A value that could be more than one plain level (it holds `/`, `+`, `#` or U+0000, or
begins a level with `$`), or that there is none of, makes an allow match nothing. A deny then matches more: any level in
place of a value that there is none of, and below the levels in front of it all, where the value is not plain.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from gateway.access_filters import EVERYTHING, MANY, ONE, Levels, covers, levels_of, matches, meet, touches
from gateway.access_settings import ACTIONS, PLACEHOLDER, AccessConfig, Action, OwnAccess, Permission
from gateway.errors import Cause, Refusal
from gateway.message import Message

__all__ = ["NOTHING", "OPEN", "Access", "Badge", "Decision", "Identity", "Rules"]

REMEMBERED_COUNT_MAX = 1_024  # addresses of one client and action whose answer is remembered
REMEMBERED_CHARS_MAX = 256  # longer addresses are looked at each time: what is remembered is bounded in bytes too

_UNSOUND = re.compile("[/+#\0]")


class Identity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who asks: what rules can tell clients apart by."""

    name: str = ""  # "": nobody was authenticated
    client_id: str = ""
    device: str = ""
    protocol: str = ""


class Clause(NamedTuple):
    """One filter of a rule, for one client."""

    levels: Levels
    origin: str  # the rule, as its writer finds it again


class Terms(NamedTuple):
    """What is said of one action."""

    denies: tuple[Clause, ...]
    allows: tuple[Clause, ...]  # none where the default is to allow, for which they change nothing
    otherwise: bool


class Decision(NamedTuple):
    """An answer, and the rule that it comes from; "" for the default."""

    allowed: bool
    origin: str


def decide(terms: Terms, address: str) -> Decision:
    """What is said of an address."""
    levels = address.split("/")
    for clause in terms.denies:
        if matches(clause.levels, levels):
            return Decision(allowed=False, origin=clause.origin)
    for clause in terms.allows:
        if matches(clause.levels, levels):
            return Decision(allowed=True, origin=clause.origin)
    return Decision(allowed=terms.otherwise, origin="")


def _allowed(terms: Terms, address: str) -> bool:
    return decide(terms, address).allowed


class Access:
    """What one client may do, where something restricts it. It never changes; answers are remembered by address."""

    __slots__ = ("__weakref__", "_answers", "_terms")

    def __init__(self, terms: Sequence[Terms]) -> None:
        """`terms` are those of `ACTIONS`, in their order."""
        self._terms = dict(zip(ACTIONS, terms, strict=True))
        self._answers = {
            action: lru_cache(REMEMBERED_COUNT_MAX)(partial(_allowed, terms)) for action, terms in self._terms.items()
        }

    def may(self, action: Action, address: str) -> bool:
        """Whether an address may be published to, read or managed."""
        answer = self._answers[action]
        return answer(address) if len(address) <= REMEMBERED_CHARS_MAX else answer.__wrapped__(address)

    def reaches(self, action: Action, pattern: str) -> bool:
        """Whether an address that a filter matches may be used so. Several denies that only together leave none of
        them are not seen: then it is said that there are some.
        """
        terms, wanted = self._terms[action], levels_of(pattern)
        found = [wanted] if terms.otherwise else [meet(clause.levels, wanted) for clause in terms.allows]
        return any(one is not None and not any(covers(deny.levels, one) for deny in terms.denies) for one in found)

    def reaches_all(self, action: Action, pattern: str) -> bool:
        """Whether it is certain that every address may be used so that a filter matches; `#` may stand anywhere."""
        terms, wanted = self._terms[action], levels_of(pattern)
        if any(touches(deny.levels, wanted) for deny in terms.denies):
            return False
        return terms.otherwise or any(covers(clause.levels, wanted) for clause in terms.allows)

    def explain(self, action: Action, address: str) -> Decision:
        """The answer, and where it comes from."""
        return decide(self._terms[action], address)


_ALL_DENIED = Terms((Clause(EVERYTHING, "its user is gone"),), (), otherwise=False)
NOTHING: Final = Access([_ALL_DENIED] * len(ACTIONS))


class Rules:
    """The rules of a configuration, put together with a client's own."""

    def __init__(self, config: AccessConfig) -> None:
        self._config = config
        self._same: WeakValueDictionary[tuple[Terms, ...], Access] = WeakValueDictionary()

    def access(self, identity: Identity, own: OwnAccess | None = None) -> Access | None:
        """What a client may do; None where nothing restricts it. Clients of which the same is said share one."""
        terms = tuple([self._terms(identity, action, own) for action in ACTIONS])
        if all(one.otherwise and not one.denies for one in terms):
            return None
        access = self._same.get(terms)
        if access is None:
            access = self._same[terms] = Access(terms)
        return access

    def _terms(self, identity: Identity, action: Action, own: OwnAccess | None) -> Terms:
        said = [(origin, one) for origin, one in self._meant_for(identity, own) if one.names(action)]
        otherwise = self._config.default != "deny" and (own is None or own.otherwise == "allow")
        allows = () if otherwise else _clauses(said, "allow", identity)
        return Terms(_clauses(said, "deny", identity), allows, otherwise)

    def _meant_for(self, identity: Identity, own: OwnAccess | None) -> Iterator[tuple[str, Permission]]:
        for i, rule in enumerate(self._config.rules):
            if rule.is_meant_for(identity.name, identity.protocol):
                yield f"access.rules[{i}]", rule
        for i, one in enumerate(own.rules if own is not None else ()):
            yield f"rule {i} of user {identity.name}", one


def _clauses(said: Sequence[tuple[str, Permission]], effect: str, identity: Identity) -> tuple[Clause, ...]:
    found = [
        Clause(levels, origin)
        for origin, one in said
        if one.effect == effect
        for pattern in one.filters
        if (levels := expand(pattern, identity, deny=effect == "deny")) is not None
    ]
    return tuple(found)


def expand(pattern: str, identity: Identity, *, deny: bool) -> Levels | None:
    """A filter for one client; None where an allow matches nothing."""
    levels: list[str] = []
    for level in pattern.split("/"):
        names = PLACEHOLDER.findall(level)
        values = {name: _value(identity, name) for name in names}
        first = values[names[0]] if level.startswith("${") else ""
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
    value: str = identity.name if name == "username" else getattr(identity, name)
    return value


def _uncounted(_badge: "Badge", _action: Action, _address: str, _count: int) -> None:
    """Nobody wants to know."""


class Badge:
    """What a principal shows at every door: who it is, and what it may do by now.

    `access` is replaced when the rules of its user change; None is free passage. `on_denied` is told of everything that
    was refused: the badge, the action, an address or filter, and how many.
    """

    __slots__ = ("__weakref__", "_on_denied", "access", "identity")

    def __init__(
        self,
        identity: Identity,
        access: Access | None,
        on_denied: Callable[["Badge", Action, str, int], Any] = _uncounted,
    ) -> None:
        self.identity = identity
        self.access = access
        self._on_denied = on_denied

    def check(self, action: Action, address: str) -> None:
        """Raise `Refusal` (FORBIDDEN) unless an address may be used so."""
        if self.access is not None and not self.access.may(action, address):
            raise self.refusal(action, address)

    def check_filter(self, pattern: str) -> None:
        """Raise `Refusal` (FORBIDDEN) where nothing that a filter matches may be read."""
        if self.access is not None and not self.access.reaches("subscribe", pattern):
            raise self.refusal("subscribe", pattern)

    def check_all(self, action: Action, pattern: str) -> None:
        """Raise `Refusal` (FORBIDDEN) unless all that a filter matches may be used so."""
        if self.access is not None and not self.access.reaches_all(action, pattern):
            raise self.refusal(action, pattern)

    def refusal(self, action: Action, address: str, count: int = 1) -> Refusal:
        """What is said of something that is not allowed, and counted."""
        self._on_denied(self, action, address, count)
        return Refusal(Cause.FORBIDDEN, f"not allowed: to {action} {address[:REMEMBERED_CHARS_MAX]!r}")

    def refused(self, messages: Sequence[Message]) -> dict[int, Refusal]:
        """Those of some messages that may not be published, by index. Each address is looked at once."""
        access = self.access
        if access is None:
            return {}
        may = access.may
        denied = {address for address in {message.address for message in messages} if not may("publish", address)}
        if not denied:
            return {}
        found = [(index, message.address) for index, message in enumerate(messages) if message.address in denied]
        counts = dict.fromkeys(denied, 0)
        for _, address in found:
            counts[address] += 1
        refusals = {address: self.refusal("publish", address, count) for address, count in counts.items()}
        return {index: refusals[address] for index, address in found}

    def reads(self, address: str) -> bool:
        """Whether an address may be read, of something that is passed over in silence where not."""
        return self.access is None or self.access.may("subscribe", address)

    def readable(self, messages: Sequence[Message]) -> list[Message]:
        """Those of some messages that may be read. What may not is passed over in silence."""
        access = self.access
        if access is None:
            return list(messages)
        return [message for message in messages if access.may("subscribe", message.address)]


OPEN: Final = Badge(Identity(), None)  # of whom nobody has asked anything, and of this process itself
