"""Route rules: which address an event goes to, by its type and source, where the operator says so."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from adapters.cloudevents.attributes import Route, escape_level

_PLACE: Final = re.compile(r"\{([a-z0-9]+)\}")


class EventRoute(msgspec.Struct, frozen=True, kw_only=True):
    """One rule; it applies where both patterns match and the event has every attribute that its address names."""

    address: Annotated[
        str, Meta(min_length=1, description="such as orders/{type}/{partitionkey}: attributes stand in braces")
    ]
    type: Annotated[str, Meta(description='the event\'s type; "*" stands for any text')] = "*"
    source: Annotated[str, Meta(description='the event\'s source; "*" stands for any text')] = "*"


@lru_cache(maxsize=16)
def route_by(rules: tuple[EventRoute, ...]) -> Route | None:
    """Returns the address by the first rule that applies; None when there are no rules.

    Characters that a level of an address may not hold are escaped in an attribute's value, so that each fills one
    level; the subject alone may be several.
    """
    if not rules:
        return None
    compiled = [(_pattern(rule.type), _pattern(rule.source), rule.address) for rule in rules]

    def route(attributes: Mapping[str, str]) -> str | None:
        for type_, source, address in compiled:
            if type_.fullmatch(attributes["type"]) and source.fullmatch(attributes["source"]):
                filled = _fill(address, attributes)
                if filled is not None:
                    return filled
        return None

    return route


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)


def _fill(address: str, attributes: Mapping[str, str]) -> str | None:
    names = _PLACE.findall(address)
    if any(name not in attributes for name in names):
        return None
    return _PLACE.sub(lambda place: escape_level(attributes[place[1]], whole=place[1] == "subject"), address)
