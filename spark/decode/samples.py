"""Messages to samples: the metrics of each, by its format, and the quality of a message that reports none.

The format is the rule's for the address (`spark.decode.rules`), else that of Sparkplug's topic names or the content
type, else JSON (RFC 8259). Of an object every number, boolean and text is a metric, nested ones by their path
(`motor.temp`), except that `value` is the metric named by the last level of the address, as in `{"value": 21.5}`
published to `site1/dev42/temperature`; a bare value is the same. Nulls are skipped.
"""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from spark.decode import cbor, fields, senml, sparkplug
from spark.decode.values import (
    BAD_BODY,
    ENCODED,
    METRIC_CHARS_MAX,
    METRICS_MAX,
    NO_METRICS,
    NUMBER_MAX,
    OK,
    Rows,
    Undecodable,
)
from store.api.decoding import DecodeRule
from store.api.message import Message

UNEXPECTED: Final = "unexpected "  # begins the reason of a record over which a reader stumbled: a bug of ours
_REMEMBERED_MAX, _REMEMBERED_CHARS_MAX = 65_536, 1_024  # pairs of address and content type, and of each
_VALUE: Final = "value"
_SPARKPLUG: Final = "spBv1.0/"
_BY_TYPE: Final = {
    "application/senml+json": "senml",
    "application/senml+cbor": "senml-cbor",
    "application/cbor": "cbor",
    "application/cloudevents+json": "event",
    "text/plain": "plain",
}
_parse = msgspec.json.Decoder().decode
_BAD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_Reader = Callable[[Rows, Message, DecodeRule], None]


class Decoder:
    """Reads messages by some rules; without any by their content types."""

    def __init__(self, rules: Iterable[DecodeRule] = ()) -> None:
        self._rules = tuple(rules)
        self._known: dict[tuple[str, str | None], tuple[str, DecodeRule]] = {}

    def read(self, messages: Sequence[Message]) -> Rows:
        """Returns the rows of each message; never raises for the content of a body.

        A loop with local names, because it runs once a message: flat JSON objects of numbers take the short way.
        """
        rows = Rows()
        metrics, values, texts, units, times, aliases = (
            *(rows.metrics, rows.values, rows.texts),
            *(rows.units, rows.times_us, rows.aliases),
        )
        bounds, quality, reasons, known, parse = rows.bounds, rows.quality, rows.reasons, self._known, _parse
        for message in messages:
            found = known.get((message.address, message.content_type))
            way, rule = self._learn(message) if found is None else found
            if way != "flat" or message.content_encoding:
                self._slow(rows, message, way, rule)
                continue
            try:
                parsed = parse(message.body)
            except _BAD as error:
                rows.end(BAD_BODY, f"no JSON: {error}"[:200])
                continue
            short = type(parsed) is dict and len(parsed) <= METRICS_MAX
            if short:
                for name, value in parsed.items():
                    if type(value) is not float or abs(value) > NUMBER_MAX or len(name) > METRIC_CHARS_MAX:
                        if type(value) is not int or not -(1 << 53) < value < 1 << 53 or len(name) > METRIC_CHARS_MAX:
                            short = False
                            break
                        value = float(value)  # noqa: PLW2901  # the field as a metric
                    metrics.append(name if name != _VALUE else message.address.rpartition("/")[2] or _VALUE)
                    values.append(value)
                short = short and (_VALUE not in parsed or len(message.address) <= METRIC_CHARS_MAX)
            if short:
                count = len(metrics) - bounds[-1]
                nothing = [None] * count
                texts += nothing
                units += nothing
                times += nothing
                aliases += nothing
                quality.append(OK if count else NO_METRICS)
                reasons.append(None)
                bounds.append(len(metrics))
            else:
                del metrics[bounds[-1] :], values[bounds[-1] :]
                try:
                    fields.read(rows, parsed, _leaf(message))
                except Exception as error:  # noqa: BLE001 - as in `_slow`
                    _reject(rows, error)
                else:
                    rows.end(body_bytes=len(message.body))
        return rows

    def _slow(self, rows: Rows, message: Message, way: str, rule: DecodeRule) -> None:
        if way == "none":
            rows.end()
            return
        if message.content_encoding:
            rows.end(ENCODED, f"its content encoding is {message.content_encoding[:64]}")
            return
        try:
            _READERS[way](rows, message, rule)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one record, the job goes on with the next
            _reject(rows, error)
        else:
            rows.end(body_bytes=len(message.body))

    def _learn(self, message: Message) -> tuple[str, DecodeRule]:
        """Returns the way to read messages of an address and content type."""
        levels = message.address.split("/")
        rule = next((rule for rule in self._rules if rule.matches(levels)), None)
        way = _way_of(message.content_type)
        if rule is not None and rule.format != "auto":
            way = {"json": "fields", "number": "plain"}.get(rule.format, rule.format)
        elif message.address.startswith(_SPARKPLUG) and "/STATE/" not in message.address:
            way = "sparkplug"
        elif not way:
            way = "flat" if rule is None else "fields"
        found = way, rule or DecodeRule()
        if len(message.address) + len(message.content_type or "") <= _REMEMBERED_CHARS_MAX:
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            self._known[message.address, message.content_type] = found
        return found


def _way_of(content_type: str | None) -> str:
    """Returns the way to read bodies of a content type; empty: as JSON."""
    return _BY_TYPE.get((content_type or "").partition(";")[0].strip().lower(), "")


def _reject(rows: Rows, error: Exception) -> None:
    """Ends a message that cannot be read. Raises a MemoryError again: that is not of the message."""
    if isinstance(error, MemoryError):
        raise error
    if isinstance(error, Undecodable):
        rows.end(BAD_BODY, str(error))
    elif isinstance(error, UnicodeDecodeError):
        rows.end(BAD_BODY, f"no UTF-8: {error}"[:200])
    elif isinstance(error, _BAD):
        rows.end(BAD_BODY, f"no JSON: {error}"[:200])
    else:
        rows.end(BAD_BODY, f"{UNEXPECTED}{type(error).__name__}: {error}"[:200])


def _leaf(message: Message) -> str:
    return message.address.rpartition("/")[2] or _VALUE


def _fields(rows: Rows, message: Message, rule: DecodeRule) -> None:
    fields.read(rows, _parse(message.body), _leaf(message), rule)


def _cbor(rows: Rows, message: Message, rule: DecodeRule) -> None:
    fields.read(rows, cbor.decode(message.body), _leaf(message), rule)


def _senml(rows: Rows, message: Message, _rule: DecodeRule) -> None:
    senml.read(rows, _parse(message.body), message.time_ms)


def _senml_cbor(rows: Rows, message: Message, _rule: DecodeRule) -> None:
    senml.read(rows, cbor.decode(message.body), message.time_ms)


def _sparkplug(rows: Rows, message: Message, _rule: DecodeRule) -> None:
    sparkplug.read(rows, message.body, message.time_ms)


def _plain(rows: Rows, message: Message, rule: DecodeRule) -> None:
    """Adds a number, `true` or `false`, or JSON that says it is text. Digits are those of ASCII, without `_`."""
    text = message.body.decode("utf-8").strip()
    if text[:1] in ("{", "["):
        _fields(rows, message, rule)
        return
    try:
        number = float(text if text.isascii() and "_" not in text else "")
    except ValueError:
        if rule.format == "number":
            raise Undecodable("the body is no number") from None
        _text(rows, message, rule)
    else:
        rows.number(_leaf(message), number)


def _text(rows: Rows, message: Message, _rule: DecodeRule) -> None:
    """Adds a state."""
    text = message.body.decode("utf-8").strip()
    if text.lower() in ("true", "false"):
        rows.flag(_leaf(message), text.lower() == "true")
    elif text:
        rows.state(_leaf(message), text)


def _event(rows: Rows, message: Message, rule: DecodeRule) -> None:
    """Adds the data of a structured CloudEvent, by its content type: JSON, or bytes in Base64."""
    event: Any = _parse(message.body)
    if not isinstance(event, dict):
        raise Undecodable("the event is no object")
    kind, data, time_us = event.get("datacontenttype"), event.get("data"), fields.time_us_of(event.get("time"))
    way = _way_of(kind if isinstance(kind, str) else None) or "fields"
    if way == "event":
        raise Undecodable("the event's data is an event")
    begin = len(rows.metrics)
    inner = message if time_us is None else msgspec.structs.replace(message, time_ms=time_us // 1000)
    if data is None and ("data" not in event or event.get("data_base64") is not None):
        _READERS[way](rows, msgspec.structs.replace(inner, body=_bytes_of(event)), rule)
    elif way == "senml":
        senml.read(rows, data, inner.time_ms)
    elif way == "plain" and isinstance(data, str):
        _plain(rows, msgspec.structs.replace(inner, body=data.encode()), rule)
    else:
        fields.read(rows, data, _leaf(message), rule)
    for n in range(begin, len(rows.metrics)):
        rows.times_us[n] = time_us if rows.times_us[n] is None else rows.times_us[n]


def _bytes_of(event: Mapping[str, Any]) -> bytes:
    encoded = event.get("data_base64")
    if not isinstance(encoded, str):
        raise Undecodable("the event has no data that can be read")
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError:
        raise Undecodable("data_base64 of the event is no Base64") from None


_READERS: Mapping[str, _Reader] = {
    "fields": _fields,
    "flat": _fields,
    "cbor": _cbor,
    "senml": _senml,
    "senml-cbor": _senml_cbor,
    "sparkplug": _sparkplug,
    "plain": _plain,
    "text": _text,
    "event": _event,
}
