"""Sparkplug B payloads to samples, and the names that a BIRTH gives to aliases."""

import math
import struct

import pytest

from spark.decode import sparkplug
from spark.decode.samples import Decoder
from spark.decode.values import BAD_BODY, ITEMS_MAX, METRIC_CHARS_MAX, METRICS_MAX, NAMES_MAX, OK, TOO_MANY
from store.api.message import Message
from tests.support.spark.decode_kit import T_MS, one, rows


def varint(n: int) -> bytes:
    found = b""
    while n > 127:
        found += bytes([n & 127 | 128])
        n >>= 7
    return found + bytes([n])


def field(number: int, kind: int, value) -> bytes:
    data = varint(value) if kind == 0 else (varint(len(value)) + value if kind == 2 else value)
    return varint(number << 3 | kind) + data


def payload(*metrics: bytes) -> bytes:
    return field(1, 0, T_MS) + b"".join(field(2, 2, metric) for metric in metrics) + field(3, 0, 1)


def aliases_of(*metrics: bytes) -> list[int | None]:
    body = payload(*(metric + field(13, 1, struct.pack("<d", 1.0)) for metric in metrics))
    return Decoder().read([Message(address="spBv1.0/plant/NBIRTH/edge", body=body, time_ms=T_MS)]).aliases


def test_sparkplug_metrics_by_name_and_alias():
    address = "spBv1.0/plant/DDATA/edge/press"
    body = payload(
        field(1, 2, b"temp") + field(2, 0, 17) + field(4, 0, 10) + field(13, 1, struct.pack("<d", 21.5)),
        field(2, 0, 18) + field(3, 0, T_MS - 5) + field(4, 0, 3) + field(10, 0, (1 << 32) - 7),
        field(1, 2, b"run") + field(4, 0, 11) + field(14, 0, 1),
        field(1, 2, b"mode") + field(4, 0, 12) + field(15, 2, b"auto"),
        field(1, 2, b"gone") + field(7, 0, 1),
        field(1, 2, b"bdSeq") + field(11, 0, 1),
    )
    found, quality = rows(body, address=address)
    assert quality == OK
    assert found == {
        "temp": (21.5, None, None, T_MS * 1000),
        "alias/18": (-7.0, None, None, (T_MS - 5) * 1000),
        "run": (1.0, "true", None, T_MS * 1000),
        "mode": (None, "auto", None, T_MS * 1000),
    }
    read = Decoder().read([Message(address=address, body=body, time_ms=T_MS)])
    assert read.aliases == [17, 18, None, None]
    assert read.names == [(0, 17, "temp")]
    assert aliases_of(field(1, 2, b"a") + field(2, 0, (1 << 64) - 1), field(1, 2, b"b") + field(2, 0, 1 << 63)) == [
        *(-1, -(1 << 63)),  # as a column has them
    ]
    for bad in (b"\x12\xff", payload(field(10, 0, 1)), b"\x07", b"\x80" * 11):
        assert one(bad, address=address) == ({}, BAD_BODY)
    assert one(b'{"online":true,"timestamp":1}', address="spBv1.0/STATE/host")[0]["online"] is True


def test_a_birth_names_the_aliases_of_metrics_that_have_no_value():
    """Those that are null, no number or too long; the alias is never the one of the metric before."""
    number, null = field(4, 0, 10) + field(13, 1, struct.pack("<d", 5.0)), field(7, 0, 1)
    birth = payload(
        field(1, 2, b"pressure") + field(2, 0, 1) + number,
        field(1, 2, b"temp") + field(2, 0, 2) + field(13, 1, struct.pack("<d", math.nan)),
        field(1, 2, b"flow") + field(2, 0, 3) + null,
        field(1, 2, b"x" * (METRIC_CHARS_MAX + 1)) + field(2, 0, 4) + number,
    )
    data = payload(field(2, 0, 2) + number, field(2, 0, 5) + field(13, 1, struct.pack("<d", math.nan)))
    bad = birth + b"\x12\xff"
    bodies = [b'{"a":1}', birth, bad, data]
    read = Decoder().read(
        [Message(address="spBv1.0/g/STATE/h", body=bodies[0], time_ms=T_MS)]
        + [Message(address="spBv1.0/g/DBIRTH/e/d", body=body, time_ms=T_MS) for body in bodies[1:]]
    )
    assert read.quality == [OK, OK, BAD_BODY, OK]
    assert (read.metrics, read.aliases) == (["a", "pressure", "alias/2"], [None, 1, 2])
    assert read.names == [(1, 1, "pressure"), (1, 2, "temp"), (1, 3, "flow"), (1, 4, "alias/4")]


def test_a_birth_names_more_aliases_than_it_has_samples_and_not_for_ever_more():
    body = payload(*(field(1, 2, b"m%d" % n) + field(2, 0, n) + field(11, 0, n) for n in range(NAMES_MAX + 9)))
    read = Decoder().read([Message(address="spBv1.0/g/NBIRTH/e", body=body, time_ms=T_MS)] * 2)
    assert (read.bounds, read.quality) == ([0, METRICS_MAX, 2 * METRICS_MAX], [TOO_MANY] * 2)
    assert read.names == [(message, n, f"m{n}") for message in range(2) for n in range(NAMES_MAX)]


@pytest.mark.parametrize("nulls", [0, 40])
def test_fields_of_a_payload_are_counted(nulls):
    """16 MiB of them took seconds, in a batch that all devices wait for."""
    metric = field(1, 2, b"a") + field(7, 0, 1) * nulls
    fits = field(2, 2, metric) * (ITEMS_MAX // (2 + nulls))
    address = "spBv1.0/g/NDATA/e"
    assert one(fits, address=address)[1] != BAD_BODY
    read = Decoder().read([Message(address=address, body=fits * 2, time_ms=T_MS)])
    assert (read.quality, read.reasons) == ([BAD_BODY], ["protobuf has more than 262144 fields"])


def test_a_payload_ends_where_no_more_metrics_and_names_count(monkeypatch):
    read, real = [], sparkplug._metric
    monkeypatch.setattr(sparkplug, "_metric", lambda *args: (read.append(1), real(*args)))
    body = payload(*(field(1, 2, b"m%d" % n) + field(2, 0, n) + field(11, 0, n) for n in range(3 * NAMES_MAX)))
    assert one(body, address="spBv1.0/g/NBIRTH/e")[1] == TOO_MANY
    assert len(read) == NAMES_MAX
