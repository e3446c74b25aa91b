"""Tokens in requests (RFC 6750), and what becomes of requests and streams whose token has expired."""

from typing import Any

import pytest

from adapters.http.handlers.credentials import Offered
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Authenticate, Call, Outcome, Publish
from tests.support.http.http_driver import NOW_MS, Gateway, Http1Client, Http2Client, parse_responses, request

TOKEN = ("authorization", "Bearer good")


class Issued(Gateway):
    """A gateway that takes the token "good" for a minute."""

    expires_at_ms = NOW_MS + 60_000

    def _authenticate(self, request: Authenticate) -> Outcome:
        if request.mechanism == "bearer":
            if request.password == b"good" and self.now_ms < self.expires_at_ms:
                principal = Principal(name="fleet", device="d7", expires_at_ms=self.expires_at_ms)
                return Outcome(value=principal)
            return Outcome(error=Refusal(Cause.UNAUTHENTICATED, "the token has expired"))
        return super()._authenticate(request)

    @property
    def asked(self) -> list[Authenticate]:
        calls = [effect.request for effect in self.effects if isinstance(effect, Call)]
        return [one for one in calls if isinstance(one, Authenticate)]


def ask(gateway: Gateway, *headers: tuple[str, str], method: str = "POST", target: str = "/topics/a") -> Any:
    (answer,) = parse_responses(gateway.feed(request(method, target, *headers, body=b"x")))
    return answer


def test_a_token_names_its_bearer() -> None:
    gateway = Issued()
    assert ask(gateway, TOKEN).status == 201
    assert ask(gateway, ("authorization", "bEARER  good ")).status == 201
    assert gateway.asked == [Authenticate(mechanism="bearer", password=b"good")]
    assert [message.device for message in gateway.messages] == ["d7", "d7"]


@pytest.mark.parametrize("header", ["Bearer", "Bearer  ", "Bearer bad", "Bearer \u00e9", f"Bearer {'x' * 16_385}"])
def test_a_token_that_is_none(header: str) -> None:
    gateway = Issued()
    answer = ask(gateway, ("authorization", header))
    assert answer.status == 401
    challenges = [value for name, value in answer.headers if name == "www-authenticate"]
    assert challenges == [
        'Basic realm="headgate", charset="UTF-8"',
        'Bearer realm="headgate", error="invalid_token"',
    ]
    assert gateway.messages == []


def test_a_wrong_password_is_not_said_to_be_a_token() -> None:
    answer = ask(Issued(), ("authorization", "Basic YTpi"))
    assert [value for name, value in answer.headers if name == "www-authenticate"] == [
        'Basic realm="headgate", charset="UTF-8"'
    ]
    answer = ask(Issued(), ("authorization", "Negotiate YTpi"))
    assert answer.status == 401


def test_every_request_is_checked_for_its_tokens_end() -> None:
    gateway = Issued()
    assert ask(gateway, TOKEN).status == 201
    gateway.now_ms += 59_999
    assert ask(gateway, TOKEN).status == 201
    assert len(gateway.asked) == 1
    gateway.now_ms += 1
    answer = ask(gateway, TOKEN)
    assert answer.status == 401
    assert "the token has expired" in answer.body.decode()
    gateway.expires_at_ms += 60_000  # with a token like the one before, as far as the adapter knows
    assert ask(gateway, TOKEN).status == 201
    assert len(gateway.asked) == 3


@pytest.mark.parametrize("kind", [Http1Client, Http2Client])
def test_an_event_stream_ends_with_its_token(kind: Any) -> None:
    gateway = Issued(alpn="h2" if kind is Http2Client else None)
    client = kind(gateway)
    if kind is Http1Client:
        gateway.feed(request("GET", "/subscribe?filter=a", TOKEN))
    else:
        client.send("GET", "/subscribe?filter=a", TOKEN)
        client.flush()
    assert len(gateway.subscriptions) == 1
    for _ in range(3):
        gateway.tick(after_ms=19_000)
        assert len(gateway.subscriptions) == 1
    assert gateway.adapter.deadline_ms() == NOW_MS + 60_000
    gateway.tick(after_ms=3_000)
    assert gateway.subscriptions == {}
    assert gateway.adapter.deadline_ms() != NOW_MS + 60_000


def test_requests_behind_a_stream_begin_when_its_token_ends() -> None:
    gateway = Issued()
    post = request("POST", "/topics/a", body=b"x")
    body_follows = request("POST", "/topics/a", ("expect", "100-continue"), ("content-length", "1"))
    gateway.feed(request("GET", "/subscribe?filter=a", TOKEN) + post + body_follows)
    for _ in range(3):
        gateway.tick(after_ms=19_000)
    assert gateway.messages == []
    answers = gateway.tick(after_ms=3_000)
    assert answers.count(b" 201 Created") == 1
    assert answers.endswith(b" 100 Continue\r\n\r\n")
    assert gateway.tick(after_ms=29_000) == b"", "the body has its time from then on"
    assert b" 201 Created" in gateway.feed(b"y")
    assert [message.body for message in gateway.messages] == [b"x", b"y"]


def test_a_message_behind_a_stream_of_http_1_0_is_not_stored() -> None:
    """Its answer could not come: the connection ends with the stream."""
    gateway = Issued()
    follow = request("GET", "/subscribe?filter=a", TOKEN, ("connection", "keep-alive")).replace(
        b"HTTP/1.1", b"HTTP/1.0"
    )
    gateway.feed(follow + request("POST", "/topics/a", body=b"x"))
    for _ in range(4):
        gateway.tick(after_ms=19_000)
    assert gateway.subscriptions == {}
    assert gateway.messages == []
    assert gateway.closed


def test_a_stream_of_somebody_known_for_ever_goes_on() -> None:
    gateway = Issued()
    gateway.feed(request("GET", "/subscribe?filter=a"))
    for _ in range(10):
        gateway.tick(after_ms=20_000)
    assert len(gateway.subscriptions) == 1


def test_what_is_offered_is_not_shown() -> None:
    assert "good" not in repr(Offered("", b"good", "bearer"))
    assert "pw" not in repr(Offered("alice", b"pw"))


def test_a_token_and_no_token_on_one_connection_are_two_senders() -> None:
    gateway = Issued()
    ask(gateway, TOKEN)
    ask(gateway)
    published = [effect for effect in gateway.effects if isinstance(effect, Publish)]
    assert [effect.messages[0].device for effect in published] == ["d7", "192.0.2.1"]
