"""Conditions on a revision, which stands for a representation as its entity tag (RFC 9110, 13.1.1 and 13.1.2)."""

import re
from typing import Final

from adapters.http.wire.request import HttpRequest
from gateway.port.kv import Match
from store.api.keys import EXISTS

REVISION_MAX: Final = (1 << 63) - 1  # that there can be
_IF_MATCH, _IF_NONE_MATCH = b"if-match", b"if-none-match"
_OURS: Final = re.compile('"[1-9][0-9]{0,18}"')  # tags are compared by characters (8.8.3.2): "07" is not "7"


def tag_of(revision: int) -> bytes:
    """Returns the entity tag of a revision."""
    return b'"%d"' % revision


def required(request: HttpRequest) -> Match:
    """Returns the condition of If-Match. A tag that no revision of ours can have matches nothing."""
    any_of = _tags(request, _IF_MATCH)
    if request.get(_IF_MATCH) is not None and not any_of:
        any_of = (REVISION_MAX,)
    return Match(any_of=any_of)


def unwanted(request: HttpRequest) -> Match:
    """Returns the condition of If-None-Match, as a GET has it: where it does not hold the answer is 304."""
    return Match(none_of=_tags(request, _IF_NONE_MATCH))


def match_of(request: HttpRequest) -> Match:
    """Returns the condition of a change."""
    any_of, none_of = required(request).any_of, unwanted(request).none_of
    if none_of == (EXISTS,) and not any_of:
        return Match(any_of=(0,))
    return Match(any_of=any_of, none_of=none_of)


def _tags(request: HttpRequest, name: bytes) -> tuple[int, ...]:
    """Returns the revisions that a header's entity tags stand for; weak ones only where they are compared weakly."""
    text = request.get(name)
    if text is None:
        return ()
    if text == "*":
        return (EXISTS,)
    found: list[int] = []
    for item in text.split(","):
        tag = item.strip()
        if name == _IF_NONE_MATCH:
            tag = tag.removeprefix("W/")
        if _OURS.fullmatch(tag) and (revision := int(tag[1:-1])) <= REVISION_MAX:
            found.append(revision)
    return tuple(found)
