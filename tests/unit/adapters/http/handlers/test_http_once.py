"""Idempotency-Key: what the adapter asks to be stored under a key, and what it answers when the key was used before."""

from typing import Any

import msgspec
import pytest

from adapters.http import HttpOptions
from gateway.domain.errors import Cause, Refusal
from tests.support.http.http_driver import NOW_MS, Http1Client, Http2Client
from tests.support.http.remembering import Remembering

KEY = ("idempotency-key", '"k"')


@pytest.fixture(params=[Http1Client, Http2Client], ids=["h1", "h2"])
def client(request: pytest.FixtureRequest) -> Any:
    return request.param(Remembering(HttpOptions(idempotency_window_s=60)))


def test_a_request_that_is_sent_again_is_stored_once_and_answered_alike(client: Any) -> None:
    first = client.ask("POST", "/topics/a/b", KEY, body=b"1")
    again = client.ask("POST", "/topics/a/b", KEY, ("traceparent", "00-1-2-01"), body=b"1")
    assert (first.status, first.json, first["location"]) == (201, {"id": "k", "position": "1.0"}, "/topics/a/b")
    assert (again.status, again.json, again["location"]) == (201, first.json, first["location"])
    assert len(client.gateway.frames) == 1
    assert client.gateway.published[0].key.expires_at_ms == NOW_MS + 60_000


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        ("/topics/a/b", (), b"2"),
        ("/topics/a/b?qos=2", (), b"1"),
        ("/topics/a/b", (("content-type", "text/plain"),), b"1"),
        ("/topics/a/b", (("ce-type", "t"),), b"1"),
    ],
)
def test_another_request_under_the_same_key_is_refused(client: Any, path: str, headers: Any, body: bytes) -> None:
    assert client.ask("POST", "/topics/a/b", KEY, body=b"1").status == 201
    answer = client.ask("POST", path, KEY, *headers, body=body)
    assert answer.status == 422
    assert "idempotency-key" in answer.json["detail"]
    assert len(client.gateway.frames) == 1


def test_a_key_is_that_of_a_path_and_of_a_user(client: Any) -> None:
    alice = ("authorization", "Basic YWxpY2U6c2VjcmV0")
    for path, headers in [("/topics/a/b", (KEY,)), ("/topics/a/c", (KEY,)), ("/topics/a/b", (KEY, alice))]:
        assert client.ask("POST", path, *headers, body=b"1").status == 201
    assert len(client.gateway.frames) == 3


def test_requests_without_a_key_are_stored_as_often_as_they_come(client: Any) -> None:
    for headers in ((), (("idempotency-key", ""),)):
        for _ in range(2):
            assert client.ask("POST", "/topics/a/b", *headers, body=b"1").status == 201
    assert len(client.gateway.frames) == 4
    assert all(effect.key is None for effect in client.gateway.published)


def test_what_was_refused_leaves_no_key(client: Any) -> None:
    client.gateway.refusals["a/b"] = Refusal(Cause.UNAVAILABLE, "later")
    assert client.ask("POST", "/topics/a/b", KEY, body=b"1").status == 503
    client.gateway.refusals.clear()
    assert client.ask("POST", "/topics/a/b", KEY, body=b"1").status == 201


def test_a_delayed_message_keeps_its_timer(client: Any) -> None:
    first = client.ask("POST", "/topics/a/b?delay=5", KEY, body=b"1")
    client.gateway.now_ms += 1_000
    again = client.ask("POST", "/topics/a/b?delay=5", KEY, body=b"1")
    assert first.json["timer"]
    assert again.json == first.json


def test_a_batch_of_events_has_one_key(client: Any) -> None:
    event = {"specversion": "1.0", "source": "/s", "type": "t"}
    body = msgspec.json.encode([{**event, "id": str(n), "subject": f"a/{n}"} for n in range(3)])
    batch = ("content-type", "application/cloudevents-batch+json")
    first = client.ask("POST", "/events", KEY, batch, body=body)
    again = client.ask("POST", "/events", KEY, batch, body=body)
    assert (first.status, len(first.json)) == (200, 3)
    assert again.json == first.json
    assert len(client.gateway.frames) == 1


def test_keys_that_cannot_be_remembered_are_refused_for_now() -> None:
    client = Http1Client(Remembering())
    assert client.ask("POST", "/topics/a/b", KEY, body=b"1").status == 201
    client.gateway.keys[client.gateway.published[0].key.name] = None
    assert client.ask("POST", "/topics/a/b", KEY, body=b"1").status == 503


def test_a_request_with_a_key_shares_its_frame_with_no_other() -> None:
    gateway = Remembering()
    lines = [b"POST /topics/a HTTP/1.1", b"host: x", b"content-length: 1"]
    plain = b"\r\n".join(lines) + b"\r\n\r\n1"
    keyed = b"\r\n".join([*lines, b"idempotency-key: 7"]) + b"\r\n\r\n1"
    gateway.feed(plain + keyed + plain + plain)
    assert [len(effect.messages) for effect in gateway.published] == [1, 1, 2]
    assert [effect.key is not None for effect in gateway.published] == [False, True, False]
    assert gateway.messages[0] == gateway.messages[2]
