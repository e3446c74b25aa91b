"""Telemetry bodies: what counts as a sample, and that no body is too odd to be judged."""

from hypothesis import given
from hypothesis import strategies as st

from spark.decode import samples
from store.api.message import Message


def one(body: bytes, address: str = "telemetry/d1/temp", encoding: str | None = None):
    read = samples.read([Message(address=address, body=body, content_encoding=encoding)])
    assert read.bounds == [0, len(read.metrics)]
    return dict(zip(read.metrics, read.values, strict=True)), read.quality[0]


def test_every_number_of_the_top_level_is_a_metric():
    assert one(b'{"temperature":21.5,"humidity":40}') == ({"temperature": 21.5, "humidity": 40.0}, samples.OK)
    odd = b'{"a":true,"b":"1","c":null,"d":{"e":1},"f":[1],"g":-0.5}'
    assert one(odd) == ({"g": -0.5}, samples.OK)


def test_value_is_named_by_the_last_level():
    assert one(b'{"value":3,"unit":"C"}') == ({"temp": 3.0}, samples.OK)
    assert one(b"21.5") == ({"temp": 21.5}, samples.OK)
    assert one(b"7", address="telemetry/") == ({"value": 7.0}, samples.OK)


def test_bodies_without_samples():
    assert one(b'{"state":"on"}') == ({}, samples.NO_METRICS)
    assert one(b"[1,2]") == ({}, samples.NO_METRICS)
    assert one(b"true") == ({}, samples.NO_METRICS)
    assert one(b"\x1f\x8b", encoding="gzip") == ({}, samples.ENCODED)
    for bad in (b"", b"{", b"NaN", b"\xff", b'{"\xff":1}', b"[" * 100_000, b"1e999", b"9" * 5_000, b'"\\udc00"'):
        assert one(bad) == ({}, samples.BAD_JSON), bad[:10]


def test_limits():
    many = b"{" + b",".join(b'"m%d":%d' % (n, n) for n in range(300)) + b"}"
    found, quality = one(many)
    assert (len(found), quality) == (samples.METRICS_MAX, samples.TOO_MANY)
    assert one(b'{"' + b"x" * 300 + b'":1}') == ({}, samples.NO_METRICS)
    assert one(b'{"a":' + b"9" * 400 + b"}") == ({}, samples.NO_METRICS)


def test_messages_keep_their_own_samples():
    bodies = [b'{"a":1,"b":2}', b"oops", b'{"a":3}', b"{}"]
    read = samples.read([Message(address="t", body=body) for body in bodies])
    assert read.bounds == [0, 2, 2, 3, 3]
    assert read.metrics == ["a", "b", "a"]
    assert read.quality == [samples.OK, samples.BAD_JSON, samples.OK, samples.NO_METRICS]


@given(st.lists(st.one_of(st.binary(), st.text().map(str.encode), st.just(b'{"value":1}'))))
def test_no_body_raises(bodies):
    read = samples.read([Message(address="t", body=body) for body in bodies])
    assert len(read.quality) == len(bodies) == len(read.bounds) - 1
    assert len(read.metrics) == len(read.values) == read.bounds[-1]
