"""The way from topics of an upstream to addresses of ours: filters with a template each.

In a template, `{topic}` is the upstream's topic, `{1}` the level, or with `#` the levels, that the filter's first
wildcard stands for, `{2}` the second one's, and `{bridge}` the bridge's name. So `factory/+/state/#` with
`plant7/{1}/{2}` takes `factory/press/state/oil/temp` to `plant7/press/oil/temp`. Where `#` stands for no level, the
slash before it goes with it.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from gateway.domain.errors import Refusal
from gateway.domain.filters import MANY, ONE, check_filter, is_filter
from gateway.port.bridge import Destination

SHARE = "$share/"

_BLANK = re.compile(r"\{([^{}]*)\}")


class BridgedFilter(NamedTuple):
    """A filter, and the templates for the messages that it matches."""

    pattern: str
    qos: int
    to: str
    device: str

    @property
    def matched(self) -> str:
        """The filter that topics are matched by: the part behind `$share/{group}/`."""
        return self.pattern.split("/", 2)[2] if self.pattern.startswith(SHARE) else self.pattern


class DestinationMap:
    """The addresses that the messages of one bridge go to."""

    def __init__(self, bridge: str, subscriptions: Sequence[BridgedFilter]) -> None:
        self._bridge = bridge
        self._subscriptions = [(one.matched.split("/"), one) for one in subscriptions]

    def __call__(self, topic: str) -> Destination | None:
        """Returns the place of a topic's messages; None when no filter matches it."""
        levels = topic.split("/")
        for pattern, one in self._subscriptions:
            found = captured(pattern, levels)
            if found is not None:
                values = {"topic": topic, "bridge": self._bridge, **numbered(found)}
                return Destination(filled(one.to, values), filled(one.device, values))
        return None

    @staticmethod
    def mistakes(bridge: str, one: BridgedFilter) -> Iterator[tuple[str, str]]:
        """Yields the mistakes of a subscription: `filter`, `to` or `device`, and a remedy."""
        try:
            if one.pattern.startswith(SHARE):
                levels = one.pattern.split("/", 2)
                if len(levels) < 3 or not levels[1] or is_filter(levels[1]):
                    yield "filter", "shares nothing; write $share/group/filter"
                    return
            check_filter(one.matched)
        except Refusal as refusal:
            yield "filter", f"{refusal}; write a topic filter"
            return
        known = known_of(one.matched, "topic", "bridge")
        yield from template_mistakes("to", one.to, known)
        yield from template_mistakes("device", one.device, known)
        yield from address_mistakes("to", one.to)


def known_of(pattern: str, *names: str) -> set[str]:
    """Returns the names of the blanks that a template of a filter may have."""
    wildcards = sum(level in {ONE, MANY} for level in pattern.split("/"))
    return {*names, *(str(n) for n in range(1, wildcards + 1))}


def template_mistakes(key: str, template: str, known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields the mistakes of a template's blanks: the key, and a remedy."""
    unknown = [name for name in _BLANK.findall(template) if name not in known]
    if unknown:
        yield key, f"{{{unknown[0]}}} stands for nothing; write {', '.join(sorted(f'{{{n}}}' for n in known))}"
    elif any(sign in _BLANK.sub("", template) for sign in "{}"):
        yield key, "has a brace that is not closed, or not opened; write {topic}"


def address_mistakes(key: str, template: str) -> Iterator[tuple[str, str]]:
    """Yields the mistakes of a template that makes an address of ours."""
    if template.startswith("$"):
        yield key, "begins with $, which is reserved; write another first level"
    elif is_filter(_BLANK.sub("", template)) or "\0" in template:
        yield key, "has a wildcard, which no address may; write {1} for the level that the filter's matches"


def numbered(found: Sequence[str | None]) -> dict[str, str | None]:
    """Returns the values of the blanks {1}, {2} and so on."""
    return {str(number): value for number, value in enumerate(found, 1)}


def captured(pattern: Sequence[str], topic: Sequence[str]) -> list[str | None] | None:
    """Returns the parts of a topic that a filter's wildcards match, both as levels; None when it does not match.

    The last one is None when `#` stands for no level.
    """
    if pattern[0] in {ONE, MANY} and topic[0].startswith("$"):
        return None
    found: list[str | None] = []
    for i, level in enumerate(pattern):
        if level == MANY:
            return [*found, "/".join(topic[i:]) if i < len(topic) else None]
        if i >= len(topic) or level not in {ONE, topic[i]}:
            return None
        if level == ONE:
            found.append(topic[i])
    return found if len(pattern) == len(topic) else None


def filled(template: str, values: Mapping[str, str | None], *, separator: str = "/") -> str:
    """Returns a template with its blanks filled in; one that has no value is left out, with the separator before it."""
    made = ""
    end = 0
    for blank in _BLANK.finditer(template):
        made += template[end : blank.start()]
        end = blank.end()
        value = values.get(blank[1])
        made = made.removesuffix(separator) if value is None else made + value
    return made + template[end:]
