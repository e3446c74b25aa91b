"""HTTP/1.1 on the wire."""

import tracemalloc

import pytest

from adapters.http import HttpOptions
from adapters.http.handlers.waiting import ASKED_MAX
from adapters.http.wire.chunks import EXTENSION_BYTES_MAX
from adapters.http.wire.h1 import EMPTY_LINES_BYTES_MAX, LINGER_MS
from adapters.http.wire.limits import FIELDS_COUNT_MAX
from gateway.port.adapter import Call, Publish
from store.api.message import Message
from tests.support.http.http_driver import Gateway, Http1Client, parse_responses, request

POST = request("POST", "/topics/a", body=b"1")
GET = request("GET", "/topics/a")


def statuses(data: bytes) -> list[int]:
    return [answer.status for answer in parse_responses(data)]


def test_pipelined_requests_are_one_publish_and_answered_in_order() -> None:
    gateway = Gateway()
    answers = parse_responses(gateway.feed(b"".join(request("POST", f"/topics/a/{n}", body=b"x") for n in range(50))))
    assert [answer["location"] for answer in answers] == [f"/topics/a/{n}" for n in range(50)]
    assert [len(frame) for frame in gateway.frames] == [50]


def test_nothing_is_acknowledged_before_it_is_durable() -> None:
    gateway = Gateway()
    gateway.feed(GET)  # the client is known from here on
    gateway.hold = True
    assert gateway.feed(POST) == b""
    assert [type(effect) for effect in gateway.held] == [Publish]
    assert statuses(gateway.release()) == [201]


def test_a_read_behind_a_write_sees_it_and_the_reverse() -> None:
    gateway = Gateway()
    gateway.feed(POST)
    gateway.hold = True
    assert gateway.feed(GET + POST + POST + GET) == b""
    assert [type(effect) for effect in gateway.held] == [Call]
    answers = parse_responses(gateway.release())
    assert [answer.status for answer in answers] == [200, 201, 201, 200]
    assert [answers[0]["ce-id"], answers[3]["ce-id"]] == ["1.0", "2.1"]


def test_chunked_bodies_are_read() -> None:
    gateway = Gateway()
    head = b"POST /topics/a HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    out = gateway.feed(head + b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\ntrailer: x\r\n\r\n")
    assert statuses(out) == [201]
    assert gateway.messages[0].body == b"abcde"


EXPECTING = b"POST /topics/a HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\nexpect: 100-continue\r\n\r\n"


def test_expect_100_continue() -> None:
    gateway = Gateway()
    assert gateway.feed(EXPECTING) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert statuses(gateway.feed(b"1")) == [201]
    assert statuses(gateway.feed(EXPECTING.replace(b"100-continue", b"miracles"))) == [417]


def test_the_body_of_a_request_behind_an_unanswered_one_may_come_when_that_is_answered() -> None:
    """A client that does not send it without 100 (RFC 9110, 10.1.1) waited for 408."""
    gateway = Gateway(hold=True)
    assert gateway.feed(request("GET", "/topics/a") * 2 + EXPECTING) == b""
    out = gateway.release()
    assert out.endswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert out.count(b"HTTP/1.1 404 ") == 2
    assert statuses(gateway.feed(b"1")) == [201]


def test_a_body_that_has_come_is_not_asked_for() -> None:
    gateway = Gateway(hold=True)
    head = EXPECTING.replace(b"content-length: 1", b"content-length: 2")
    assert gateway.feed(request("GET", "/topics/a") + head + b"1") == b""
    assert statuses(gateway.release()) == [404]
    assert statuses(gateway.feed(b"2")) == [201]


def test_a_request_behind_an_unanswered_one_is_refused_by_its_head_in_its_turn() -> None:
    gateway = Gateway(hold=True)
    gateway.feed(request("GET", "/topics/a") + EXPECTING.replace(b"/topics/a", b"/nothing"))
    gateway.now_ms += 20_000
    assert statuses(gateway.release()) == [404, 404]
    gateway.feed(b"1")
    assert gateway.messages == []
    gateway.tick(after_ms=LINGER_MS - 1)
    assert not gateway.closed, "the client may not have read the answer yet"
    gateway.tick(after_ms=1)
    assert gateway.closed


def test_a_request_that_has_to_wait_for_its_turn_is_not_late() -> None:
    """Its client was told that it took too long before it was let send its body, or a moment after."""
    gateway = Gateway(hold=True)
    gateway.feed(request("GET", "/topics/a") + EXPECTING)
    assert gateway.tick(after_ms=45_000) == b""
    assert gateway.release().endswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert gateway.tick(after_ms=29_000) == b""
    assert statuses(gateway.feed(b"1")) == [201]


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ([b"100-continue", b"miracles"], 417),
        ([b"miracles", b"100-continue"], 417),
        ([b"100-continue, miracles"], 417),
        ([b"100-continue", b"100-Continue"], 100),
        ([b"100-continue", b""], 100),
        ([b", 100-continue ,"], 100),
        ([b""], None),
    ],
)
def test_several_expect_fields_are_one_list(values: list[bytes], status: int | None) -> None:
    fields = b"".join([b"expect: " + value + b"\r\n" for value in values])
    out = Gateway().feed(b"POST /topics/a HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n" + fields + b"\r\n")
    assert out[9:12] == (b"" if status is None else b"%d" % status)


def test_a_method_that_is_known_and_not_served_is_not_allowed() -> None:
    (answer,) = parse_responses(Gateway().feed(b"QUERY /events HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"))
    assert (answer.status, answer["allow"]) == (405, "OPTIONS, POST")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\x01\x02", 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\n folded: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nhost: a\n\n", 400),
        (b"GET / HTTP/1.1\r\nhost : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n11", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/3.7\r\nhost: a\r\n\r\n", 505),
        (b"GET / HTTP/2.0\r\nhost: a\r\n\r\n", 505),
        (b"GET / HTTP/0.9\r\n\r\n", 505),
        (b"SOURCE / HTTP/1.1\r\nhost: a\r\n\r\n", 501),
        (b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n", 501),
    ],
)
def test_what_is_malformed_is_answered_behind_what_is_not_and_ends_the_connection(data: bytes, status: int) -> None:
    gateway = Gateway()
    answers = parse_responses(gateway.feed(POST + data))
    assert [answer.status for answer in answers] == [201, status]
    assert answers[1]["content-type"] == "application/problem+json"
    assert answers[1]["connection"] == "close"
    assert gateway.closed
    assert gateway.feed(POST) == b""
    assert len(gateway.messages) == 1


def test_a_body_too_large_is_refused_before_it_comes() -> None:
    gateway = Gateway(HttpOptions(max_body_bytes=10))
    out = gateway.feed(b"POST /topics/a HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 11\r\n\r\n")
    assert statuses(out) == [413]
    assert not gateway.closed  # requests in flight are read and dropped, so that the answer arrives
    assert gateway.feed(b"x" * 11) == b""
    gateway.tick(after_ms=LINGER_MS)
    assert gateway.closed


def test_a_chunked_body_too_large_is_refused() -> None:
    gateway = Gateway(HttpOptions(max_body_bytes=10))
    head = b"POST /topics/a HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    assert gateway.feed(head + b"8\r\n12345678\r\n") == b""
    assert statuses(gateway.feed(b"3\r\nabc\r\n")) == [413]
    assert gateway.messages == []


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nx: " + b"a" * 2000,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 400,
    ],
)
def test_a_head_too_large_is_refused(data: bytes) -> None:
    gateway = Gateway(HttpOptions(max_header_bytes=1024))
    out = b"".join(gateway.feed(data[i : i + 100]) for i in range(0, len(data), 100))
    assert statuses(out) == [431]


@pytest.mark.parametrize("piece", [1, 100, 10_000])
def test_a_target_too_long_is_refused_with_a_status_of_its_own(piece: int) -> None:
    """(RFC 9112, 3)"""
    gateway = Gateway(HttpOptions(max_header_bytes=1024))
    data = b"GET /" + b"a" * 2000 + b" HTTP/1.1\r\nhost: h\r\n\r\n"
    (answer,) = parse_responses(b"".join(gateway.feed(data[i : i + piece]) for i in range(0, len(data), piece)))
    assert (answer.status, answer.json["title"]) == (414, "URI Too Long")


@pytest.mark.parametrize("behind", [b"", POST])
def test_empty_lines_before_a_request_are_passed_over_and_bounded(behind: bytes) -> None:
    """(RFC 9112, 2.2)"""
    gateway = Gateway()
    first = statuses(gateway.feed(behind))
    assert statuses(gateway.feed(b"\r\n" * 3 + POST)) == [201]
    for _ in range(EMPTY_LINES_BYTES_MAX // 2):
        assert gateway.feed(b"\r\n") == b""
    assert statuses(gateway.feed(b"\r\n" + POST)) == [400]
    assert gateway.closed
    assert len(gateway.messages) == 1 + len(first)


@pytest.mark.parametrize("version", [b"1.1", b"1.2", b"1.9"])
def test_a_minor_version_that_is_higher_is_read_as_1_1(version: bytes) -> None:
    """(RFC 9110, 2.5)"""
    gateway = Gateway()
    data = POST.replace(b"HTTP/1.1", b"HTTP/" + version)
    assert statuses(gateway.feed(data + data)) == [201, 201]
    chunked = CHUNKED.replace(b"HTTP/1.1", b"HTTP/" + version)
    assert statuses(gateway.feed(chunked + b"1\r\nx\r\n0\r\n\r\n")) == [201]
    assert not gateway.closed


CHUNKED = b"POST /topics/a HTTP/1.1\r\nhost: h\r\ntransfer-encoding: Chunked\r\n\r\n"


@pytest.mark.parametrize("piece", [1, 7, 1000, 1_000_000])
@pytest.mark.parametrize(
    ("chunk", "room"),
    [(b"1;%b\r\nx\r\n", 1), (b"2;e=%b\r\nx\n\r\n", 3), (b"%b0001\r\nx\r\n", 3)],
    ids=["a name", "a value", "zeros"],
)
def test_chunk_extensions_are_bounded_together(chunk: bytes, room: int, piece: int) -> None:
    """(RFC 9112, 7.1.1)"""
    filler = (b"0" if b"%b000" in chunk else b"e") * (EXTENSION_BYTES_MAX // 4 - room)
    for surplus, status in ((b"", 201), (b";e", 400)):
        gateway = Gateway(HttpOptions(max_header_bytes=1024))
        data = CHUNKED + (chunk % filler) * 4 + b"0" + surplus + b"\r\nx: y\r\n\r\n" + POST
        found = statuses(b"".join(gateway.feed(data[at : at + piece]) for at in range(0, len(data), piece)))
        assert found == [status, 201][: 1 + (status == 201)]
        assert gateway.closed == (status == 400)


@pytest.mark.parametrize("piece", [1, 1_000_000])
def test_a_size_without_end_is_refused(piece: int) -> None:
    gateway = Gateway()
    data = CHUNKED + b"1;" + b"e" * EXTENSION_BYTES_MAX + b"e"
    out = b"".join(gateway.feed(data[at : at + piece]) for at in range(0, len(data), piece))
    assert gateway.feed(b"eeee\r\nx\r\n") + out != b""
    assert gateway.messages == []


def test_a_body_of_many_small_chunks_takes_no_more_memory_than_it_is_long() -> None:
    """Parts of two bytes took 56 each."""
    gateway = Gateway()
    gateway.feed(CHUNKED)
    tracemalloc.start()
    for _ in range(100):
        gateway.feed(b"2\r\nab\r\n" * 1_000)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 2 * 200_000
    assert statuses(gateway.feed(b"0\r\n\r\n")) == [201]
    assert gateway.messages[0].body == b"ab" * 100_000


def test_fields_are_counted_with_the_trailers() -> None:
    gateway = Gateway()
    lines = b"a:\r\n" * (FIELDS_COUNT_MAX // 2)
    head = CHUNKED.replace(b"host: h\r\n", b"host: h\r\n" + lines)
    assert statuses(gateway.feed(head + b"0\r\n" + lines[:-20] + b"\r\n")) == [201]
    assert statuses(gateway.feed(head + b"0\r\n" + lines + b"\r\n")) == [431]
    assert statuses(Gateway().feed(b"GET / HTTP/1.1\r\nhost: h\r\n" + lines * 2 + b"\r\n")) == [431]


@pytest.mark.parametrize("target", [b"/topics#a", b"*", b"http:/topics", b"http://", b"topics", b"ftp://h/topics"])
def test_what_is_no_target_is_a_bad_request(target: bytes) -> None:
    """(RFC 9112, 3.2)"""
    assert statuses(Gateway().feed(b"GET " + target + b" HTTP/1.1\r\nhost: h\r\n\r\n")) == [400]


def test_the_host_of_an_absolute_target_counts_in_place_of_the_field() -> None:
    """(RFC 9112, 3.2.2)"""
    evil = b"POST http://evil.example/topics/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
    local = evil.replace(b"localhost", b"h").replace(b"evil.example", b"localhost")
    assert [statuses(Gateway(peer="127.0.0.1").feed(data)) for data in (evil, local)] == [[403], [201]]
    page = local.replace(b"host: h", b"host: h\r\norigin: http://%b")
    assert statuses(Gateway().feed(page % b"localhost")) == [201]
    assert statuses(Gateway().feed(page % b"h")) == [403]
    assert statuses(Gateway().feed(local.replace(b"host: h", b"host: a b"))) == [400]


def test_trailers_count_as_head() -> None:
    gateway = Gateway(HttpOptions(max_header_bytes=1024))
    head = b"POST /topics/a HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
    assert statuses(gateway.feed(head + b"x: y\r\n" * 400 + b"\r\n")) == [431]


def test_a_request_that_does_not_end_is_timed_out() -> None:
    gateway = Gateway(HttpOptions(request_timeout_s=5))
    gateway.feed(b"POST /topics/a HTTP/1.1\r\n")
    assert gateway.tick(after_ms=4_999) == b""
    assert statuses(gateway.tick(after_ms=1)) == [408]
    assert gateway.closed


def test_slow_bytes_do_not_stretch_the_timeout() -> None:
    gateway = Gateway(HttpOptions(request_timeout_s=5))
    out = b""
    for byte in POST[:-1]:
        out += gateway.feed(bytes([byte])) + gateway.tick(after_ms=100)
    assert statuses(out) == [408]


def test_an_idle_connection_is_closed() -> None:
    gateway = Gateway(HttpOptions(idle_timeout_s=5))
    gateway.tick(after_ms=4_999)
    assert not gateway.closed
    gateway.feed(POST)
    gateway.tick(after_ms=4_999)
    assert not gateway.closed
    gateway.tick(after_ms=1)
    assert gateway.closed


def test_a_connection_that_says_nothing_is_closed() -> None:
    gateway = Gateway(HttpOptions(idle_timeout_s=5))
    gateway.tick(after_ms=5_000)
    assert gateway.closed


def test_a_connection_that_waits_for_its_answer_is_not_idle() -> None:
    gateway = Gateway(HttpOptions(idle_timeout_s=5), hold=True)
    gateway.feed(POST)
    gateway.tick(after_ms=60_000)
    assert not gateway.closed
    assert statuses(gateway.release()) == [201]


def test_connection_close_and_http_1_0() -> None:
    gateway = Gateway()
    (answer,) = parse_responses(gateway.feed(request("GET", "/topics", ("connection", "close")) + GET))
    assert answer["connection"] == "close"
    assert gateway.closed
    gateway = Gateway()
    (answer,) = parse_responses(gateway.feed(b"GET /topics HTTP/1.0\r\n\r\n"))
    assert answer["connection"] == "close"
    assert gateway.closed
    gateway = Gateway()
    (answer,) = parse_responses(gateway.feed(b"GET /topics HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"))
    assert answer["connection"] == "keep-alive"
    assert not gateway.closed


def test_too_many_unanswered_requests_stop_the_reading() -> None:
    gateway = Gateway(HttpOptions(max_pipelined=4), hold=True)
    gateway.feed(POST * 3)
    assert gateway.adapter.wants_data
    gateway.feed(POST * 2)
    assert not gateway.adapter.wants_data
    assert statuses(gateway.release()) == [201] * 5
    assert gateway.adapter.wants_data


def test_nothing_begins_behind_an_event_stream_before_it_ends() -> None:
    """Else a second stream would silence the first, and messages would be stored that can never be acknowledged."""
    gateway = Gateway()
    gateway.feed(POST)  # so that the next one may take the short way
    stored = len(gateway.messages)
    gateway.feed(request("GET", "/subscribe?filter=a") + request("GET", "/subscribe?filter=b") + POST)
    gateway.feed(POST)
    gateway.feed(request("GET", "/kv?watch"))
    assert [effect.pattern for effect in gateway.subscriptions.values()] == ["a"]
    assert len(gateway.messages) == stored
    for frame in range(100, 120):
        gateway.deliver([Message(address="a", body=b"x" * 50_000, time_ms=0, protocol="mqtt")], frame=frame)
        assert b"event: message" in gateway.adapter.take_output()
    gateway.act(gateway.adapter.shutdown(now_ms=gateway.now_ms))
    ended, _, refused = gateway.adapter.take_output().partition(b"0\r\n\r\n")
    assert ended == b""
    assert statuses(refused) == [503] * 4
    assert gateway.closed
    assert len(gateway.messages) == stored


def test_bodies_behind_an_event_stream_are_not_held() -> None:
    """They held the budget of all connections for as long as the stream lasted."""
    gateway = Gateway()
    gateway.feed(request("GET", "/subscribe?filter=a"))
    for _ in range(3):
        gateway.feed(request("POST", "/topics/a", body=b"x" * 1_000_000))
        assert gateway.adapter._share.held_bytes == 0
    assert gateway.adapter.wants_data
    gateway.feed(request("GET", "/topics"))
    assert not gateway.adapter.wants_data, "one waits, so others need not be read"
    assert gateway.messages == []


def test_no_stream_begins_at_a_shutdown() -> None:
    gateway = Gateway(hold=True)
    gateway.feed(POST + request("GET", "/subscribe?filter=a") + POST)
    gateway.act(gateway.adapter.shutdown(now_ms=gateway.now_ms))
    gateway.hold = False
    assert statuses(gateway.release()) == [201, 503, 201]
    assert gateway.closed


def test_a_peer_that_does_not_read_is_not_answered_more_than_there_is_room_for() -> None:
    gateway = Gateway(HttpOptions(max_held_bytes=64 * 1024))
    gateway.feed(request("POST", "/topics/a", body=b"x" * 10_000))
    gateway.act(gateway.adapter.receive(request("GET", "/topics/a") * 200, now_ms=gateway.now_ms))
    first = gateway.adapter.take_output()
    assert len(first) < 64 * 1024 + ASKED_MAX * 11_000
    got = statuses(first)
    while gateway.adapter.deadline_ms() == 0:
        got += statuses(gateway.tick())
    assert got == [200] * 200


def test_absolute_targets() -> None:
    client = Http1Client(Gateway())
    assert client.ask("POST", "http://gateway.example/topics/a/b?qos=0", body=b"").status == 201
    assert client.gateway.messages[0].address == "a/b"
    assert client.ask("GET", "http://gateway.example").status == 404


def test_shutdown_answers_what_is_under_way() -> None:
    gateway = Gateway()
    gateway.feed(GET)
    gateway.hold = True
    gateway.feed(POST)
    gateway.act(gateway.adapter.shutdown(now_ms=gateway.now_ms))
    assert not gateway.closed
    (answer,) = parse_responses(gateway.release())
    assert (answer.status, answer["connection"]) == (201, "close")
    assert gateway.closed
    assert gateway.feed(POST) == b""


def test_shutdown_closes_what_is_idle() -> None:
    for opening in (b"", GET):
        gateway = Gateway()
        if opening:
            gateway.feed(opening)
        gateway.act(gateway.adapter.shutdown(now_ms=gateway.now_ms))
        assert gateway.closed
        assert gateway.adapter.deadline_ms() is None


@pytest.mark.parametrize("body", [None, b"12"])
def test_other_upgrades_are_passed_over(body: bytes | None) -> None:
    gateway = Gateway()
    headers = (("connection", "upgrade"), ("upgrade", "websocket"))
    method, target = ("GET", "/topics") if body is None else ("POST", "/topics/a")
    data = request(method, target, *headers, body=body)
    assert len(statuses(gateway.feed(data * 200))) == 200
    assert not gateway.closed
    assert [message.body for message in gateway.messages] == ([] if body is None else [body] * 200)
