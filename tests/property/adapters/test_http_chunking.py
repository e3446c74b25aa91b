"""However the bytes of a connection are cut, the same messages are stored and the same answers given."""

import json
from base64 import b64encode

from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.cloudevents import attributes_of, from_structured, to_structured
from store.api.message import Message
from tests.support.http.http_driver import Answer, Gateway, Http2Client, parse_responses, request

EVENT = json.dumps({"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": 1}).encode()
STRUCTURED = ("content-type", "application/cloudevents+json")
CHUNKED = b"POST /topics/c HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n"
EXTENDED = b"POST /topics/e HTTP/1.1\r\nhost: h\r\nTransfer-Encoding: Chunked\r\n\r\n"
EXTENDED += b'3;a;b="\\";c"\r\nabc\r\n02;d=e\r\n\r\n\r\n0;f\r\nx-sum: 1\r\ny:\r\n\r\n'
REQUESTS = [
    request("POST", "/topics/a/b?qos=2", ("ce-ext", "x"), body=b"hello"),
    request("POST", "/events", STRUCTURED, body=EVENT),
    request("POST", "/events", STRUCTURED, body=b"no event"),
    request("GET", "/topics/a/b"),
    request("GET", "/topics"),
    request("GET", "/nothing", ("connection", "upgrade"), ("upgrade", "websocket")),
    request("POST", "/topics/u", ("connection", "upgrade"), ("upgrade", "h2c"), body=b"body"),
    request("OPTIONS", "*"),
    CHUNKED,
    EXTENDED,
]
cuts = st.lists(st.integers(1, 60), max_size=60)


def feed_in_pieces(gateway: Gateway, data: bytes, sizes: list[int]) -> bytes:
    out = b""
    for size in sizes:
        piece, data = data[:size], data[size:]
        if piece:
            out += gateway.feed(piece)
    return out + (gateway.feed(data) if data else b"")


def comparable(answers: list[Answer]) -> list[tuple[int, bytes]]:
    """Returns the answers without positions, which depend on what was published together."""
    return [
        (answer.status, b"" if answer["location"] or b"position" in answer.body else answer.body) for answer in answers
    ]


@settings(deadline=None)
@given(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=8), cuts)
def test_http_1_1(requests: list[bytes], sizes: list[int]) -> None:
    data = b"".join(requests)
    whole, pieces = Gateway(), Gateway()
    expected = parse_responses(whole.feed(data))
    found = parse_responses(feed_in_pieces(pieces, data, sizes))
    assert comparable(found) == comparable(expected)
    assert len(found) == len(requests)
    assert pieces.messages == whole.messages


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b/c"]), st.binary(max_size=100)), min_size=1, max_size=6), cuts)
def test_http_2(posts: list[tuple[str, bytes]], sizes: list[int]) -> None:
    gateway = Gateway()
    client = Http2Client(gateway, eager=False)
    streams = [client.send("POST", f"/topics/{address}", body=body) for address, body in posts]
    client.read(feed_in_pieces(gateway, client.h2.data_to_send(), sizes))
    assert [(message.address, message.body) for message in gateway.messages] == posts
    assert {client.answer(stream).status for stream in streams} == {201}


texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cn", "Cs")), min_size=1, max_size=15)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["ext", "subject", "partitionkey", "correlationid", "traceparent", "zz"]), texts, max_size=5
    ),
    texts,
    texts,
    st.binary(max_size=50),
    st.sampled_from([None, "text/plain", "application/octet-stream"]),
)
def test_an_event_in_by_one_mode_and_out_by_the_other(
    extra: dict[str, str], id_: str, type_: str, body: bytes, content_type: str | None
) -> None:
    context = {**extra, "specversion": "1.0", "id": id_, "source": "/s", "type": type_}
    context["subject"] = "fixed"
    gateway = Gateway()
    keywords = {"now_ms": gateway.now_ms, "protocol": "http", "device": ""}
    document = {**context, "data_base64": b64encode(body).decode()}
    if content_type is not None:
        document["datacontenttype"] = content_type
    structured = request("POST", "/events", STRUCTURED, body=json.dumps(document).encode())
    assert parse_responses(gateway.feed(structured))[0].status == 200
    (binary,) = parse_responses(gateway.feed(request("GET", "/topics/fixed")))
    headers = tuple((name, value) for name, value in binary.headers if name.startswith(("ce-", "content-type")))
    again = request("POST", "/events", *headers, body=binary.body)
    assert parse_responses(gateway.feed(again))[0].status == 200
    accept = ("accept", "application/cloudevents+json")
    (answer,) = parse_responses(gateway.feed(request("GET", "/topics/fixed", accept)))
    read = from_structured(answer.body, **keywords)  # type: ignore[arg-type]
    assert attributes_of(read) == context
    assert (read.body, read.content_type) == (body, content_type) or json.loads(read.body) == json.loads(body)


@settings(deadline=None)
@given(texts, st.binary(max_size=20), texts, st.text(max_size=8), st.text(max_size=8))
def test_any_message_can_be_given_in_any_form(address: str, body: bytes, id_: str, name: str, value: str) -> None:
    message = Message(
        address=address.replace("#", "").replace("+", "") or "x",
        body=body,
        id=id_,
        content_type=value,
        content_encoding=value,
        traceparent=value,
        reply_to=value,
        type=value,
        correlation=body,
        properties=((name, value), ("ext", value)),
    )
    gateway = Gateway()
    gateway.frames.append([message])
    path = "".join(f"%{byte:02X}" for byte in message.address.encode())
    for accept in ("*/*", "application/cloudevents+json"):
        (answer,) = parse_responses(gateway.feed(request("GET", f"/topics/{path}", ("accept", accept))))
        assert answer.status == 200
    gateway = Gateway(alpn="h2")
    gateway.frames.append([message])
    assert Http2Client(gateway).ask("GET", f"/topics/{path}").status == 200
    assert to_structured(message)
