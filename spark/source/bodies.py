"""The column `data`: bodies decoded as the option `format` says, and `data_error`, the reason where that fails.

    json          any type that `.schema(...)` gives to `data`; without a schema the object's fields as texts
    cloudevents   the event's attributes and data (in Base64 where it is no text); a message that never was an event is
                  wrapped, as for readers by HTTP
    senml         the resolved records of a pack (RFC 8428, 4.6), JSON or CBOR

A body that is not of its format leaves `data` null and says why in `data_error`; no message is dropped.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark.decode import cbor, senml
from spark.decode.fields import time_us_of
from spark.decode.values import BAD_BODY, TEXTS_BYTES, Rows, Undecodable
from spark.errors import BadOption
from spark.source.json_types import Json
from store.api.message import EVENT, Message

DATA, DATA_ERROR = "data", "data_error"
REASON_CHARS_MAX: Final = 200
TEXTS_FACTOR: Final = 64  # names, texts and units of SenML: so many times its bytes, and those below, at most

_TEXT = StringType()
_TEXTS = MapType(_TEXT, _TEXT)
_EVENT = StructType(
    [
        *(StructField(name, _TEXT) for name in ("id", "source", "type", "subject")),
        StructField("time", TimestampType()),
        *(StructField(name, _TEXT) for name in ("datacontenttype", "dataschema")),
        StructField("extensions", _TEXTS),
        StructField("data", _TEXT),
    ]
)
_RECORDS = ArrayType(
    StructType(
        [
            *(StructField("name", _TEXT), StructField("unit", _TEXT), StructField("value", DoubleType())),
            *(StructField("text", _TEXT), StructField("flag", BooleanType()), StructField("time", TimestampType())),
        ]
    )
)
_FORMATS: Mapping[str, DataType] = {"json": _TEXTS, "cloudevents": _EVENT, "senml": _RECORDS}
_ABSENT_TYPE: Final = "headgate.message.v1"  # of an event that a plain message is wrapped in
_JSON_EVENT: Final = "application/cloudevents+json"
_CORE: Final = frozenset({"id", "source", "specversion", "type", "datacontenttype", "dataschema", "subject", "time"})
_NAME: Final = re.compile("[a-z0-9]+")  # of an attribute
_FIELDS: Final = frozenset({"data", "partitionkey", "expirytime", "correlationid", "traceparent"})
_OURS_ALONE: Final = frozenset({"headgateaddress", "headgateproperties", "headgateomitted"})  # from the gateway alone
_OURS: Final = _OURS_ALONE | {"contentencoding", "replyto", "correlationdata"}  # and of no event, fields as these
TIME_MS_MAX: Final = 253_402_300_799_999  # the last of the year 9999
_parse = msgspec.json.Decoder().decode
_BAD = (ValueError, RecursionError, OverflowError, Undecodable)
_UNFIT = (pa.ArrowException, OverflowError)


def data_type(format_: str) -> DataType | None:
    """Returns the type of `data` where no schema says another; None where the format has no such column."""
    return _FORMATS.get(format_)


class BodyDecoder:
    """Decodes the bodies of messages into one Arrow array. Raises `BadOption` for a type the format does not give."""

    def __init__(self, format_: str, kind: DataType) -> None:
        self._read: Callable[[Message], Any]
        self._array: Callable[[list[Any], pa.DataType], pa.Array] = pa.array
        if format_ == "json":
            json = Json(kind)
            self._read, self._array = json.read, json.array
            return
        if _FORMATS.get(format_) != kind:
            known = _FORMATS.get(format_)
            raise BadOption(
                "schema",
                f"has data {kind.simpleString()}, which "
                + (f"is {known.simpleString()}" if known else "needs the option format: json, cloudevents or senml"),
            )
        self._read = {"cloudevents": _event, "senml": _senml}[format_]

    def arrays(self, messages: Sequence[Message], kind: pa.DataType) -> tuple[pa.Array, list[str | None]]:
        """Returns the decoded bodies, and for each the reason why it is null."""
        values: list[Any] = []
        reasons: list[str | None] = []
        read = self._read
        for message in messages:
            try:
                if message.content_encoding:
                    raise Undecodable(f"its content encoding is {message.content_encoding[:64]}")
                values.append(read(message))
                reasons.append(None)
            except _BAD as error:
                values.append(None)
                reasons.append(str(error)[:REASON_CHARS_MAX] or type(error).__name__)
        try:
            return self._array(values, kind), reasons
        except _UNFIT:
            return self._fitting(values, kind, reasons), reasons

    def _fitting(self, values: list[Any], kind: pa.DataType, reasons: list[str | None]) -> pa.Array:
        """Returns the values that the type can hold, as a decimal of ten digits holds no longer one; others: null."""
        for n, value in enumerate(values):
            try:
                self._array([value], kind)
            except _UNFIT as error:
                values[n], reasons[n] = None, str(error)[:REASON_CHARS_MAX]
        return self._array(values, kind)


def _event(message: Message) -> dict[str, Any]:
    native = (message.native or {}).get(EVENT)
    if native is None and (message.content_type or "").partition(";")[0].strip().lower() == _JSON_EVENT:
        return _structured(message)
    said: Mapping[str, Any] = native or {}
    topic = message.address.partition("/")[0]
    implied = "application/json" if said.get("data") == "json" else None
    return {
        "id": message.id or None,
        "source": said.get("source") or f"//headgate/{quote(topic, safe='')}",
        "type": message.type or _ABSENT_TYPE,
        "subject": said.get("subject") if native is not None else message.address,
        "time": _time_of(message, said),
        "datacontenttype": implied if message.content_type is None else message.content_type,
        "dataschema": said.get("dataschema"),
        "extensions": list(_extensions(message, native).items()),
        "data": _text_of(message.body),
    }


def _time_of(message: Message, said: Mapping[str, Any]) -> int | None:
    """Returns the time in microseconds; a text is one that does not follow from the message's own, in milliseconds."""
    time = said.get("time", "")
    return None if time is None else (time_us_of(time) if time else None) or _instant(message.time_ms)


def _extensions(message: Message, native: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns the extensions of an event, or those that a message has as one, by the texts that came."""
    correlation = None if message.correlation is None else _decoded(message.correlation)
    fields = {
        "partitionkey": message.key,
        "expirytime": None if message.expires_at_ms is None else _timestamp(message.expires_at_ms),
        "correlationid": correlation,
        "traceparent": message.traceparent,
    }
    own = {} if native is None else {name: text for name in fields if (text := native.get(name)) is not None}
    if native is not None and native.get("traceparent", "") is None:
        del fields["traceparent"]  # of the request that brought the event, and none of the event
    found = {name: text for name, text in {**fields, **own}.items() if text}
    reserved = _CORE | _FIELDS | (_OURS if native is None else _OURS_ALONE)
    for name, text in message.properties:
        if name not in reserved and _NAME.fullmatch(name) is not None:
            found.setdefault(name, text)
    return found


def _structured(message: Message) -> dict[str, Any]:
    """Returns an event in JSON that was stored as it came (CloudEvents JSON format 1.0.2)."""
    found = _parse(message.body)
    if not isinstance(found, dict):
        raise Undecodable("an event is a JSON object")
    data = found.pop("data", None)
    base64 = found.pop("data_base64", None)
    if base64 is not None and not isinstance(base64, str):
        raise Undecodable("data_base64 of an event is no text")
    members = {name: one if isinstance(one, str) else _json(one) for name, one in found.items() if one is not None}
    event: dict[str, Any] = {name: members.get(name) for name in _CORE - {"specversion", "time"}}
    event["time"] = time_us_of(members.get("time"))
    event["extensions"] = [(name, value) for name, value in members.items() if name not in _CORE]
    event["data"] = base64 if data is None else data if isinstance(data, str) else _json(data)
    return event


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _text_of(body: bytes) -> str | None:
    """Returns data as text, or in Base64 where it is none; None where there is none."""
    if not body:
        return None
    text = _decoded(body)
    return b64encode(body).decode() if text is None else text


def _decoded(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _instant(time_ms: int) -> int:
    return min(max(time_ms, 0), TIME_MS_MAX) * 1000


def _timestamp(time_ms: int) -> str:
    """Returns a time in RFC 3339, as the gateway writes it."""
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=min(max(time_ms, 0), TIME_MS_MAX))
    return at.isoformat(timespec="milliseconds" if time_ms % 1000 else "seconds").replace("+00:00", "Z")


def _senml(message: Message) -> list[dict[str, Any]]:
    rows = Rows(metrics_max=len(message.body))  # all: a record has bytes
    as_cbor = "cbor" in (message.content_type or "").lower() or message.body[:1] >= b"\x80"
    senml.read(rows, cbor.decode(message.body) if as_cbor else _parse(message.body), message.time_ms)
    rows.end()
    if rows.quality[0] == BAD_BODY:
        raise Undecodable(rows.reasons[0] or "no SenML")
    if rows.text_bytes > TEXTS_FACTOR * len(message.body) + TEXTS_BYTES:
        raise Undecodable(f"SenML's names and texts take more than {TEXTS_FACTOR} times its bytes")
    columns = zip(rows.metrics, rows.units, rows.values, rows.texts, rows.times_us, strict=True)
    return [
        {
            "name": name,
            "unit": unit,
            "value": None if text is not None else value,
            "text": None if text is None or value is not None else text,
            "flag": None if text is None or value is None else bool(value),
            "time": time_us,
        }
        for name, unit, value, text, time_us in columns
    ]
