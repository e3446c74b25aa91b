"""Topics of the publish-subscribe draft: their properties, and where their resources are.

The topic resource of a name is at `/ps/$topic/{id}`, and its topic-data at `/ps/{address}`: the name is the address.
Sections are those of draft-ietf-core-coap-pubsub-21.
"""

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

from adapters.coap.codec.registry import BAD_REQUEST, INTERNAL_SERVER_ERROR
from adapters.coap.messages.request import SAFE, CoapRequest
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.topics import cbor
from gateway.domain.address import check_address, escape_level, unescape_level
from gateway.domain.errors import ProtocolError, Refusal

COLLECTION: Final = ("ps",)
TOPICS: Final = "$topic"  # the segment of topic resources
DATA_TYPE: Final = "core.ps.data"
NAME_BYTES_MAX: Final = 255
DATA_BYTES_MAX: Final = len("/ps/") + 3 * NAME_BYTES_MAX  # of the path of a name, each of whose bytes is escaped
NUMBER_MAX: Final = 0xFFFF_FFFF
FORMAT_MAX: Final = 0xFFFF  # a Content-Format (RFC 7252, 12.3)

# The keys of properties (section 4)
NAME, DATA, RESOURCE_TYPE, CONTENT_FORMAT, TOPIC_TYPE, EXPIRES, SUBSCRIBERS, OBSERVER_CHECK, INITIALIZE = range(9)
NAMES: Final = {
    NAME: "topic-name",
    DATA: "topic-data",
    RESOURCE_TYPE: "resource-type",
    CONTENT_FORMAT: "topic-content-format",
    TOPIC_TYPE: "topic-type",
    EXPIRES: "expiration-date",
    SUBSCRIBERS: "max-subscribers",
    OBSERVER_CHECK: "observer-check",
    INITIALIZE: "initialize",
}
_FIXED: Final = (NAME, DATA, RESOURCE_TYPE)  # that no update changes (2.5.3)
_KEPT: Final = (*_FIXED, CONTENT_FORMAT, TOPIC_TYPE, OBSERVER_CHECK)

Properties = dict[int, cbor.Value]


def wrong(text: str) -> ProtocolError:
    """Returns the error of a property that is none (2.4.3)."""
    return ProtocolError(BAD_REQUEST, text)


def malformed() -> ProtocolError:
    """Returns the error of a topic whose stored value is none."""
    return ProtocolError(INTERNAL_SERVER_ERROR, "the value that is stored for this topic is none")


class TopicRequested(Exception):
    """The request writes a topic resource, and publishes nothing by itself."""

    def __init__(self, request: CoapRequest, body: bytes) -> None:
        super().__init__()
        self.request = request
        self.body = body


class Topic(msgspec.Struct, frozen=True):
    """The properties of a topic that are kept, by their keys: those that an update cannot change, and others."""

    properties: Mapping[int, Any]

    @property
    def id(self) -> str:
        """Returns the last segment of the topic resource's path, and its key."""
        return topic_id(self.properties[NAME])

    @property
    def address(self) -> str:
        """Returns the address of the topic-data."""
        return data_address(self.properties[DATA])

    def encoded(self) -> bytes:
        """Returns the representation of the topic resource (2.2)."""
        return cbor.encode(dict(self.properties))


def topic_id(name: str) -> str:
    """Returns the id of a name: equal names have equal ids, so that a name is used once."""
    return blake2b(name.encode(), digest_size=8).hexdigest()


def decoded(data: bytes, settings: CoapOptions) -> Topic | None:
    """Returns a topic that was stored; None for a value that is none, as other protocols may store there."""
    try:
        found = cbor.decode(data)
    except cbor.CborError:
        return None
    if isinstance(found, dict) and all(key in found and _CHECKS[key](found[key], settings) for key in _FIXED):
        return Topic(found)
    return None


def is_collection(path: tuple[str, ...]) -> bool:
    """Returns whether a path is that of the topic collection."""
    return path == COLLECTION


def id_of(path: tuple[str, ...]) -> str | None:
    """Returns the id of the topic resource that a path is of; None for another path."""
    return path[2] if len(path) == 3 and path[:2] == (*COLLECTION, TOPICS) else None


def is_for_topics(path: tuple[str, ...], settings: CoapOptions) -> bool:
    """Returns whether a path is that of the topic collection or of a topic resource, where there are any."""
    return bool(settings.topics_namespace) and (is_collection(path) or id_of(path) is not None)


def path_of(id_: str) -> tuple[str, ...]:
    """Returns the path of a topic resource."""
    return (*COLLECTION, TOPICS, id_)


# ---- properties


def read_properties(payload: bytes, settings: CoapOptions) -> Properties:
    """Returns the properties in a payload. Raises `ProtocolError` (4.00) for one that is none, or is not offered."""
    try:
        found = cbor.decode(payload)
    except cbor.CborError as error:
        raise wrong(f"the properties are not read: {error}") from error
    if not isinstance(found, dict):
        raise wrong("the properties are no map")
    for key, value in found.items():
        check = _CHECKS.get(key)
        if check is None:
            raise wrong(f"{key} is the key of no property")
        if not check(value, settings):
            raise wrong(f"{NAMES[key]}: {_FAULTS.get(key, 'is no such value')}"[:120])
    return found


def kept(properties: Properties) -> Properties:
    """Returns properties without max-subscribers: a hint, of which a broker may store nothing (2.2.1)."""
    return {key: value for key, value in properties.items() if key != SUBSCRIBERS}


def created(properties: Properties) -> tuple[Topic, bytes | None]:
    """Returns a new topic, and the body that its topic-data begins with. Raises `ProtocolError` (4.00)."""
    for key in (NAME, RESOURCE_TYPE):
        if key not in properties:
            raise wrong(f"{NAMES[key]} is missing")
    initial = properties.pop(INITIALIZE, None)
    if initial is not None and CONTENT_FORMAT not in properties:
        raise wrong("initialize needs topic-content-format")
    name = properties[NAME]
    assert isinstance(name, str)
    properties.setdefault(DATA, _data_path(name))
    assert initial is None or isinstance(initial, bytes)
    return Topic(properties), initial


def replaced(topic: Topic, properties: Properties) -> Topic:
    """Returns a topic with these properties instead of its own (2.5.3). Raises `ProtocolError` (4.00)."""
    _check_fixed(topic, properties)
    return Topic({**{key: topic.properties[key] for key in _FIXED}, **properties})


def patched(topic: Topic, properties: Properties) -> Topic:
    """Returns a topic with some properties changed (2.5.4). Raises `ProtocolError` (4.00)."""
    _check_fixed(topic, properties)
    return Topic({**topic.properties, **properties})


def _check_fixed(topic: Topic, properties: Properties) -> None:
    for key, value in properties.items():
        if key == INITIALIZE:
            raise wrong("initialize is for a new topic")
        if key in _FIXED and value != topic.properties[key]:
            raise wrong(f"{NAMES[key]} does not change")


def matches(topic: Topic, properties: Properties) -> bool:
    """Returns whether a topic has each of these properties, with these values (2.4.2)."""
    return all(topic.properties.get(key) == value for key, value in properties.items())


def selected(topic: Topic, payload: bytes) -> bytes:
    """Returns the representation of the properties whose keys a payload names (2.5.2). Raises `ProtocolError`."""
    try:
        keys = cbor.decode(payload)
    except cbor.CborError as error:
        raise wrong(f"the keys are not read: {error}") from error
    if not isinstance(keys, list) or not all(isinstance(key, int) for key in keys):
        raise wrong("the keys of properties are an array of integers")
    return cbor.encode({key: value for key, value in topic.properties.items() if key in keys})


# ---- topic-data


def _data_path(name: str) -> str:
    levels = [unescape_level(level) for level in _address(name).split("/")]
    return "/" + "/".join([*COLLECTION, *[quote(level, safe=SAFE) for level in levels]])


def _address(name: str) -> str:
    """Returns the address of a name, each of whose levels may hold any text."""
    return "/".join([escape_level(level) for level in name.split("/")])


def data_address(path: str) -> str:
    """Returns the address of a topic-data path."""
    levels = path.split("/")[2:]
    return "/".join([escape_level(unquote_to_bytes(level).decode()) for level in levels])


def _is_address(address: str) -> bool:
    levels = address.split("/")
    if address.startswith("$") or "." in levels or ".." in levels:
        return False
    try:
        check_address(address)
    except Refusal:
        return False
    return True


def _is_name(value: cbor.Value, _settings: CoapOptions) -> bool:
    return isinstance(value, str) and 0 < len(value.encode()) <= NAME_BYTES_MAX and _is_address(_address(value))


def _is_data(value: cbor.Value, _settings: CoapOptions) -> bool:
    if not isinstance(value, str) or len(value.encode()) > DATA_BYTES_MAX:
        return False
    try:
        return value.startswith(("/ps/", "/t/")) and "?" not in value and _is_address(data_address(value))
    except UnicodeDecodeError:
        return False


def _number(most: int) -> Callable[[cbor.Value, CoapOptions], bool]:
    return lambda value, _settings: isinstance(value, int) and value <= most


def _is_checked(value: cbor.Value, settings: CoapOptions) -> bool:
    longest_s = -(-(settings.observe_confirm_ms + settings.observe_check_ms) // 1_000)
    return isinstance(value, int) and longest_s <= value <= NUMBER_MAX


_CHECKS: Final[Mapping[int, Callable[[cbor.Value, CoapOptions], bool]]] = {
    NAME: _is_name,
    DATA: _is_data,
    RESOURCE_TYPE: lambda value, _: value == DATA_TYPE,
    CONTENT_FORMAT: _number(FORMAT_MAX),
    TOPIC_TYPE: lambda value, _: isinstance(value, str) and 0 < len(value.encode()) <= NAME_BYTES_MAX,
    EXPIRES: lambda _value, _: False,
    SUBSCRIBERS: _number(NUMBER_MAX),
    OBSERVER_CHECK: _is_checked,
    INITIALIZE: lambda value, _: isinstance(value, bytes),
}
_FAULTS: Final = {
    NAME: "is no text of 1 to 255 bytes that can be an address",
    DATA: "is no path below /ps/ or /t/",
    RESOURCE_TYPE: f"is not {DATA_TYPE}",
    EXPIRES: "topics do not expire: give messages an expiry",
    OBSERVER_CHECK: "observers are not asked so often",
}
