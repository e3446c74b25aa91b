"""The mapping from the options of a POST, PUT or DELETE to a message.

Uri-Path is the address, Content-Format the content type. Uri-Query items have these names; any other is a property of
the message, in order, repeats kept:

    id key type  text, as `Message` has it         qos          0, 1 or 2; unsaid: 1 when confirmable, else 0
    retain       true or false                     expiry       seconds until the message is worth nothing
    delay        seconds until it is delivered     time         ms since 1970, or an RFC 3339 timestamp
    reply        an address                        corr         correlation data, base64url
    traceparent  W3C Trace Context                 ct           the content type, whatever Content-Format says
"""

import binascii
import re
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import msgspec

from adapters.cloudevents import STRUCTURED_JSON, from_structured, parse_ms
from adapters.coap.codec.formats import JSON, media_type
from adapters.coap.codec.registry import BAD_REQUEST, METHOD_NOT_ALLOWED, UNSUPPORTED_CONTENT_FORMAT
from adapters.coap.messages.request import CoapRequest, Condition, resolve
from adapters.coap.messages.settings import CoapOptions
from gateway.domain.address import check_address, level_of
from gateway.domain.errors import ProtocolError, Refusal
from store.api.message import Message

PROTOCOL = "coap"
SECONDS_MAX = 0xFFFF_FFFF  # as MQTT's Message Expiry Interval
TIME_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999

_TRACEPARENT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_BASE64URL = re.compile("[A-Za-z0-9_-]*={0,2}")
_DIGITS = re.compile("[0-9]{1,15}")
# These fields differ from message to message: a plan with one of them is not worth remembering.
_FLEETING = frozenset({"id", "time", "corr", "traceparent"})
_SAID_BY_EVENT = {"id": "id", "type": "type", "time_ms": "time"}


class MessagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a message that the options of a POST or PUT say, whatever its body.

    `fields` are fields of `Message` by name, as they are; a plan without any is `plain`.
    """

    address: str
    device: str  # "": the peer's host
    principal: str | None = ""  # as `Message` has it
    content_type: str | None = None
    qos: int | None = None  # None: as the request is confirmable or not
    expiry_ms: int | None = None
    delay_ms: int | None = None
    fields: dict[str, Any] = {}
    plain: bool = False  # it has an address, a device and a content type alone
    lasting: bool = False  # the same options may well come again
    event: bool = False  # the body is a CloudEvent in structured JSON
    condition: Condition | None = None
    silence: int = 0  # as `CoapRequest` has it

    def message(self, body: bytes, *, confirmable: bool, host: str, now_ms: int) -> Message:
        """Returns the message of one request. Raises `Refusal` (MALFORMED) for a CloudEvent that is none."""
        fields = dict(self.fields)
        fields["qos"] = int(confirmable) if self.qos is None else self.qos
        if self.expiry_ms is not None:
            fields["expires_at_ms"] = now_ms + self.expiry_ms
        if self.delay_ms:
            fields["deliver_at_ms"] = now_ms + self.delay_ms
        device = self.device or host
        if self.event:
            return from_structured(
                body,
                now_ms=now_ms,
                protocol=PROTOCOL,
                device=device,
                principal=self.principal,
                address=self.address,
                **fields,
            )
        fields.setdefault("time_ms", now_ms)
        return Message(
            address=self.address,
            body=body,
            protocol=PROTOCOL,
            device=device,
            principal=self.principal,
            content_type=self.content_type,
            **fields,
        )

    def deletion(self, *, confirmable: bool, host: str, now_ms: int) -> Message:
        """Returns the message of a DELETE: an empty one whose time to live is over takes the last value's place.

        Being retained and empty, it takes away the retained message, too (MQTT 5.0, 3.3.1.3).
        """
        return Message(
            address=self.address,
            time_ms=now_ms,
            protocol=PROTOCOL,
            device=self.device or host,
            principal=self.principal,
            qos=int(confirmable) if self.qos is None else self.qos,
            retain=True,
            expires_at_ms=now_ms,
        )


def make_plan(
    request: CoapRequest, settings: CoapOptions, *, device: str = "", principal: str | None = ""
) -> MessagePlan:
    """Reads the options of a POST, PUT or DELETE; raises `ProtocolError` (4.00, 4.02, 4.04, 4.05, 4.15).

    `device` is the peer's, where it has proven to be one; else the address says. `principal` is as `Message` has it.
    """
    address = resolve(request.path, bare_paths=settings.bare_paths).address
    if address is None:
        raise ProtocolError(METHOD_NOT_ALLOWED, "links can only be read")
    try:
        check_address(address)
    except Refusal as refusal:
        raise ProtocolError(BAD_REQUEST, f"Uri-Path: {refusal.detail}") from refusal
    said, properties = read_query(request.query)
    lasting = _FLEETING.isdisjoint(said)
    fields = {_FIELDS[name]: value for name, value in said.items() if name in _FIELDS}
    if properties:
        fields["properties"] = properties
    content_type = _content_type(request.content_format, settings.cloudevents_format, fields)
    content_type = said.get("ct", content_type)
    event = content_type is not None and content_type.split(";")[0].strip().lower() == STRUCTURED_JSON
    if event:
        if request.content_format not in {None, JSON, settings.cloudevents_format}:
            detail = f"Content-Format: a CloudEvent is of {JSON} or {settings.cloudevents_format}"
            raise ProtocolError(UNSUPPORTED_CONTENT_FORMAT, detail)
        for field, name in _SAID_BY_EVENT.items():
            if field in fields:
                raise ProtocolError(BAD_REQUEST, f"{name}: is given by the CloudEvent already")
    qos, expiry_s, delay_s = said.get("qos"), said.get("expiry"), said.get("delay")
    device = device or level_of(address, settings.device_level)
    return MessagePlan(
        address=address,
        device=device,
        principal=None if principal and principal == device else principal,
        content_type=content_type,
        qos=qos,
        expiry_ms=None if expiry_s is None else expiry_s * 1000,
        delay_ms=None if delay_s is None else delay_s * 1000,
        fields=fields,
        plain=not (fields or event or request.silence) and qos is expiry_s is delay_s is None,
        lasting=lasting,
        event=event,
        condition=request.condition,
        silence=request.silence,
    )


def _content_type(number: int | None, cloudevents_format: int, fields: dict[str, Any]) -> str | None:
    """Returns the media type of a Content-Format; puts its coding, or a number without meaning here, into `fields`."""
    if number is None:
        return None
    if number == cloudevents_format:
        return STRUCTURED_JSON
    registered = media_type(number)
    if registered is None:
        fields["native"] = {PROTOCOL: {"content_format": number}}
        return None
    content_type, coding = registered
    if coding is not None:
        fields["content_encoding"] = coding
    return content_type


def read_query(query: tuple[str, ...]) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """Returns Uri-Query items: those with a meaning by their names, and the others as properties.

    Raises `ProtocolError` (4.00), its text beginning with the item's name.
    """
    said: dict[str, Any] = {}
    properties: list[tuple[str, str]] = []
    for item in query:
        name, _, text = item.partition("=")
        read = _QUERY.get(name)
        if read is None:
            properties.append((name, text))
            continue
        if name in said:
            raise ProtocolError(BAD_REQUEST, f"{name}: given twice")
        try:
            said[name] = read(text)
        except ValueError as error:
            raise ProtocolError(BAD_REQUEST, f"{name}: {error}") from error
    return said, tuple(properties)


# ---- readers of one item's text; they raise ValueError, whose text names the expected form


def _text(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def _number(text: str, what: str, most: int) -> int:
    if _DIGITS.fullmatch(text) is None or (value := int(text)) > most:
        raise ValueError(f"must be {what}")
    return value


def _qos(text: str) -> int:
    return _number(text, "0, 1 or 2", 2)


def _seconds(text: str) -> int:
    return _number(text, f"whole seconds, at most {SECONDS_MAX}", SECONDS_MAX)


def _flag(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError("must be true or false")
    return text == "true"


def _time_ms(text: str) -> int:
    if text.isdigit():
        return _number(text, "ms since 1970, up to the year 9999", TIME_MS_MAX)
    try:
        time_ms = parse_ms(text)
    except ValueError:
        time_ms = -1
    if not 0 <= time_ms <= TIME_MS_MAX:
        raise ValueError("must be ms since 1970 or an RFC 3339 timestamp")
    return time_ms


def _address(text: str) -> str:
    try:
        return check_address(text)
    except Refusal as refusal:
        raise ValueError(refusal.detail) from refusal


def _base64url(text: str) -> bytes:
    if _BASE64URL.fullmatch(text) is None:
        raise ValueError("must be base64url")
    bare = text.rstrip("=")
    try:
        return b64decode(bare + "=" * (-len(bare) % 4), b"-_")
    except binascii.Error:
        raise ValueError("must be base64url") from None


def _traceparent(text: str) -> str:
    if _TRACEPARENT.fullmatch(text) is None:
        raise ValueError("must be as W3C Trace Context 3.2 says")
    return text


_QUERY: dict[str, Callable[[str], Any]] = {
    "id": _text,
    "key": _text,
    "type": _text,
    "qos": _qos,
    "retain": _flag,
    "expiry": _seconds,
    "delay": _seconds,
    "time": _time_ms,
    "reply": _address,
    "corr": _base64url,
    "traceparent": _traceparent,
    "ct": _text,
}
_FIELDS = {
    "id": "id",
    "key": "key",
    "type": "type",
    "retain": "retain",
    "time": "time_ms",
    "reply": "reply_to",
    "corr": "correlation",
    "traceparent": "traceparent",
}
"""Items whose value is a field of `Message` as it is."""
