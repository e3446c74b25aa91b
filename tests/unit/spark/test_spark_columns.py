"""Chunks to record batches, without a JVM."""

from datetime import UTC, datetime

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from spark.decode.rules import DecodeRules  # noqa: E402
from spark.errors import BadOption  # noqa: E402
from spark.source.columns import DERIVED, TIME_MS_MAX, TYPES, RecordColumns, schema_of  # noqa: E402
from spark.source.selection import Selection  # noqa: E402
from store.api.devices import DeviceRule  # noqa: E402
from store.api.message import Message  # noqa: E402
from store.api.queues import Fetched  # noqa: E402
from store.base.errors import CorruptFrame  # noqa: E402
from store.format.frame import ROW, Position, UnplacedFrame  # noqa: E402
from tests.support.spark.placed_frames import placed  # noqa: E402
from tests.support.store.fake_store import unplaced  # noqa: E402

FULL = Message(
    address="telemetry/d1",
    body=b"\x00\xff",
    time_ms=1_700_000_000_123,
    protocol="mqtt",
    device="d1",
    qos=2,
    retain=True,
    id="mine",
    key="k",
    type="t",
    content_type="application/json",
    content_encoding="gzip",
    expires_at_ms=1_700_000_009_000,
    deliver_at_ms=1_700_000_008_000,
    reply_to="r",
    correlation=b"c",
    traceparent="tp",
    principal="p",
    properties=(("a", "1"), ("a", "2")),
    native={"mqtt": {"subscription_identifiers": [7], "raw": b"\x00"}},
)
BARE = Message(address="telemetry/d2", time_ms=1 << 63)


def test_every_column_of_every_field():
    frames = [placed(unplaced([(17, BARE), (16, FULL), (16, BARE)]), 0), placed(unplaced([(16, BARE)]), 4096)]
    fetched = Fetched(frames, [[1, 2], [0]], 10, 13)
    rows = RecordColumns(schema_of(tuple(TYPES))).batch(fetched, queue=16, topic="telemetry").to_pylist()
    first = rows[0]
    assert first == {
        "topic": "telemetry",
        "queue": 16,
        "offset": 10,
        "position": "0.1",
        "id": "mine",
        "address": "telemetry/d1",
        "key": "k",
        "type": "t",
        "content_type": "application/json",
        "content_encoding": "gzip",
        "time": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
        "stored_at": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC),
        "protocol": "mqtt",
        "device": "d1",
        "principal": "p",
        "qos": 2,
        "retain": True,
        "expires_at": datetime(2023, 11, 14, 22, 13, 29, tzinfo=UTC),
        "reply_to": "r",
        "correlation": b"c",
        "traceparent": "tp",
        "deliver_at": datetime(2023, 11, 14, 22, 13, 28, tzinfo=UTC),
        "headers": [("a", "2")],
        "native": '{"mqtt":{"subscription_identifiers":[7],"raw":"AA=="}}',
        "data_error": None,
        "properties": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}],
        "body": b"\x00\xff",
        "samples": [],
        "aliases": [],
        "quality": "encoded",
        "reason": "its content encoding is gzip",
        "rejected": b"\x00\xff",
        "speaker": "d1",
    }
    assert [row["offset"] for row in rows] == [10, 11, 12]
    assert [row["id"] for row in rows] == ["mine", "0.2", str(Position(4096, 0))]
    assert rows[2]["stored_at"] == datetime(1970, 1, 1, 0, 0, 9, 96_000, UTC)
    assert rows[1]["time"] == datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
    assert rows[1]["properties"] == rows[1]["headers"] == []
    assert rows[1]["native"] is None
    assert rows[1]["key"] is rows[1]["expires_at"] is None


def test_a_client_without_a_login_has_an_empty_principal():
    """A record of a version before, and a login of the speaker's own name, have none."""
    nobody = Message(address="a/b/c/d", device="gw", principal="")
    fetched = Fetched([placed(unplaced([(16, nobody), (16, BARE)]), 0)], [[0, 1]], 0, 2)
    schema = schema_of(("speaker", "principal", "device"))
    rules = DecodeRules(devices=(DeviceRule(source="identity"), DeviceRule(source="level", level=2)))
    rows = RecordColumns(schema, rules).batch(fetched, queue=16, topic="a").to_pylist()
    assert [(row["speaker"], row["principal"]) for row in rows] == [("gw", ""), ("", None)]
    assert rows[0]["device"] == "c"
    wanted = Selection(equal={"principal": frozenset({""})})
    assert RecordColumns(schema, rules, selection=wanted).batch(fetched, queue=16, topic="a").num_rows == 1


def test_schemas():
    assert [f.name for f in schema_of(()).fields] == [name for name in TYPES if name not in DERIVED]
    assert [f.name for f in schema_of(("body", "offset")).fields] == ["body", "offset"]
    with pytest.raises(BadOption, match="names bodi"):
        schema_of(("bodi",))
    wrong = schema_of(("offset",))
    wrong.fields[0].dataType = TYPES["topic"]
    with pytest.raises(BadOption, match="offset string, which is bigint"):
        RecordColumns(wrong)


def test_offsets_are_read_without_decoding():
    built = UnplacedFrame.build(ROW.pack(16, 0, 3, 0, 0, 0, 0, 7), b"\xc1\xc1\xc1")
    fetched = Fetched([placed(built, 0)], [[0]], 0, 1)
    plain = RecordColumns(schema_of(("topic", "queue", "offset", "time", "stored_at", "position")))
    assert plain.batch(fetched, queue=16, topic="t").num_rows == 1
    with pytest.raises(CorruptFrame, match="no message"):
        RecordColumns(schema_of(("id",))).batch(fetched, queue=16, topic="t")


def test_an_alias_of_64_bits_fits_its_column():
    metric = b"\x0a\x01x\x10" + b"\xff" * 9 + b"\x01" + b"\x69" + bytes(8)
    body = b"\x12" + bytes([len(metric)]) + metric
    one = Message(address="spBv1.0/plant/NBIRTH/edge", body=body)
    fetched = Fetched([placed(unplaced([(16, one)]), 0)], [[0]], 0, 1)
    (row,) = RecordColumns(schema_of(("samples", "aliases"))).batch(fetched, queue=16, topic="t").to_pylist()
    assert [(one["metric"], one["value"], one["alias"]) for one in row["samples"]] == [("x", 0.0, -1)]
    assert row["aliases"] == [{"alias": -1, "metric": "x"}]


def test_names_of_aliases_are_of_their_record():
    metric = b"\x0a\x01x\x10\x05\x38\x01"  # null
    births = [
        Message(address="spBv1.0/p/NBIRTH/e", body=n * (b"\x12" + bytes([len(metric)]) + metric)) for n in (0, 2, 1)
    ]
    fetched = Fetched([placed(unplaced([(16, one) for one in births]), 0)], [[0, 1, 2]], 0, 3)
    found = RecordColumns(schema_of(("samples", "aliases"))).batch(fetched, queue=16, topic="t").to_pylist()
    assert [len(row["aliases"]) for row in found] == [0, 2, 1]
    assert [row["samples"] for row in found] == [[], [], []]


def test_expiry_beyond_the_calendar_is_cut():
    odd = [Message(address="a", expires_at_ms=t) for t in (1 << 63, -5, TIME_MS_MAX)]
    fetched = Fetched([placed(unplaced([(16, m) for m in odd]), 0)], [[0, 1, 2]], 0, 3)
    got = RecordColumns(schema_of(("expires_at",))).batch(fetched, queue=16, topic="t")["expires_at"].cast(pa.int64())
    assert got.to_pylist() == [TIME_MS_MAX * 1000, 0, TIME_MS_MAX * 1000]
