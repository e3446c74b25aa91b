"""Requests that mean to mislead: hosts, targets, methods and parameters that are none, over both versions."""

from typing import Any, TypeAlias

import pytest

from tests.support.http.http_driver import Gateway, Http1Client, Http2Client

Client: TypeAlias = Http1Client | Http2Client

GET = b"GET /topics HTTP/1.1\r\n"


def first_line(raw: bytes) -> bytes:
    return Gateway().feed(raw).split(b"\r\n", 1)[0]


@pytest.mark.parametrize("host", ["h", "h:80", "h:", "", "[::1]", "[::1]:8080", "a-b.example", "10.0.0.1", "%41"])
def test_a_host_is_a_name_or_an_address_and_maybe_a_port(host: str) -> None:
    assert first_line(GET + f"Host: {host}\r\n\r\n".encode()) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("host", ["a b", "h/x", "u@h", "h:8x", "[::1", "::1", "h#x", "h?x", "h\\x", "h%zz", "é"])
def test_what_is_no_host_is_a_bad_request(host: str) -> None:
    """(RFC 9112, 3.2)"""
    assert first_line(GET + f"Host: {host}\r\n\r\n".encode()) == b"HTTP/1.1 400 Bad Request"


def test_over_http_2_too() -> None:
    client = Http2Client(Gateway())
    assert client.ask("GET", "/topics").status == 200
    stream = client.send("GET", "/topics")  # so that there is a place for what the next one is answered
    pseudo = [(":method", "GET"), (":scheme", "http"), (":authority", "u@h"), (":path", "/topics")]
    client.received[stream + 2] = type(client.received[stream])()
    client.h2.send_headers(stream + 2, pseudo, end_stream=True)
    client.flush()
    assert client.answer(stream + 2).status == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "topics", 400), ("GET", "/topics#a", 400), ("GET", "/a b", 400), ("GET", "*", 400), ("OPTIONS", "*", 204)],
)
def test_what_is_no_path_over_http_2_is_a_bad_request(method: str, path: str, status: int) -> None:
    """(RFC 9113, 8.3.1)"""
    assert Http2Client(Gateway()).ask(method, path).status == status


def test_http_2_is_no_tunnel() -> None:
    """(RFC 9113, 8.5)"""
    client = Http2Client(Gateway())
    stream = client.send("GET", "/topics")
    client.received[stream + 2] = type(client.received[stream])()
    client.h2.send_headers(stream + 2, [(":method", "CONNECT"), (":authority", "h:1")], end_stream=True)
    client.flush()
    assert client.answer(stream + 2).status == 501
    assert client.answer(stream).status == 200


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://u:p@h/topics", b"400"),
        (b"http://h/topics", b"200"),
        (b"http://h/topics?prefix=a@b", b"200"),
    ],
)
def test_a_target_that_names_a_user_is_a_bad_request(target: bytes, status: bytes) -> None:
    """(RFC 9110, 4.2.4)"""
    assert first_line(b"GET " + target + b" HTTP/1.1\r\nHost: h\r\n\r\n").split(b" ")[1] == status


@pytest.mark.parametrize("method", ["FOO", "get", "BREW", "M-X"])
def test_a_method_that_nobody_knows_is_not_implemented(method: str) -> None:
    """(RFC 9110, 9.1)"""
    line = first_line(f"{method} /topics HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    assert line == b"HTTP/1.1 501 Not Implemented"
    assert Http2Client(Gateway()).ask(method, "/topics").status == 501


@pytest.mark.parametrize(
    "noise", [b"\x16\x03\x01\x02\x00", b"A" * 40 + b" / HTTP/1.1\r\n\r\n", b"@@@ /\r\n\r\n", b" GET /\r\n"]
)
def test_what_is_no_request_at_all_is_a_bad_request(noise: bytes) -> None:
    assert first_line(noise + b"\r\n\r\n") == b"HTTP/1.1 400 Bad Request"


def test_bytes_behind_a_whole_request_are_not_taken_for_its_method() -> None:
    out = Gateway().feed(b"POST /topics/a HTTP/1.1\r\nHost: h\r\n\r\nabc")
    assert b"HTTP/1.1 201 Created" in out
    assert b"HTTP/1.1 400 Bad Request" in out


@pytest.fixture(params=[Http1Client, Http2Client], ids=["h1", "h2"])
def client(request: pytest.FixtureRequest) -> Any:
    return request.param(Gateway())


@pytest.mark.parametrize(
    "target", ["/topics?prefix=a&prefix=b", "/topics?limit=1&limit=2", "/topics/%23?limit=1&limit=2"]
)
def test_a_parameter_that_is_given_twice_is_refused(client: Client, target: str) -> None:
    """The last one was taken, and the others dropped without a word."""
    assert client.ask("GET", target).status == 400


def test_a_known_method_is_told_which_others_there_are(client: Client) -> None:
    answer = client.ask("PATCH", "/topics")
    assert (answer.status, answer["allow"]) == (405, "GET, HEAD, OPTIONS")
