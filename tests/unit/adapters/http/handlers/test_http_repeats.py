"""The requests that take the short way, and those that do not."""

import pytest

from adapters.http import HttpOptions
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Publish
from tests.support.http.http_driver import Gateway, parse_responses, request

EVENT = (("ce-specversion", "1.0"), ("ce-source", "//a/b"), ("ce-type", "t"), ("ce-subject", "site/1"))


def opened(options=None):
    """Returns a gateway that knows who sends: the first request has asked for that."""
    gateway = Gateway(options)
    gateway.feed(event("zero"))
    gateway.feed(event("one"))
    return gateway


def event(id_, *more, body=b"{}"):
    return request("POST", "/events", *EVENT, ("ce-id", id_), ("content-type", "application/json"), *more, body=body)


def test_a_second_request_with_another_id_and_body_takes_the_short_way():
    gateway = opened()
    [answer] = parse_responses(gateway.feed(event("two", body=b'{"n":2}')))
    assert gateway.singles == 1
    assert answer.json == {"id": "two", "position": "3.0"}
    assert [(one.id, one.body) for one in gateway.messages[1:]] == [("one", b"{}"), ("two", b'{"n":2}')]


def test_times_that_change_are_read_and_others_kept_as_they_were_written():
    gateway = opened()
    times = ("2026-11-23T02:45:00Z", "2026-11-23T02:45:01.250Z", "2026-11-23T02:45:01.250000Z")
    for n, text in enumerate(times):
        gateway.feed(event(str(n), ("ce-time", text)))
    assert gateway.singles == 2
    *_, first, second, third = gateway.messages
    assert second.time_ms == third.time_ms == first.time_ms + 1_250
    assert "time" not in second.native["cloudevents"]
    assert third.native["cloudevents"]["time"] == times[2]


@pytest.mark.parametrize(
    "second",
    [
        event("two") + b"G",
        event("two") + event("three"),
        event("two")[:-1],
        event("t\xe9"),
        event("%41"),
        event('"quoted"'),
        event(""),
        event("x" * 300),
        event("two", ("idempotency-key", "k")),
        event("two").replace(b"site/1", b"site/2"),
        event("two").replace(b"content-length: 2", b"content-length: +2"),
        event("two").replace(b"HTTP/1.1", b"HTTP/1.0"),
        event("two").replace(b"ce-id: ", b"ce-id:"),
    ],
)
def test_what_differs_in_more_than_its_values_is_parsed(second):
    gateway = opened()
    assert gateway.single(second) is None


@pytest.mark.parametrize(
    "options",
    [
        HttpOptions(cors_origins=("https://a.example",)),
        HttpOptions(property_headers=("x-a",)),
    ],
)
def test_no_request_takes_it_where_options_make_more_of_one(options):
    gateway = opened(options)
    assert gateway.single(event("two")) is None


def test_a_read_that_ends_another_request_is_no_template():
    """Else the next read like it would be published where the request before it was."""
    gateway = Gateway()
    gateway.feed(request("GET", "/topics"))
    within = request("POST", "/topics/b", body=b"hello")
    gateway.feed(b"POST /topics/a HTTP/1.1\r\nx-a: ")
    gateway.feed(within)
    assert gateway.single(within) is None
    gateway.feed(within)
    assert [one.address for one in gateway.messages] == ["a", "b"]


def test_nothing_takes_it_while_an_answer_is_due():
    gateway = opened()
    gateway.hold = True
    gateway.feed(request("GET", "/topics"))
    assert gateway.single(event("two")) is None


def test_a_refused_one_gets_the_answer_of_the_long_way():
    gateway = opened()
    gateway.refusals["site/1"] = Refusal(Cause.OVERLOAD, "full")
    [answer] = parse_responses(gateway.feed(event("two")))
    assert gateway.singles == 1
    assert answer.status == 503


def test_a_message_is_answered_where_its_store_outlasts_the_idle_time():
    """The adapter is told of it before it looks at its deadline: then it is busy."""
    gateway = opened(HttpOptions(idle_timeout_s=5))
    single = gateway.single(event("two"))
    effect = gateway.adapter.publish_of(single)
    gateway.tick(after_ms=6_000)
    assert not gateway.closed
    gateway.act([effect])
    [answer] = parse_responses(gateway.adapter.take_output())
    assert answer.json["id"] == "two"


def test_a_connection_that_is_gone_still_says_what_was_published():
    gateway = opened()
    single = gateway.single(event("two"))
    gateway.adapter.lost(now_ms=gateway.now_ms)
    effect = gateway.adapter.publish_of(single)
    assert isinstance(effect, Publish)
    assert effect.messages == (single.message,)
    assert gateway.single(event("three")) is None


def test_heads_that_always_differ_are_not_taken_apart_for_ever(monkeypatch):
    taken = []
    gateway = Gateway()
    monkeypatch.setattr("adapters.http.handlers.repeats._template", lambda *_: taken.append(1))
    for n in range(10):
        gateway.feed(event("one", ("x-request", str(n))))
    assert len(taken) == 4
