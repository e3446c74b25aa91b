"""Refusals before there is a handler, which pages of allowed origins can read too, over both versions."""

from typing import Any

import pytest

from adapters.http import HttpFactory, HttpOptions
from adapters.http.wire.limits import FIELDS_COUNT_MAX
from tests.support.http.http_driver import Answer, Gateway, Http1Client, Http2Client, parse_responses, request

PAGE = "https://app.example"
ORIGIN = ("origin", PAGE)
OPTIONS = HttpOptions(
    cors_origins=(PAGE,),
    max_header_bytes=1024,
    max_body_bytes=1_000,
    request_timeout_s=5,
    arriving_bytes_max=1024 * 1024,
)
TOO_LARGE = ("x-large", "y" * 1_100)


def check(answer: Answer, status: int) -> None:
    assert answer.status == status
    assert answer["content-type"] == "application/problem+json"
    assert answer["access-control-allow-origin"] == PAGE
    assert "retry-after" in (answer["access-control-expose-headers"] or "")
    assert answer["vary"] == "origin"


@pytest.fixture(params=[Http1Client, Http2Client], ids=["h1", "h2"])
def client(request: pytest.FixtureRequest) -> Any:
    return request.param(Gateway(OPTIONS))


def test_a_body_too_large(client: Any) -> None:
    check(client.ask("POST", "/topics/a", ORIGIN, body=b"x" * 1_001), 413)


@pytest.mark.parametrize("headers", [(ORIGIN, TOO_LARGE), (TOO_LARGE, ORIGIN)], ids=["origin first", "origin last"])
def test_a_head_too_large(client: Any, headers: tuple[tuple[str, str], ...]) -> None:
    check(client.ask("GET", "/topics", *headers), 431)


def test_too_many_fields(client: Any) -> None:
    client.gateway = Gateway(HttpOptions(cors_origins=(PAGE,)))
    client = type(client)(client.gateway)
    check(client.ask("GET", "/topics", *[("a", "")] * FIELDS_COUNT_MAX, ORIGIN), 431)


def test_a_target_too_long(client: Any) -> None:
    check(client.ask("GET", "/topics?prefix=" + "a" * 1_100, ORIGIN), 414)


def test_a_page_reads_the_headers_of_events(client: Any) -> None:
    event = (("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t"), ("ce-zone", "a"))
    client.ask("POST", "/topics/a", ORIGIN, *event, body=b"x")
    answer = client.ask("GET", "/topics/a", ORIGIN)
    assert answer["ce-zone"] == "a"
    assert "*" in [name.strip() for name in (answer["access-control-expose-headers"] or "").split(",")]


def test_two_origins_are_refused_as_a_problem(client: Any) -> None:
    answer = client.ask("POST", "/topics/a", ORIGIN, ORIGIN, body=b"")
    assert (answer.status, answer.json["attribute"]) == (400, "origin")
    assert answer["access-control-allow-origin"] is None


def test_another_origin_reads_nothing(client: Any) -> None:
    answer = client.ask("POST", "/topics/a", ("origin", "https://evil.example"), body=b"x" * 1_001)
    assert (answer.status, answer["access-control-allow-origin"]) == (413, None)


def test_other_requests_go_on_beside_a_head_too_large_over_http_2() -> None:
    client = Http2Client(Gateway(OPTIONS))
    open_stream = client.send("POST", "/topics/a", ORIGIN, end=False)
    check(client.ask("POST", "/topics/b", TOO_LARGE, ORIGIN, body=b"1"), 431)
    client.h2.send_data(open_stream, b"2", end_stream=True)
    client.flush()
    assert client.answer(open_stream).status == 201
    assert [message.body for message in client.gateway.messages] == [b"2"]
    assert client.goaway is None


HEAD = f"POST /topics/a HTTP/1.1\r\nhost: h\r\norigin: {PAGE}\r\nx: y\r\n".encode()


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        (b"bad field\r\n\r\n", 400),
        (b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"transfer-encoding: chunked\r\n\r\n1;" + b"e" * 20_000 + b"\r\n", 400),
        (b"transfer-encoding: gzip, chunked\r\n\r\n", 501),
        (b"expect: miracles\r\n\r\n", 417),
        (b"host: h\r\n\r\n", 400),
    ],
)
def test_other_refusals_of_http_1_1(rest: bytes, status: int) -> None:
    (answer,) = parse_responses(Gateway(OPTIONS).feed(HEAD + rest))
    check(answer, status)


def test_a_request_that_takes_too_long() -> None:
    gateway = Gateway(OPTIONS)
    gateway.feed(HEAD + b"content-length: 5\r\n\r\n")
    (answer,) = parse_responses(gateway.tick(after_ms=5_000))
    check(answer, 408)
    client = Http2Client(Gateway(OPTIONS))
    stream = client.send("POST", "/topics/a", ORIGIN, end=False)
    client.flush()
    client.read(client.gateway.tick(after_ms=5_000))
    check(client.answer(stream), 408)


def test_bodies_of_too_many_at_once() -> None:
    for make in (Http1Client, Http2Client):
        factory = HttpFactory()
        factory.arriving.held_bytes = 1024 * 1024
        client = make(Gateway(HttpOptions(cors_origins=(PAGE,), arriving_bytes_max=1024 * 1024), factory=factory))
        if isinstance(client, Http2Client):
            stream = client.send("POST", "/topics/a", ORIGIN, body=b"x" * 100_000, end=False)
            client.flush()
            answer = client.answer(stream)
        else:
            (answer,) = parse_responses(client.gateway.feed(HEAD + b"content-length: 200000\r\n\r\n" + b"x" * 100_000))
        check(answer, 503)


@pytest.mark.parametrize("piece", [1, 100, 1_200, 5_000])
def test_the_rest_of_a_head_too_large_is_read_for_its_origin(piece: int) -> None:
    data = request("GET", "/topics", TOO_LARGE, ("x-more", "z" * 500), ORIGIN, ("x-end", "1"))
    gateway = Gateway(OPTIONS)
    (answer,) = parse_responses(b"".join(gateway.feed(data[at : at + piece]) for at in range(0, len(data), piece)))
    check(answer, 431)


def test_the_rest_of_a_head_too_large_is_bounded() -> None:
    data = request("GET", "/topics", ("x-large", "y" * 2_100), ORIGIN)
    gateway = Gateway(OPTIONS)
    (answer,) = parse_responses(b"".join(gateway.feed(data[at : at + 100]) for at in range(0, len(data), 100)))
    assert (answer.status, answer["access-control-allow-origin"]) == (431, None)


def test_a_head_too_large_that_goes_on_is_not_timed_out_but_refused() -> None:
    gateway = Gateway(OPTIONS)
    assert gateway.feed(request("GET", "/topics", TOO_LARGE, ("x-more", "z"))[:-4]) == b""
    (answer,) = parse_responses(gateway.tick(after_ms=5_000))
    assert answer.status == 431


def test_where_all_pages_may_use_it_a_refusal_without_an_origin_is_for_all() -> None:
    gateway = Gateway(HttpOptions(cors_origins=("*",), max_header_bytes=1024))
    (answer,) = parse_responses(gateway.feed(request("GET", "/topics", TOO_LARGE, ORIGIN)))
    assert (answer.status, answer["access-control-allow-origin"]) == (431, "*")
    (plain,) = parse_responses(Gateway(OPTIONS).feed(request("GET", "/topics")))
    assert plain["access-control-allow-origin"] is None
