"""The list of addresses as web links (RFC 6690)."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from adapters.coap.codec.formats import LINK_FORMAT
from adapters.coap.messages.request import ROOTS, SAFE
from gateway.domain.address import escape_level, unescape_level

DATA_TYPE = "core.ps.data"  # resource types of the CoAP publish-subscribe draft
COLLECTION_TYPE = "core.ps.coll"
TOPIC_TYPE = "core.ps.conf"
_CUT_SHORT = re.compile("%[0-9A-Fa-f]?$")  # the beginning of a percent-encoded byte


class Filter(NamedTuple):
    """One Uri-Query item of a request for links: `name` has to be `text`, or begin with it."""

    name: str
    text: str
    begins: bool


def read_filter(query: Sequence[str]) -> list[Filter]:
    """Returns the items of a query; `*` at the end stands for anything (RFC 6690, 4.1)."""
    filters = []
    for item in query:
        name, _, text = item.partition("=")
        begins = text.endswith("*")
        filters.append(Filter(name, text[:-1] if begins else text, begins))
    return filters


def _holds(filters: Iterable[Filter], attributes: dict[str, str]) -> bool:
    for name, text, begins in filters:
        values = [attributes[name]] if name == "href" else attributes.get(name, "").split()
        if not any(value.startswith(text) if begins else value == text for value in values):
            return False
    return True


def address_prefix(filters: Sequence[Filter]) -> str:
    """Returns the common prefix of all addresses listed, as far as a filter by `href` gives one."""
    for name, text, begins in filters:
        if name == "href":
            for root in ROOTS:
                if text.startswith(f"/{root}/"):
                    path = _CUT_SHORT.sub("", text) if begins else text
                    return "/".join([escape_level(_text(part)) for part in path.split("/")[2:]])
    return ""


def _text(part: str) -> str:
    """Returns the text of a path's segment, without a character that is cut short."""
    return unquote_to_bytes(part).decode("utf-8", "ignore")


def link_list(addresses: Iterable[str], filters: Sequence[Filter], *, root: str) -> str:
    """Returns links to addresses below a root, or with "" to the roots themselves and all addresses below the first."""
    below = root or ROOTS[0]
    entries = []
    if not root:
        entries = [{"href": f"/{name}", "rt": COLLECTION_TYPE, "ct": str(LINK_FORMAT)} for name in ROOTS]
    for address in addresses:
        path = "/".join([quote(unescape_level(level), safe=SAFE) for level in address.split("/")])
        entries.append({"href": f"/{below}/{path}", "rt": DATA_TYPE})
    return ",".join([_link(entry) for entry in entries if _holds(filters, entry)])


def topic_links(paths: Iterable[str], filters: Sequence[Filter]) -> str:
    """Returns links to topic resources."""
    entries = [{"href": path, "rt": TOPIC_TYPE} for path in paths]
    return ",".join([_link(entry) for entry in entries if _holds(filters, entry)])


def _link(attributes: dict[str, str]) -> str:
    """Returns one link; numbers stand without quotation marks."""
    text = f"<{attributes['href']}>"
    for name, value in attributes.items():
        if name != "href":
            text += f";{name}={value}" if value.isdigit() else f';{name}="{value}"'
    return text
