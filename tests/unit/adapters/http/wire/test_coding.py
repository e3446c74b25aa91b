"""Content codings: what a coding says is what was sent, a bomb is refused while it is small, and rubbish is none."""

import gzip
import random
import time
from importlib.util import find_spec

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.http.wire.coding import CODINGS, compressed, decoded
from adapters.http.wire.request import HttpError, HttpRequest
from adapters.http.wire.response import Response
from tests.support.http.codings import ENCODE
from tests.support.process.examples import examples

LIMIT = 1 << 16
if find_spec("brotli") is not None:
    from brotli import compress

    ENCODE["br"] = compress


def request(body: bytes = b"", **headers: str) -> HttpRequest:
    said = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return HttpRequest(method="POST", target=b"/events", headers=said, body=body)


@settings(max_examples=examples(50), deadline=None)
@given(st.binary(max_size=4_096), st.sampled_from(list(ENCODE)))
def test_what_was_encoded_is_decoded(body: bytes, coding: str) -> None:
    assert decoded(request(ENCODE[coding](body), content_encoding=coding.upper()), LIMIT) == body


def test_several_codings_and_none() -> None:
    body = zstandard.compress(gzip.compress(b"x"))
    assert decoded(request(body, content_encoding="gzip, identity, zstd"), LIMIT) == b"x"
    assert decoded(request(b"x"), LIMIT) == b"x"
    assert decoded(request(b"x", content_encoding="identity"), LIMIT) == b"x"
    members = gzip.compress(b"a") + gzip.compress(b"b")
    assert decoded(request(members, content_encoding="gzip"), LIMIT) == b"ab"
    frames = zstandard.compress(b"a") + zstandard.compress(b"b")
    assert decoded(request(frames, content_encoding="zstd"), LIMIT) == b"ab"


@pytest.mark.slow
@pytest.mark.parametrize("coding", ENCODE)
def test_a_bomb_is_refused(coding: str) -> None:
    body = ENCODE[coding](bytes(64 << 20))
    with pytest.raises(HttpError, match="more than") as caught:
        decoded(request(body, content_encoding=coding), LIMIT)
    assert caught.value.code == 413


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_parts_without_number_are_refused_before_they_cost_much(coding: str) -> None:
    """4 MiB of empty members took 12 s, and were 10 KB when they were encoded once more."""
    part = ENCODE[coding](b"")
    assert decoded(request(part * 1_024, content_encoding=coding), LIMIT) == b""
    began = time.process_time()
    with pytest.raises(HttpError, match="at most 1024 members or frames") as caught:
        decoded(request(part * ((4 << 20) // len(part)), content_encoding=coding), 4 << 20)
    assert caught.value.code == 400
    assert time.process_time() - began < 1


def test_long_members_may_be_several() -> None:
    parts = [random.Random(number).randbytes(150_000) for number in range(3)]
    body = b"".join(gzip.compress(part) for part in parts)
    assert decoded(request(body, content_encoding="gzip"), 1 << 20) == b"".join(parts)
    assert decoded(request(b"", content_encoding="gzip"), LIMIT) == b""


@pytest.mark.parametrize("coding", ENCODE)
def test_what_is_not_in_its_coding_is_refused(coding: str) -> None:
    whole = ENCODE[coding](b"some text that is long enough" * 20)
    for body in (b"no such thing", whole[:-3], whole + b"rubbish", whole[: len(whole) // 2]):
        with pytest.raises(HttpError) as caught:
            decoded(request(body, content_encoding=coding), LIMIT)
        assert caught.value.code == 400, body


def test_an_unknown_coding_is_told_the_known_ones() -> None:
    with pytest.raises(HttpError) as caught:
        decoded(request(b"x", content_encoding="compress"), LIMIT)
    assert caught.value.code == 415
    assert caught.value.headers == ((b"accept-encoding", CODINGS),)
    with pytest.raises(HttpError):
        decoded(request(b"x", content_encoding="gzip, gzip, gzip"), LIMIT)


JSON = Response(status=200, headers=((b"content-type", b"application/json"),), body=b'["x"]' * 1_000)


@pytest.mark.parametrize(
    ("accepts", "coding"),
    [
        ("gzip", "gzip"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip;q=1, zstd;q=0.5", "gzip"),
        ("*", "zstd"),
        ("identity", None),
        ("gzip;q=0.5, identity;q=1", None),
        ("gzip;q=0", None),
        ("br", "br" if "br" in ENCODE else None),
        ("gzip, deflate, br", "br" if "br" in ENCODE else "gzip"),
        ("", None),
    ],
)
def test_a_response_is_as_the_client_accepts_it(accepts: str, coding: str | None) -> None:
    found = compressed(request(accept_encoding=accepts), JSON, 1_024)
    headers = dict(found.headers)
    assert headers[b"vary"] == b"accept-encoding"
    assert headers.get(b"content-encoding") == (None if coding is None else coding.encode())
    if coding is None:
        assert found.body == JSON.body
    else:
        assert decoded(request(found.body, content_encoding=coding), LIMIT) == JSON.body


def test_what_is_small_or_has_a_validator_or_is_no_text_of_ours_stays() -> None:
    accepting = request(accept_encoding="gzip")
    assert compressed(accepting, JSON, 0) is JSON
    assert compressed(accepting, JSON, 1 << 20) is JSON
    for header in ((b"etag", b'"1"'), (b"content-encoding", b"gzip")):
        one = Response(status=200, headers=(*JSON.headers, header), body=JSON.body)
        assert compressed(accepting, one, 1_024) is one
    image = Response(status=200, headers=((b"content-type", b"image/png"),), body=JSON.body)
    assert compressed(accepting, image, 1_024) is image
