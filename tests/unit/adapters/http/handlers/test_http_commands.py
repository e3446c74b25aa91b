"""Commands, `Prefer: wait`: what the adapter expects, stores and waits for, and what it answers."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from adapters.http import HttpOptions
from adapters.http.handlers.waiting import ASKED_MAX
from gateway.domain.errors import Cause, Refusal
from gateway.domain.forwarding import ForwardingSettings
from gateway.domain.forwarding_settings import ForwardingConfig
from gateway.port.adapter import Authenticate, Call, Effect, Outcome, Publish, Token
from gateway.port.reads import AwaitAnswer, ExpectAnswer, ForgetAnswer, LastValue
from store.api.message import Message
from store.format.frame import LogOffset, Position
from tests.support.http.http_driver import Http1Client, Http2Client, parse_responses, request
from tests.support.http.remembering import Remembering

WAIT = ("prefer", "wait=10")
KEY = ("idempotency-key", '"k"')
EVENT = (("ce-specversion", "1.0"), ("ce-source", "/app"), ("ce-type", "command"))


class Answering(Remembering):
    """A gateway that keeps what is waited for until a test has the answer."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.expected: list[ExpectAnswer] = []
        self.sought: list[AwaitAnswer] = []
        self.secret = b"of the cluster"
        self.named = ""  # the client that gives no name
        self.forgotten: list[int] = []
        self.awaited: dict[int, Token] = {}
        self.refusal: Refusal | None = None
        self.answers_at_once = False
        self.at_once: Message | None = None  # the answer to every command, then
        super().__init__(*arguments, **options)

    def act(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Call) and isinstance(effect.request, AwaitAnswer):
                self.awaited[effect.request.number] = effect.token
                self.sought.append(effect.request)
                if self.answers_at_once:
                    self._answer(self.at_once, effect.request.number)
            else:
                super().act([effect])

    def answer_effect(self, call: Call) -> Outcome:
        if isinstance(call.request, ExpectAnswer):
            self.expected.append(call.request)
            return Outcome(error=self.refusal)
        if isinstance(call.request, ForgetAnswer):
            self.forgotten.append(call.request.number)
            return Outcome()
        outcome = super().answer_effect(call)
        if isinstance(call.request, Authenticate):
            name = outcome.value.name or self.named
            outcome = Outcome(value=msgspec.structs.replace(outcome.value, name=name, secret=self.secret))
        return outcome

    @property
    def forgets_all(self) -> bool:
        """Says that the gateway waits for no answer any more."""
        return {one.number for one in self.expected} == {one.number for one in self.sought} | set(self.forgotten)

    def answer(self, message: Message | None) -> bytes:
        """Answers the command that waits, and returns the bytes that follow."""
        (number,) = self.awaited
        self._answer(message, number)
        return self.adapter.take_output()

    def _answer(self, message: Message | None, number: int) -> None:
        token = self.awaited.pop(number)
        self.act(self.adapter.completed(token, Outcome(value=message), now_ms=self.now_ms))

    def answers(self, message: Message | None) -> None:
        """Answers every command from now on, at once."""
        self.answers_at_once, self.at_once = True, message


def answer(**fields: Any) -> Message:
    said = {"id": "7.0", "content_type": "text/plain", "correlation": b"c-1", "properties": (("color", "red"),)}
    return Message("answers/a", b"done", 1_000, "mqtt", "dev42", **{**said, **fields})


@pytest.fixture(params=[Http1Client, Http2Client], ids=["h1", "h2"])
def client(request: pytest.FixtureRequest) -> Any:
    return request.param(Answering(HttpOptions()))


def test_the_answer_is_the_response_with_its_type_and_properties(client: Any) -> None:
    client.gateway.answers(answer())
    said = client.ask("POST", "/topics/commands/d1", WAIT, ("x-reply-to", "answers/a"), ("ce-correlationid", "c-1"))
    assert (said.status, said.body, said["content-type"], said["ce-color"]) == (200, b"done", "text/plain", "red")
    assert (said["ce-correlationid"], said["preference-applied"]) == ("c-1", "wait=10")
    assert said["vary"] == "accept, prefer"
    (command,) = client.gateway.messages
    assert (command.reply_to, command.correlation) == ("answers/a", b"c-1")
    (expected,) = client.gateway.expected
    assert (expected.address, expected.correlation, expected.wait_ms) == ("answers/a", b"c-1", 10_000)
    kinds = [type(one.request if isinstance(one, Call) else one) for one in client.gateway.effects]
    assert kinds.index(ExpectAnswer) < kinds.index(Publish), "an answer could be missed"


def test_the_answer_comes_as_an_event_where_the_client_prefers_one(client: Any) -> None:
    client.gateway.answers(answer())
    said = client.ask("POST", "/topics/commands/d1", WAIT, ("accept", "application/cloudevents+json"))
    assert said["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert said.json["correlationid"] == "c-1"


def test_without_an_answer_in_time_the_command_is_accepted(client: Any) -> None:
    client.gateway.answers(None)
    said = client.ask("POST", "/topics/commands/d1", WAIT, ("ce-id", "i"))
    assert (said.status, said["location"], said["preference-applied"]) == (202, "/topics/commands/d1", "wait=10")
    (expected,) = client.gateway.expected
    assert said.json == {
        "id": "i",
        "position": "1.0",
        "replyto": "answers/-",
        "correlationid": expected.correlation.decode(),
    }
    assert len(expected.correlation) == 32
    said = client.ask("POST", "/topics/commands/d1", WAIT, ("x-correlation-data", "/w=="))
    assert said.json["correlationdata"] == "/w=="


@pytest.mark.parametrize(("name", "place"), [("alice", "alice"), ("a/b", "a%2Fb"), ("", "-"), ("-", "-/-")])
def test_the_default_address_is_the_users_own(client: Any, name: str, place: str) -> None:
    client.gateway.answers(answer())
    client.gateway.named = name
    client.ask("POST", "/topics/c", WAIT)
    assert client.gateway.expected[0].address == f"answers/{place}"


@pytest.mark.parametrize(
    ("prefer", "wait_s"),
    [
        ("wait=3600", 60),
        ("wait=" + "9" * 5_000, 60),
        ('foo="a,wait=1"', None),
        ('foo="a\\",wait=1', None),
        ('foo="a;b", wait=4', 4),
        ('foo="a\\"", wait=4', 4),
        ("respond-async, Wait = 5", 5),
        ('wait="7"; x=y', 7),
        ("wait=1, wait=9", 1),
        ("wait=0", None),
        ("wait=-1", None),
        ("wait=1.5", None),
        ("wait", None),
        ("await=3", None),
        ("foo;wait=3", None),
    ],
)
def test_a_preference_is_followed_up_to_a_minute_and_passed_over_where_it_is_none(
    client: Any, prefer: str, wait_s: int | None
) -> None:
    client.gateway.answers(answer())
    said = client.ask("POST", "/topics/c", ("prefer", prefer), body=b"x")
    assert [one.wait_ms for one in client.gateway.expected] == ([] if wait_s is None else [1_000 * wait_s])
    applied = None if wait_s is None else f"wait={wait_s}"
    assert (said.status, said["preference-applied"]) == (201 if wait_s is None else 200, applied)


def test_a_message_for_later_is_not_waited_for(client: Any) -> None:
    assert client.ask("POST", "/topics/c?delay=9", WAIT, body=b"x").status == 201
    assert client.gateway.expected == []


def test_nothing_is_stored_where_no_answer_can_be_expected(client: Any) -> None:
    client.gateway.refusal = Refusal(Cause.QUOTA, "128 requests wait", retry_after_ms=1_000)
    said = client.ask("POST", "/topics/c", WAIT, body=b"x")
    assert (said.status, said["retry-after"]) == (429, "1")
    same = client.ask("POST", "/topics/c", WAIT, ("x-reply-to", "c"), body=b"x")
    assert (same.status, same.json["attribute"]) == (400, "x-reply-to")
    assert client.gateway.messages == []


def test_the_wait_for_a_refused_command_is_given_up(client: Any) -> None:
    client.gateway.refusals["c"] = Refusal(Cause.FORBIDDEN, "no")
    assert client.ask("POST", "/topics/c", WAIT, body=b"x").status == 403
    assert client.gateway.forgotten == [client.gateway.expected[0].number]


def test_a_repetition_expects_the_same_answer_which_may_have_come(client: Any) -> None:
    client.gateway.answers(answer())
    for _ in range(2):
        assert client.ask("POST", "/topics/c", WAIT, KEY, body=b"x").status == 200
    first, second = client.gateway.expected
    assert first.correlation == second.correlation
    assert [one.behind for one in client.gateway.sought] == [None, Position(LogOffset(1), 0)]
    client.ask("POST", "/topics/c", WAIT, ("idempotency-key", '"other"'), body=b"x")
    assert client.gateway.expected[2].correlation != first.correlation
    assert client.gateway.sought[2].behind is None, "an earlier message is no answer to a new command"


def test_an_event_that_is_stored_once_expects_the_same_answer_when_it_comes_again() -> None:
    client = Http1Client(Answering(HttpOptions(event_window_s=60)))
    client.gateway.answers(answer())
    for id_ in ("1", "1", "2"):
        assert client.ask("POST", "/topics/c", WAIT, *EVENT, ("ce-id", id_), body=b"x").status == 200
    first, second, other = client.gateway.expected
    assert first.correlation == second.correlation
    assert other.correlation != first.correlation
    assert [one.behind for one in client.gateway.sought] == [None, Position(LogOffset(1), 0), None]


def test_the_correlation_of_a_key_is_the_same_at_all_gateways_and_theirs_to_know() -> None:
    found = []
    for secret in (b"of the cluster", b"of the cluster", b"of another"):
        client = Http1Client(Answering(HttpOptions()))
        client.gateway.secret = secret
        client.gateway.answers(answer())
        client.ask("POST", "/topics/c", WAIT, KEY, body=b"x")
        found.append(client.gateway.expected[0].correlation)
    assert found[0] == found[1] != found[2]


def test_a_key_that_was_used_for_another_request_leaves_no_wait(client: Any) -> None:
    client.gateway.answers(answer())
    client.ask("POST", "/topics/c", WAIT, KEY, body=b"x")
    assert client.ask("POST", "/topics/c", WAIT, KEY, body=b"y").status == 422
    assert client.gateway.forgotten == [client.gateway.expected[1].number]


def test_a_request_that_was_stored_without_a_wait_is_no_command_when_it_comes_again(client: Any) -> None:
    """The stored message says neither where its answer is to go nor by which correlation."""
    client.gateway.answers(answer())
    assert client.ask("POST", "/topics/c", KEY, body=b"x").status == 201
    assert client.ask("POST", "/topics/c", WAIT, KEY, body=b"x").status == 422
    said = ("idempotency-key", '"2"'), ("x-reply-to", "answers/a"), ("ce-correlationid", "c-1")
    assert client.ask("POST", "/topics/c", *said, body=b"x").status == 201
    assert client.ask("POST", "/topics/c", WAIT, *said, body=b"x").status == 200, "it is the same message"
    assert client.gateway.forgets_all


def test_an_event_that_was_stored_without_a_wait_is_no_command_when_it_comes_again() -> None:
    client = Http1Client(Answering(HttpOptions(event_window_s=60)))
    client.gateway.answers(answer())
    event = (*EVENT, ("ce-id", "1"))
    assert client.ask("POST", "/topics/c", *event, body=b"x").status == 201
    refused = client.ask("POST", "/topics/c", WAIT, *event, body=b"x")
    assert (refused.status, refused.json["attribute"]) == (422, "ce-id")
    event = (*EVENT, ("ce-id", "2"))
    assert client.ask("POST", "/topics/c", WAIT, *event, body=b"x").status == 200
    again = client.ask("POST", "/topics/c", *event, body=b"x")
    assert (again.status, again.json["repeated"]) == (201, True)
    assert client.gateway.forgets_all


def test_clients_behind_a_proxy_are_told_apart() -> None:
    client = Http1Client(
        Answering(HttpOptions(), forwarding=ForwardingSettings(ForwardingConfig(proxies=("192.0.2.0/24",))))
    )
    client.gateway.answers(answer())
    for host in ("198.51.100.1", "203.0.113.9"):
        client.ask("POST", "/topics/c", WAIT, ("x-forwarded-for", host), body=b"x")
    assert [one.host for one in client.gateway.expected] == ["198.51.100.1", "203.0.113.9"]


def test_a_wait_is_no_request_that_takes_too_long(client: Any) -> None:
    sent = client.send("POST", "/topics/c", WAIT, body=b"x") if isinstance(client, Http2Client) else None
    if sent is None:
        assert client.gateway.feed(request("POST", "/topics/c", WAIT, body=b"x")) == b""
    else:
        client.flush()
    for _ in range(5):
        assert client.gateway.tick(after_ms=11_000) == b""
    assert not client.gateway.closed
    out = client.gateway.answer(answer())
    if sent is None:
        assert [one.status for one in parse_responses(out)] == [200]
    else:
        client.read(out)
        assert client.answer(sent).status == 200


def test_conditions_are_looked_at_before_an_answer_is_expected(client: Any) -> None:
    client.gateway.answers(answer())
    assert client.ask("POST", "/topics/c", WAIT, ("if-match", '"x"'), body=b"x").status == 412
    assert client.gateway.expected == []
    assert client.ask("POST", "/topics/c", WAIT, ("if-none-match", "*"), body=b"x").status == 200


def test_a_stream_that_is_reset_is_waited_for_no_longer() -> None:
    gateway = Answering(HttpOptions())
    client = Http2Client(gateway)
    stream = client.send("POST", "/topics/c", WAIT, body=b"x")
    client.flush()
    (number,) = gateway.awaited
    client.h2.reset_stream(stream)
    client.flush()
    assert gateway.forgotten == [number]
    assert gateway.answer(None) == b"", "there is nobody to tell"


def test_a_stream_that_is_reset_before_its_turn_begins_no_command() -> None:
    gateway = Answering(HttpOptions())
    client = Http2Client(gateway)
    stream = client.send("POST", "/topics/c", WAIT, body=b"x")
    client.h2.reset_stream(stream)
    client.flush()
    assert (gateway.expected, gateway.messages) == ([], []), "both came in one read"
    client.ask("GET", "/topics")
    for held in (("authorization", "Basic YWxpY2U6c2VjcmV0"), ("if-none-match", "*")):
        gateway.hold = True
        stream = client.send("POST", "/topics/c", WAIT, held, body=b"x")
        client.flush()
        (question,) = gateway.held
        assert isinstance(question, Call)
        assert isinstance(question.request, Authenticate | LastValue)
        client.h2.reset_stream(stream)
        client.flush()
        gateway.release()
        assert (gateway.expected, gateway.messages) == ([], [])


def test_pipelined_requests_behind_a_command_take_effect_and_are_answered_in_order() -> None:
    gateway = Answering(HttpOptions())
    wait = request("POST", "/topics/c", WAIT, body=b"1")
    assert gateway.feed(wait + request("POST", "/topics/c", body=b"2")) == b""
    assert [message.body for message in gateway.messages] == [b"1", b"2"]
    answers = parse_responses(gateway.answer(answer()))
    assert [one.status for one in answers] == [200, 201]


def test_answers_behind_a_command_are_bounded_in_bytes() -> None:
    gateway = Answering(HttpOptions(max_held_bytes=64 * 1024, max_pipelined=10_000))
    gateway.feed(request("POST", "/topics/a", body=b"x" * 10_000))
    gateway.feed(request("POST", "/topics/c", WAIT, body=b"1"))
    gateway.feed(request("GET", "/topics/a") * 1_000)
    assert not gateway.adapter.wants_data
    asked = [effect for effect in gateway.effects if isinstance(effect, Call) and isinstance(effect.request, LastValue)]
    assert 1 < len(asked) <= 64 * 1024 // 10_000 + ASKED_MAX
