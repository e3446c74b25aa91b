"""Bodies to samples: every format, every limit, and that no body is too odd to be judged."""

import base64
import contextlib
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark.decode import cbor, fields, samples, senml
from spark.decode.fields import time_us_of
from spark.decode.rules import DecodeRules, load_rules
from spark.decode.samples import UNEXPECTED, Decoder
from spark.decode.values import (
    BAD_BODY,
    ENCODED,
    METRIC_CHARS_MAX,
    METRICS_MAX,
    NO_METRICS,
    OK,
    TEXTS_BYTES,
    TEXTS_FACTOR,
    TOO_MANY,
    UNIT_CHARS_MAX,
    Rows,
    Undecodable,
)
from spark.errors import BadOption
from store.api.decoding import DecodeRule
from store.api.devices import Devices
from store.api.message import Message
from tests.support.spark.decode_kit import T_MS, Tagged, encode_cbor, one, rows


def test_every_field_of_an_object_is_a_metric():
    assert one(b'{"temperature":21.5,"humidity":40}') == ({"temperature": 21.5, "humidity": 40.0}, OK)
    odd = b'{"a":true,"b":"1","c":null,"d":{"e":1,"x":{"y":2}},"f":[1,{"z":3}],"g":-0.5}'
    found = {"a": True, "b": "1", "d.e": 1.0, "d.x.y": 2.0, "f.0": 1.0, "f.1.z": 3.0, "g": -0.5}
    assert one(odd) == (found, OK)


def test_value_is_named_by_the_last_level():
    assert one(b'{"value":3}') == ({"temp": 3.0}, OK)
    assert one(b'{"value":3,"ok":false}') == ({"temp": 3.0, "ok": False}, OK)
    assert one(b"21.5") == ({"temp": 21.5}, OK)
    assert one(b"true") == ({"temp": True}, OK)
    assert one(b'"on"') == ({"temp": "on"}, OK)
    assert one(b"7", address="telemetry/") == ({"value": 7.0}, OK)


def test_bodies_without_samples():
    assert one(b"{}") == one(b"null") == one(b'{"a":null}') == ({}, NO_METRICS)
    assert one(b"\x1f\x8b", content_encoding="gzip") == ({}, ENCODED)
    for bad in (b"", b"{", b"NaN", b"\xff", b'{"\xff":1}', b"[" * 100_000, b"1e999", b'"\\udc00"'):
        assert one(bad) == ({}, BAD_BODY), bad[:10]


def test_a_text_that_is_not_utf_8_says_so():
    read = Decoder().read([Message(address="t", body=b"\xff\xfe", content_type="text/plain")])
    assert (read.quality, read.reasons[0][:9]) == ([BAD_BODY], "no UTF-8:")


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (json.dumps({"\U0001f321" * 250: [1] * METRICS_MAX}, ensure_ascii=False).encode(), None),
        (json.dumps([{"bn": "x" * 250, "n": "a", "v": 1}, *[{"v": 1}] * 200]).encode(), "application/senml+json"),
    ],
)
def test_texts_of_a_message_do_not_outgrow_its_body(body, content_type):
    """One name for all its rows took a hundred times the bytes of the body, and a batch the memory of its worker."""
    read = Decoder().read([Message(address="t", body=body, content_type=content_type)])
    assert read.quality == [TOO_MANY]
    size = sum(len(name.encode()) for name in read.metrics)
    assert TEXTS_FACTOR * len(body) < size + 1_024 <= TEXTS_FACTOR * len(body) + TEXTS_BYTES + 1_024
    for hall, sensors in (("motor temperature of hall", 30), ("Wärmepumpe der Halle 7", 200)):
        usual = json.dumps({hall: {f"s{n}": n for n in range(sensors)}}, separators=(",", ":")).encode()
        assert Decoder().read([Message(address="t", body=usual)]).quality == [OK]


@pytest.mark.parametrize("body", [b'{"value": 21.5}', b'{"value": "on"}', b"21.5"])
def test_a_level_of_an_address_that_is_too_long_for_a_name_is_none(body):
    """A number's name had no limit: each was a series, of 65,000 characters in every table and state."""
    addresses = [f"t/{'x' * chars}" for chars in (256, 257, 65_000)]
    read = Decoder().read([Message(address=address, body=body) for address in (*addresses, f"{addresses[1]}/t")])
    assert [len(name) for name in read.metrics] == [256, 1]
    assert read.quality == [OK, NO_METRICS, NO_METRICS, OK]


def test_long_addresses_and_content_types_are_not_remembered():
    """65,536 of them are: 4 GiB of addresses of 65,000 characters, in a query over many."""
    decoder, devices = Decoder(), Devices()
    messages = [Message(address=f"{n}/{'x' * 2_000}", body=b'{"a":1}') for n in range(3)]
    messages += [Message(address="t", body=b'{"a":1}', content_type="x" * 2_000), Message(address="t", body=b'{"a":1}')]
    for _ in range(2):
        assert decoder.read(messages).metrics == ["a"] * 5
        assert devices.of(messages) == ["0", "1", "2", "t", "t"]
    assert (len(decoder._known), len(devices._known)) == (1, 1)


def test_what_cannot_be_decoded_says_why():
    read = Decoder().read([Message(address="t", body=b"oops"), Message(address="t", body=b"{}", content_encoding="br")])
    assert read.reasons[0].startswith("no JSON: ")
    assert read.reasons[1] == "its content encoding is br"


def test_limits():
    many = b"{" + b",".join(b'"m%d":%d' % (n, n) for n in range(300)) + b"}"
    found, quality = one(many)
    assert (len(found), quality) == (METRICS_MAX, TOO_MANY)
    assert one(b'{"' + b"x" * 300 + b'":1}') == ({}, NO_METRICS)
    assert one(b'{"a":' + b"9" * 400 + b"}")[0] == {}
    deep = b'{"a":' * 20 + b"1" + b"}" * 20
    assert one(deep) == ({}, NO_METRICS)
    assert one(b'{"a":' + json.dumps("x" * 5_000).encode() + b"}")[0]["a"] == "x" * 1_024


def test_messages_keep_their_own_samples():
    bodies = [b'{"a":1,"b":2}', b"oops", b'{"a":3,"s":"x"}', b"{}", b'{"c":4}']
    read = Decoder().read([Message(address="t", body=body) for body in bodies])
    assert read.bounds == [0, 2, 2, 4, 4, 5]
    assert read.metrics == ["a", "b", "a", "s", "c"]
    assert read.quality == [OK, BAD_BODY, OK, NO_METRICS, OK]


def test_a_rule_says_the_fields():
    body = json.dumps({"ts": "2026-01-02T03:04:05Z", "list": [{"k": "a", "v": 1, "u": "Cel"}, {"k": "b", "v": "x"}]})
    rule = DecodeRule(filter="telemetry/#", each="list", time="ts", metric="k", value="v", unit="u")
    at = time_us_of("2026-01-02T03:04:05Z")
    assert rows(body.encode(), rule) == ({"a": (1.0, None, "Cel", at), "b": (None, "x", None, at)}, OK)
    mapped = DecodeRule(metrics={"temp": "m.t", "gone": "m.x"}, time="at")
    assert rows(b'{"m":{"t":4},"at":1700000000123}', mapped)[0] == {"temp": (4.0, None, None, 1_700_000_000_123_000)}
    ignoring = DecodeRule(ignore=("id", "meta"))
    assert one(b'{"id":7,"meta":{"x":1},"t":2}', ignoring) == ({"t": 2.0}, OK)
    assert one(b'{"t":2}', DecodeRule(format="none")) == ({}, NO_METRICS)
    assert one(b'{"t":2}', DecodeRule(filter="other/#", format="none")) == ({"t": 2.0}, OK)
    assert one(b'{"list":3}', rule) == ({}, BAD_BODY)


def test_paths_reach_names_with_dots_and_integer_keys():
    """As the metrics of a body without a rule are named: `a.b` and `1`."""
    body = b'{"a.b":1,"m":{"x.y":{"z":2},"":3,"q\\"r":4},"a":{"b":5},"1":6,"t.s":1700000000}'
    paths = {"p": '"a.b"', "q": 'm."x.y".z', "r": "m.", "s": 'm."q""r"', "t": "a.b", "u": '"1"', "v": "1", "w": '"a".b'}
    found = {"p": 1.0, "q": 2.0, "r": 3.0, "s": 4.0, "t": 5.0, "u": 6.0, "v": 6.0, "w": 5.0}
    assert one(body, DecodeRule(metrics=paths)) == (found, OK)
    assert one(b'{"a.b":1,"c":2,"t.s":1700000000}', DecodeRule(ignore=('"a.b"',), time='"t.s"')) == ({"c": 2.0}, OK)
    assert rows(b'{"c":2,"t.s":1700000000}', DecodeRule(time='"t.s"'))[0] == {"c": (2.0, None, None, T_MS * 1000)}
    numbered = encode_cbor({1: 21.5, -2: {3: [7.0, 8.0]}, 4: 1_700_000_000})
    rule = DecodeRule(metrics={"temp": "1", "x": "-2.3.1", "none": '"1"', "gone": "9"}, time="4", format="cbor")
    assert rows(numbered, rule)[0] == {
        "temp": (21.5, None, None, T_MS * 1000),
        "x": (8.0, None, None, T_MS * 1000),
    }
    each = DecodeRule(each="5", metric="0", value="2", unit="1", format="cbor")
    assert rows(encode_cbor({5: [{0: "a", 1: "Cel", 2: 1.5}]}), each)[0] == {"a": (1.5, None, "Cel", None)}
    assert one(b"[1,2]", DecodeRule(metrics={"last": "-1", "first": "0", "third": "2"})) == ({"first": 1.0}, OK)
    assert one(b'{"a":1}', DecodeRule(metrics={"a": "9" * 5_000, "b": "\u0661"})) == ({}, NO_METRICS)


def test_paths_take_line_ends_and_the_greatest_keys():
    """Of integers CBOR has 64 bits: 20 digits."""
    keys = encode_cbor({(1 << 64) - 1: 1, -(1 << 64): 2, "x\n": 3, "x": 4})
    paths = {"a": str((1 << 64) - 1), "b": str(-(1 << 64)), "c": "x\n", "d": "x"}
    assert one(keys, DecodeRule(metrics=paths, format="cbor")) == ({"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}, OK)


@pytest.mark.parametrize("path", ['"a"\n', '"a', 'a."b', '"a"b', '"', 'a.""".b'])
def test_a_quoted_name_that_does_not_end_is_refused(path):
    for rule in ({"time": path}, {"metrics": {"m": path}}, {"ignore": (path,)}, {"each": path}):
        with pytest.raises(ValueError, match="a quoted name"):
            DecodeRule(**rule)


def test_times_in_every_unit():
    for value in (T_MS // 1000, T_MS, T_MS * 1_000, T_MS * 1_000_000, "2023-11-14T22:13:20Z"):
        assert time_us_of(value) == T_MS * 1000
    for none in ("yesterday", -1, True, None, float("nan"), 1e300, {}, "0300-01-01", "1969-12-31T23:59:59Z"):
        assert time_us_of(none) is None


def test_a_time_that_tables_do_not_hold_is_none():
    rule = DecodeRule(time="at", metrics={"v": "v"})
    for odd in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.9999999Z", "0300-01-01T00:00:00Z"):
        assert rows(b'{"at":"%s","v":1}' % odd.encode(), rule) == ({"v": (1.0, None, None, None)}, OK)
    for odd in (b"9e14", b"-9e14", b"1e12", b"-1e11"):
        body = b'[{"n":"a","v":1,"t":%s}]' % odd
        assert one(body, content_type="application/senml+json") == ({}, BAD_BODY), odd


def test_a_number_whose_square_is_infinite_is_skipped():
    for odd in ("1e308", "-1e151", "9" * 300):
        assert one(b'{"a":%s,"b":1}' % odd.encode()) == ({"b": 1.0}, OK)
        assert one(odd.encode(), content_type="text/plain") == ({}, NO_METRICS)
    assert one(b'{"a":1e150}') == ({"a": 1e150}, OK)


def test_plain_numbers_have_the_digits_of_ascii_alone():
    for text in ("1_000", "\u0663"):
        assert one(text.encode(), content_type="text/plain") == ({"temp": text}, OK)
        assert one(text.encode(), DecodeRule(format="number")) == ({}, BAD_BODY)


def test_plain_numbers_and_states():
    plain = {"content_type": "text/plain; charset=utf-8"}
    assert one(b" 21.5\n", **plain) == ({"temp": 21.5}, OK)
    assert one(b"on", **plain) == ({"temp": "on"}, OK)
    assert one(b"TRUE", DecodeRule(format="text")) == ({"temp": True}, OK)
    assert one(b"off", DecodeRule(format="text")) == ({"temp": "off"}, OK)
    assert one(b"off", DecodeRule(format="number")) == ({}, BAD_BODY)


SENML = [
    {"bn": "urn:dev:ow:10e2073a01080063:", "bt": 1.276020076e09, "bu": "A", "bver": 5},
    {"n": "voltage", "u": "V", "v": 120.1},
    {"n": "current", "t": -5, "v": 1.2},
    {"n": "open", "vb": True},
    {"n": "label", "vs": "x"},
]


def test_senml_records_add_up():
    """RFC 8428, 5.1.3, with a boolean and a text."""
    expected = {
        "voltage": (120.1, None, "V", 1_276_020_076_000_000),
        "current": (1.2, None, "A", 1_276_020_071_000_000),
        "open": (1.0, "true", "A", 1_276_020_076_000_000),
        "label": (None, "x", "A", 1_276_020_076_000_000),
    }
    base = "urn:dev:ow:10e2073a01080063:"
    assert rows(json.dumps(SENML).encode(), content_type="application/senml+json") == (
        {base + name: row for name, row in expected.items()},
        OK,
    )
    relative = b'[{"n":"t","v":1,"t":-10}]'
    assert rows(relative, content_type="application/senml+json")[0]["t"][3] == (T_MS - 10_000) * 1000
    for bad in (b"{}", b"[1]", b'[{"v":1}]', b'[{"n":"a","v":"x"}]', b'[{"n":"a","v":1,"t":1e300}]'):
        assert one(bad, content_type="application/senml+json") == ({}, BAD_BODY)


PLAIN = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1)),
        *(st.floats(allow_nan=False), st.text(), st.binary()),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(0, 99), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(PLAIN)
def test_cbor_round_trip(value):
    assert cbor.decode(encode_cbor(value)) == value


def tagged(inner: "st.SearchStrategy") -> "st.SearchStrategy":
    """Draws tags: bignums, decimals, dates, unknown ones, whatever they mark."""
    return st.builds(Tagged, st.sampled_from([0, 1, 2, 3, 4, 5, 32, 55_799]), inner)


MARKED = st.recursive(
    PLAIN | st.lists(st.integers(-500, 500) | st.booleans(), min_size=2, max_size=2),
    lambda inner: (
        tagged(inner) | st.lists(inner, max_size=3) | st.dictionaries(tagged(st.integers(0, 99) | st.text()), inner)
    ),
    max_leaves=6,
)


@given(st.binary() | MARKED.map(encode_cbor))
@example(bytes.fromhex("c48201f5"))
@example(bytes.fromhex("c482f505"))
@example(b"\x7f" * 3_000)
@example(b"\xc4\x9f" * 3_000)
def test_no_cbor_raises_but_undecodable(data):
    with contextlib.suppress(Undecodable):
        cbor.decode(data)


def test_keys_of_cbor_have_64_bits():
    """Multiples of 2^61 - 1 all have the hash 0: a map of them took time by the square of their number."""
    for key in (1 << 64, -(1 << 64) - 1, (1 << 61) * ((1 << 61) - 1)):
        given = encode_cbor({Tagged(2 if key >= 0 else 3, max(key, -1 - key).to_bytes(16, "big")): 1})
        with pytest.raises(Undecodable, match="64 bits"):
            cbor.decode(given)
    fits = {(1 << 64) - 1: 1, -(1 << 64): 2}
    assert cbor.decode(encode_cbor(fits)) == fits


@pytest.mark.parametrize(("begin", "item"), [(b"\x9f", b"\xa0"), (b"\x5f", b"\x40"), (b"\x81\x9f", b"\xc0\x00")])
def test_items_of_cbor_are_counted(begin, item):
    """An empty map takes one byte of a body, and 64 of memory."""
    count = (cbor.ITEMS_MAX - len(begin) - 1) // len(item)  # beside arrays, and the break
    assert cbor.decode(begin + item * count + b"\xff") is not None
    with pytest.raises(Undecodable, match="more than 262144 items"):
        cbor.decode(begin + item * (count + 2) + b"\xff")


def test_names_too_long_are_not_joined(monkeypatch):
    """A base name or a key of megabytes would be copied for each of the names behind it."""
    joined = []
    monkeypatch.setattr(Rows, "_add", lambda _, metric, *_row: joined.append(len(metric)))
    long = "k" * 10_000
    rows = Rows()
    senml.read(rows, [{"bn": long}, *[{"n": "a", "v": 1}] * 9], T_MS)
    fields.read(rows, {long: {"a": 1, "b": {"c": 2}}, "b": [{long: [1, 2]}, 3]}, "leaf")
    assert joined == [METRIC_CHARS_MAX + 2] * 9 + [len("b.1")]


def test_senml_ends_where_no_more_records_count():
    pack = [{"n": f"m{n}", "v": n} for n in range(METRICS_MAX + 1)]
    read = one(json.dumps([*pack, 7]).encode(), content_type="application/senml+json")
    assert (len(read[0]), read[1]) == (METRICS_MAX, TOO_MANY)


def test_items_of_senml_are_counted():
    """A pack without a value was read to its end: 16 MiB took seconds."""
    for record, items in (({"u": "K"}, 3), ({}, 1)):
        fits = [{"bn": "a"}, *[record] * (cbor.ITEMS_MAX // items - 3)]
        senml.read(Rows(), fits, T_MS)
        with pytest.raises(Undecodable, match="more than 262144 items"):
            senml.read(Rows(), [*fits, *[record] * 3], T_MS)


def test_decimals_are_of_two_integers():
    """RFC 8949, 3.4.4."""
    assert cbor.decode(bytes.fromhex("c48221196ab3")) == 273.15
    for odd in ("c48201f5", "c482f505", "c48101", "c4f5"):
        assert one(bytes.fromhex(odd), content_type="application/cbor")[1] in (OK, NO_METRICS), odd


def test_an_error_of_ours_is_of_one_record_and_names_itself(monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError("broken on purpose")

    monkeypatch.setitem(samples._READERS, "cbor", broken)
    monkeypatch.setattr(samples.fields, "read", broken)
    bodies = [(b"\xf5", "application/cbor"), (b'{"a":[1]}', None), (b'{"a":1}', None)]
    read = Decoder().read([Message(address="t", body=body, content_type=kind) for body, kind in bodies])
    assert (read.quality, read.metrics) == ([BAD_BODY, BAD_BODY, OK], ["a"])
    assert read.reasons == [*["unexpected ZeroDivisionError: broken on purpose"] * 2, None]


def test_units_are_cut():
    """A base unit is of every record of its pack: 8 MB of it were 2 GiB of units, which no column takes."""
    pack = json.dumps([{"bn": "a", "bu": "°" * 100, "v": 1}, {"n": "b", "v": 2}, {"n": "c", "u": "C" * 64, "v": 3}])
    found, quality = rows(pack.encode(), content_type="application/senml+json")
    assert ([unit for _, _, unit, _ in found.values()], quality) == (["°" * UNIT_CHARS_MAX] * 2 + ["C" * 64], OK)
    named = DecodeRule(metric="m", unit="u")
    assert rows(json.dumps({"m": "a", "value": 1, "u": "C" * 100}).encode(), named)[0] == {
        "a": (1, None, "C" * 64, None)
    }


def test_cbor_bodies():
    body = encode_cbor({"t": 21.5, "n": {"a": 1}})
    assert one(body, content_type="application/cbor") == ({"t": 21.5, "n.a": 1.0}, OK)
    labels = {"bn": -2, "bt": -3, "bu": -4, "bver": -1, "n": 0, "u": 1, "v": 2, "vs": 3, "vb": 4, "t": 6}
    pack = encode_cbor([{labels[k]: v for k, v in record.items()} for record in SENML])
    assert rows(pack, content_type="application/senml+cbor") == rows(
        json.dumps(SENML).encode(), content_type="application/senml+json"
    )
    assert cbor.decode(bytes.fromhex("9f0102ff")) == [1, 2]  # RFC 8949, appendix A
    assert cbor.decode(bytes.fromhex("7f657374726561646d696e67ff")) == "streaming"
    assert cbor.decode(bytes.fromhex("c249010000000000000000")) == 1 << 64
    assert cbor.decode(bytes.fromhex("f97bff")) == 65504.0
    for bad in ("ff", "0000", "9b" + "ff" * 8, "c2", "81" * 40 + "00"):
        with pytest.raises(Undecodable):
            cbor.decode(bytes.fromhex(bad))


def test_cloudevents_are_read_by_their_data():
    event = {
        "specversion": "1.0",
        "id": "1",
        "source": "/s",
        "type": "t",
        "time": "2023-11-14T22:13:20Z",
        "data": {"t": 4},
    }
    kind = {"content_type": "application/cloudevents+json; charset=utf-8"}
    assert rows(json.dumps(event).encode(), **kind) == ({"t": (4.0, None, None, T_MS * 1000)}, OK)
    pack = [{"n": "a", "v": 1, "t": -10}]
    event |= {"datacontenttype": "application/senml+json", "data": pack}
    assert rows(json.dumps(event).encode(), **kind) == ({"a": (1.0, None, None, (T_MS - 10_000) * 1000)}, OK)
    event |= {"datacontenttype": "text/plain", "data": "21.5"}
    assert one(json.dumps(event).encode(), **kind) == ({"temp": 21.5}, OK)
    assert one(b'{"data":null,"data_base64":"eyJhIjoxfQ=="}', **kind) == ({"a": 1.0}, OK)
    assert one(b'{"data":{"a":1},"data_base64":null}', **kind) == ({"a": 1.0}, OK)
    assert one(b'{"data":null,"data_base64":null}', **kind) == ({}, NO_METRICS)


@pytest.mark.parametrize(
    ("data", "type_", "found"),
    [
        (b'{"a":1,"b":{"c":2}}', "application/json", {"a": 1.0, "b.c": 2.0}),
        (b'{"a":1}', None, {"a": 1.0}),
        (b'{"a":1}', "application/vnd.x+json; charset=utf-8", {"a": 1.0}),
        (encode_cbor({"t": 21.5}), "application/cbor", {"t": 21.5}),
        (encode_cbor([{0: "a", 2: 1}]), "application/senml+cbor", {"a": 1.0}),
        (b'[{"n":"a","v":1}]', "application/senml+json", {"a": 1.0}),
        (b"21.5", "text/plain", {"temp": 21.5}),
    ],
)
def test_the_bytes_of_cloudevents_are_read_by_their_type(data, type_, found):
    kind = {"content_type": "application/cloudevents+json"}
    event = {"specversion": "1.0", "time": "2023-11-14T22:13:21Z", "data_base64": base64.b64encode(data).decode()}
    body = json.dumps(event | ({"datacontenttype": type_} if type_ else {})).encode()
    assert one(body, **kind) == (found, OK)
    assert {row[3] for row in rows(body, **kind)[0].values()} == {(T_MS + 1_000) * 1000}
    if "a" in found and "senml" not in (type_ or ""):
        assert one(body, DecodeRule(metrics={"x": "a"}), **kind) == ({"x": 1.0}, OK)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ({"data_base64": "AA=="}, "no JSON: "),
        ({"data_base64": "AA==", "datacontenttype": "image/png"}, "no JSON: "),
        ({"data_base64": "e!", "datacontenttype": "application/json"}, "data_base64 of the event is no Base64"),
        ({"data_base64": "e30=", "datacontenttype": "application/cloudevents+json"}, "the event's data is an event"),
        ({"data": {"data": 1}, "datacontenttype": "application/cloudevents+json"}, "the event's data is an event"),
        ({"data_base64": 7}, "the event has no data that can be read"),
        ({}, "the event has no data that can be read"),
        ([], "the event is no object"),
    ],
)
def test_what_is_no_data_of_an_event_says_why(event, why):
    kind = "application/cloudevents+json"
    read = Decoder().read([Message(address="t", body=json.dumps(event).encode(), content_type=kind)])
    assert (read.quality, read.reasons[0][: len(why)]) == ([BAD_BODY], why)


def test_rules_of_a_file(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text('[[devices]]\nfilter="a/#"\nlevel=1\n[[decode]]\nfilter="a/#"\nmetrics={t="x.y"}\n[other]\nz=1\n')
    rules = load_rules(path)
    assert rules.devices[0].level == 1
    assert rules.decode[0].metrics == {"t": "x.y"}
    assert DecodeRules.parse(rules.encode()) == rules
    for bad in ("[[decode]]\nform='x'\n", "[[decode]]\ntime='\"a'\n", "[[devices]]\nfilter='#/a'\n", "oops"):
        path.write_text(bad)
        with pytest.raises(BadOption, match="option rules cannot be"):
            load_rules(path)
    with pytest.raises(BadOption, match="No such file"):
        load_rules(tmp_path / "none.toml")


KINDS = st.sampled_from(
    [None, "application/json", "application/cbor", "application/senml+json", "application/senml+cbor", "text/plain",
     "application/cloudevents+json"]
)  # fmt: skip
BODIES = st.one_of(st.binary(), st.text().map(str.encode), MARKED.map(encode_cbor), st.just(b'{"value":1}'))


@pytest.mark.slow
@given(st.lists(st.tuples(BODIES, KINDS, st.sampled_from(["t/a", "spBv1.0/g/NDATA/e"]))))
def test_no_body_raises(given_):
    read = Decoder().read([Message(address=a, body=body, content_type=kind) for body, kind, a in given_])
    assert len(read.quality) == len(read.reasons) == len(given_) == len(read.bounds) - 1
    assert not any((reason or "").startswith(UNEXPECTED) for reason in read.reasons)
    columns = (read.values, read.texts, read.units, read.times_us, read.aliases)
    assert all(len(column) == len(read.metrics) == read.bounds[-1] for column in columns)
