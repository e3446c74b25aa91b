"""The context attributes of an event (CloudEvents 1.0.2, 3), and how they name an address."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias
from urllib.parse import quote

from gateway.domain.address import address_of_subject, check_address
from gateway.domain.errors import Cause, Refusal

ADDRESS: Final = "headgateaddress"  # the address of an event that names another one
PROPERTIES: Final = "headgateproperties"  # properties that no attribute says: a JSON array of names and texts
OMITTED: Final = "headgateomitted"  # how many properties that text had no room for
OURS: Final = frozenset({ADDRESS, PROPERTIES, OMITTED})  # attributes that the gateway alone sets
Route: TypeAlias = Callable[[Mapping[str, str]], str | None]  # context attributes to an address, or None: the default

SPECVERSION: Final = "1.0"
CORE: Final = frozenset(
    {"id", "source", "specversion", "type", "datacontenttype", "dataschema", "subject", "time", "data"}
)
ATTRIBUTES_MAX: Final = 1_000  # of one event: as many as a request may have header fields
WRITTEN_MAX: Final = 936  # of one event that the gateway adds properties to: bindings add fields of their own
_EXTENSIONS: Final = {"dataref": "is not a URI-reference (RFC 3986)", "sequence": "must not be empty"}
_REQUIRED: Final = ("specversion", "id", "source", "type")
_NAME = re.compile("[a-z0-9]+")
_PLANE_ENDS = "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000))
_FORBIDDEN = re.compile(f"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_PLANE_ENDS}]")  # CloudEvents 1.0.2, 2.4
# A URI by the grammar of RFC 3986 (3, 4.1), without going back: a text may be as long as a message.
_PLAIN = r"\w\-.~!$&'()*+,;="  # unreserved, and delimiters within the parts
_ESCAPED = "%[0-9A-Fa-f]{2}"
_SCHEME = "[A-Za-z][A-Za-z0-9+.-]*+:"
_HOST = rf"(?:\[[{_PLAIN}:]++\]|(?:[{_PLAIN}]++|{_ESCAPED})*+)"
_AUTHORITY = rf"(?>(?:[{_PLAIN}:]++|{_ESCAPED})*+@)?{_HOST}(?::\d*+)?"
_SEGMENTS = rf"(?:[{_PLAIN}:@/]++|{_ESCAPED})*+"
_QUERY = rf"(?:[{_PLAIN}:@/?]++|{_ESCAPED})*+"
_BEHIND = rf"(?://{_AUTHORITY}(?=[/?#]|\Z){_SEGMENTS}|(?!//){_SEGMENTS})(?:\?{_QUERY})?(?:\#{_QUERY})?"
_ABSOLUTE = re.compile(f"{_SCHEME}{_BEHIND}", re.ASCII)  # RFC 3986, 3: a URI, which may have a fragment
_REFERENCE = re.compile(rf"(?:{_SCHEME}|(?![^/?#:]*+:)){_BEHIND}", re.ASCII)  # RFC 3986, 4.1
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+*'`|~%-]+/[\w!#$&^.+*'`|~%-]+\s*(?:;.*)?", re.ASCII)

# One step of reversible escaping, as `gateway.domain.address` does it: "+" is "%2B", the text "%2B" is "%252B".
_INTO_LEVEL = re.compile("[/+#]|%((?:25)*)(2F|2B|23)")
_CODES = {"/": "2F", "+": "2B", "#": "23"}


class AttributeRefusal(Refusal):
    """An attribute is malformed; the detail begins with its name."""

    def __init__(self, attribute: str, why: str) -> None:
        super().__init__(Cause.MALFORMED, f"{attribute}: {why}")
        self.attribute = attribute


malformed = AttributeRefusal


def is_name(name: str) -> bool:
    """Returns whether an attribute may be called so: lower-case letters and digits (CloudEvents 1.0.2, 3.1)."""
    return _NAME.fullmatch(name) is not None


def says_events(content_type: str | None) -> bool:
    """Returns whether a content type says that the body is an event, or a batch of them, in any format.

    By these first letters a receiver tells structured and batched mode from binary mode (HTTP binding 1.0.2, 3).
    """
    return content_type is not None and content_type.strip().lower().startswith("application/cloudevents")


def split(pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """Returns attributes, and the pairs that are none: those with a name no attribute has, and repeats.

    For protocols that carry attributes among properties of other kinds, such as MQTT 5's user properties.
    """
    attributes: dict[str, str] = {}
    others: list[tuple[str, str]] = []
    for name, value in pairs:
        if name in attributes or not is_name(name):
            others.append((name, value))
        else:
            attributes[name] = value
    return attributes, tuple(others)


def check_count(count: int) -> None:
    """Raises `Refusal` (TOO_LARGE) for too many attributes: each costs whoever reads the event."""
    if count > ATTRIBUTES_MAX:
        raise Refusal(Cause.TOO_LARGE, f"an event has at most {ATTRIBUTES_MAX} attributes")


def check(attributes: Mapping[str, str]) -> None:
    """Raises `Refusal` (MALFORMED, TOO_LARGE) unless these are the context attributes of a CloudEvents 1.0 event."""
    check_count(len(attributes))
    for name in _REQUIRED:
        if not attributes.get(name):
            raise malformed(name, "is required" if name not in attributes else "must not be empty")
    if attributes["specversion"] != SPECVERSION:
        raise malformed("specversion", f"{attributes['specversion'][:16]!r} is not supported, {SPECVERSION!r} is")
    names, values = "".join(attributes), "".join(attributes.values())
    if "" in attributes or _NAME.fullmatch(names) is None or not (values.isascii() and values.isprintable()):
        _check_each(attributes)
    if _REFERENCE.fullmatch(attributes["source"]) is None:
        raise malformed("source", "is not a URI-reference (RFC 3986)")
    if "data" in attributes:
        raise malformed("data", "is no context attribute")
    if attributes.get("subject") == "":
        raise malformed("subject", "must not be empty")
    schema = attributes.get("dataschema")
    if schema is not None and _ABSOLUTE.fullmatch(schema) is None:
        raise malformed("dataschema", "is not an absolute URI (RFC 3986)")
    for name, wrong in _EXTENSIONS.items():
        if name in attributes and not may_be(name, attributes[name]):
            raise malformed(name, wrong)
    media_type = attributes.get("datacontenttype")
    if media_type is not None and not is_media_type(media_type):
        raise malformed("datacontenttype", "is not a media type (RFC 2046)")


def may_be(name: str, text: str) -> bool:
    """Returns whether an extension may have this text, which has no forbidden characters."""
    return name not in _EXTENSIONS or (text != "" and (name != "dataref" or _REFERENCE.fullmatch(text) is not None))


def is_media_type(text: str) -> bool:
    """Returns whether a text may be `datacontenttype` (RFC 2046)."""
    return _MEDIA_TYPE.fullmatch(text) is not None and clean(text) == text


def _check_each(attributes: Mapping[str, str]) -> None:
    for name, value in attributes.items():
        if _NAME.fullmatch(name) is None:
            raise malformed(name[:64] or "''", "an attribute's name is lower-case letters and digits")
        if (found := _FORBIDDEN.search(value)) is not None:
            raise malformed(name, f"holds U+{ord(found[0]):04X}, which no attribute may")


def _escape(match: re.Match[str]) -> str:
    plain = match[0]
    return f"%{_CODES[plain]}" if plain in _CODES else f"%25{match[1]}{match[2]}"


def escape_level(text: str, *, whole: bool = False) -> str:
    """Returns a text as one level of an address; with `whole`, as an address, whose levels `/` divides."""
    return address_of_subject(text) if whole else _INTO_LEVEL.sub(_escape, text)


def address_of(attributes: Mapping[str, str], route: Route | None = None) -> str:
    """Returns an event's address: that of the route rule, else its subject, else `events/{type}`.

    Characters that an address may not hold are escaped: `+` is `%2B`, `#` is `%23` and, within the type, `/` is `%2F`;
    a text that looks escaped already is escaped once more, so that no two subjects share an address. Raises `Refusal`
    (MALFORMED) for an address that is too long.
    """
    address = route(attributes) if route is not None else None
    if address is None:
        address = named_address(attributes.get("subject"), attributes["type"])
    return check_address(address)


def named_address(subject: str | None, kind: str) -> str:
    """Returns the address that an event itself names: its subject, else `events/{type}`."""
    return escape_level(subject, whole=True) if subject is not None else f"events/{escape_level(kind)}"


def clean(text: str) -> str:
    """Returns a text as an attribute's value: characters that none may hold are percent-encoded."""
    if text.isascii() and text.isprintable():
        return text
    return _FORBIDDEN.sub(lambda found: quote(found[0], errors="replace"), text)
