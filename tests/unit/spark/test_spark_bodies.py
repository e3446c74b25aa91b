"""The column `data`: bodies decoded by format, and what is said of those that are not of it."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql import types as T  # noqa: E402, N812

from spark.errors import BadOption  # noqa: E402
from spark.source.columns import RecordColumns, schema_of  # noqa: E402
from store.api.message import Message  # noqa: E402
from store.api.queues import Fetched  # noqa: E402
from tests.support.spark.placed_frames import placed  # noqa: E402
from tests.support.store.fake_store import unplaced  # noqa: E402


def rows(messages, format_, kind=None):
    fetched = Fetched(
        [placed(unplaced([(16, one) for one in messages]), 0)], [list(range(len(messages)))], 0, len(messages)
    )
    schema = schema_of(("data", "data_error"), format_)
    if kind is not None:
        schema = T.StructType([T.StructField("data", kind), schema["data_error"]])
    return RecordColumns(schema, format_=format_).batch(fetched, queue=16, topic="t").to_pylist()


def json(*bodies):
    return [Message(address="a", body=body) for body in bodies]


def test_json_of_every_type():
    kind = T.StructType(
        [
            T.StructField("n", T.IntegerType()),
            T.StructField("x", T.DoubleType()),
            T.StructField("s", T.StringType()),
            T.StructField("b", T.BooleanType()),
            T.StructField("at", T.TimestampType()),
            T.StructField("day", T.DateType()),
            T.StructField("money", T.DecimalType(10, 2)),
            T.StructField("raw", T.BinaryType()),
            T.StructField("list", T.ArrayType(T.StructType([T.StructField("v", T.LongType())]))),
            T.StructField("map", T.MapType(T.StringType(), T.ArrayType(T.FloatType()))),
            T.StructField("any", T.MapType(T.StringType(), T.StringType())),
        ]
    )
    body = (
        b'{"n": 3, "x": 4, "s": "t\\u00fc", "b": true, "at": 1700000000, "day": "2026-01-02", "money": "12.50",'
        b'"raw": "AP8=", "list": [{"v": 1}, null, {"v": null, "w": 2}], "map": {"k": [1.5, null], "l": null},'
        b'"any": {"a": 1, "b": "x", "c": null, "d": {"e": [1]}}, "unknown": [1, 2]}'
    )
    found = rows(json(body, b"{}", b'{"n": "3"}', b'{"n": 3000000000}', b"[1", b"null"), "json", kind)
    assert found[0] == {
        "data": {
            "n": 3,
            "x": 4.0,
            "s": "tü",
            "b": True,
            "at": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
            "day": date(2026, 1, 2),
            "money": Decimal("12.50"),
            "raw": b"\x00\xff",
            "list": [{"v": 1}, None, {"v": None}],
            "map": [("k", [1.5, None]), ("l", None)],
            "any": [("a", "1"), ("b", "x"), ("c", None), ("d", '{"e": [1]}')],
        },
        "data_error": None,
    }
    assert found[1] == {"data": dict.fromkeys(kind.names), "data_error": None}
    assert [row["data"] for row in found[2:]] == [None] * 4
    assert "$.n" in found[2]["data_error"]
    assert "2147483647" in found[3]["data_error"]
    assert found[4]["data_error"]
    assert found[5]["data_error"]


def test_json_without_a_schema_is_a_map_of_texts():
    found = rows(
        [*json(b'{"a": 1.50, "b": "x"}', b"7"), Message(address="a", body=b"{}", content_encoding="gzip")], "json"
    )
    assert found[0] == {"data": [("a", "1.50"), ("b", "x")], "data_error": None}
    assert found[1]["data"] is None
    assert found[2] == {"data": None, "data_error": "its content encoding is gzip"}


def test_a_bare_value_and_an_array_are_json_too():
    assert [row["data"] for row in rows(json(b"21.5", b'"x"'), "json", T.DoubleType())] == [21.5, None]
    assert [row["data"] for row in rows(json(b"[1,2]", b"[]"), "json", T.ArrayType(T.LongType()))] == [[1, 2], []]


def test_events_of_every_kind():
    event = Message(
        address="orders/1",
        body=b'{"n": 1}',
        id="e1",
        type="order.made",
        content_type="application/json",
        time_ms=1_700_000_000_123,
        key="k",
        properties=(("tenant", "x"), ("Other-Name", "y")),
        native={"cloudevents": {"source": "/shop", "subject": "orders/1", "dataschema": "http://s/1"}},
    )
    plain = Message(address="telemetry/d1", body=b"\xff", time_ms=5)
    structured = Message(
        address="a",
        content_type="application/cloudevents+json; charset=utf-8",
        body=b'{"specversion":"1.0","id":"e2","source":"/s","type":"t","time":"2026-01-02T03:04:05Z","n":5,"data":{"x":1}}',
    )
    broken = Message(address="a", content_type="application/cloudevents+json", body=b"[]")
    found = rows([event, plain, structured, broken], "cloudevents")
    assert found[0]["data"] == {
        "id": "e1",
        "source": "/shop",
        "type": "order.made",
        "subject": "orders/1",
        "time": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
        "datacontenttype": "application/json",
        "dataschema": "http://s/1",
        "extensions": [("partitionkey", "k"), ("tenant", "x")],
        "data": '{"n": 1}',
    }
    said = found[1]["data"]
    assert (said["source"], said["type"], said["subject"], said["data"]) == (
        *("//headgate/telemetry", "headgate.message.v1", "telemetry/d1", "/w=="),
    )
    assert found[2]["data"]["time"] == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert (found[2]["data"]["extensions"], found[2]["data"]["data"]) == ([("n", "5")], '{"x":1}')
    assert found[3] == {"data": None, "data_error": "an event is a JSON object"}


def test_an_event_has_the_attributes_that_readers_by_http_see():
    native = {"source": "/s", "data": "json", "time": "2026-01-02T03:04:05.123456Z", "traceparent": None}
    event = Message(
        address="a",
        body=b"1",
        id="e",
        expires_at_ms=1_700_000_000_000,
        correlation=b"c",
        traceparent="tp",
        properties=(("42", "x"), ("replyto", "own")),
        native={"cloudevents": native},
    )
    reserved = ("subject", "time", "data", "headgateproperties", "replyto", "\u00e9", "partitionkey")
    plain = Message(
        address="a",
        body=b"",
        expires_at_ms=1_500,
        correlation=b"\xff",
        traceparent="tp",
        properties=(*((name, "x") for name in reserved), ("n", "1"), ("n", "2")),
    )
    first, second = (row["data"] for row in rows([event, plain], "cloudevents"))
    assert first["time"] == datetime(2026, 1, 2, 3, 4, 5, 123_456, UTC)
    assert (first["datacontenttype"], first["data"]) == ("application/json", "1")
    expiry, told = "2023-11-14T22:13:20Z", dict(first["extensions"])
    assert told == {"expirytime": expiry, "correlationid": "c", "42": "x", "replyto": "own"}
    assert dict(second["extensions"]) == {"expirytime": "1970-01-01T00:00:01.500Z", "traceparent": "tp", "n": "1"}
    assert second["data"] is None


def test_senml_packs_are_resolved():
    pack = (
        b'[{"bn":"d1/","bt":1700000000,"n":"temp","u":"Cel","v":21.5},{"n":"door","vb":true},{"n":"state","vs":"on"}]'
    )
    found = rows(json(pack, b'{"n": 1}', b"[]"), "senml")
    at = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    none = {"unit": None, "value": None, "text": None, "flag": None, "time": at}
    assert found[0]["data"] == [
        {**none, "name": "d1/temp", "unit": "Cel", "value": 21.5},
        {**none, "name": "d1/door", "flag": True},
        {**none, "name": "d1/state", "text": "on"},
    ]
    assert found[1] == {"data": None, "data_error": "SenML is an array of records"}
    assert found[2] == {"data": [], "data_error": None}


@pytest.mark.parametrize(
    ("format_", "kind", "message"),
    [
        ("raw", T.StringType(), "needs the option format"),
        ("senml", T.StringType(), "has data string, which is array<struct<"),
        ("json", T.MapType(T.LongType(), T.StringType()), "format json does not make"),
        ("json", T.StructType([T.StructField("v", T.VariantType())]), "variant"),
    ],
)
def test_a_type_that_a_format_does_not_give_is_refused(format_, kind, message):
    with pytest.raises(BadOption, match=message):
        RecordColumns(T.StructType([T.StructField("data", kind)]), format_=format_)


def test_a_value_that_its_type_does_not_hold_is_null_alone():
    kind = T.StructType([T.StructField("money", T.DecimalType(10, 2))])
    odd = json(b'{"money": 12.5}', b'{"money": 1e30}', b'{"money": "NaN"}', b'{"money": 1.005}', b'{"money": 1}')
    found = rows(odd, "json", kind)
    held = [row["data"] and row["data"]["money"] for row in found]
    assert held == [Decimal("12.50"), None, None, None, Decimal("1.00")]
    assert [row["data_error"] is None for row in found] == [True, False, False, False, True]


def test_an_event_of_odd_members_is_read_or_has_a_reason():
    event = "application/cloudevents+json"
    bodies = (b'{"data_base64":5}', b'{"data_base64":{"a":1}}', b'{"time":"9999-12-31T23:59:59.9999999Z","id":"1"}')
    found = rows([Message(address="a", body=body, content_type=event) for body in bodies], "cloudevents")
    assert [row["data_error"] for row in found] == ["data_base64 of an event is no text"] * 2 + [None]
    assert (found[2]["data"]["id"], found[2]["data"]["time"]) == ("1", None)


def test_senml_of_no_time_has_a_reason():
    packs = [b'[{"n":"a","v":1,"t":9e14}]', b'[{"n":"a","v":1,"t":-9e14}]']
    found = rows([Message(address="a", body=body, content_type="application/senml+json") for body in packs], "senml")
    assert [row["data"] for row in found] == [None, None]
    assert all("before 1970 or after the year 9999" in row["data_error"] for row in found)


def test_senml_has_every_record_of_a_long_pack():
    pack = b"[" + b",".join(b'{"n":"m%d","v":%d}' % (n, n) for n in range(2_000)) + b"]"
    (row,) = rows([Message(address="a", body=pack, content_type="application/senml+json")], "senml")
    assert [one["value"] for one in row["data"]] == [float(n) for n in range(2_000)]


def test_senml_whose_texts_outgrow_the_pack_has_a_reason():
    """A base name was in each record: of 256 KiB of CBOR it made 256 MiB, and of some packs more than Arrow holds."""
    name = "\N{THERMOMETER}" * 256
    first = b"\xa3\x21\x79\x04\x00" + name.encode() + b"\x24\x01\x02\x01"  # bn, bv, v
    packs = [b"\x9f" + first + b"\xa0" * count + b"\xff" for count in (50, 10_000)]
    few, many = rows(
        [Message(address="a", body=body, content_type="application/senml+cbor") for body in packs], "senml"
    )
    assert [one["name"] for one in few["data"]] == [name] * 51
    assert (many["data"], many["data_error"]) == (None, "SenML's names and texts take more than 64 times its bytes")
