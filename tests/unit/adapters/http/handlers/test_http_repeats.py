"""The requests that take the short way, and those that do not."""

import pytest

from adapters.http import HttpOptions
from adapters.http.handlers.repeats import FEW_MAX
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Outcome, Publish
from store.format.frame import LogOffset, Position
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


def test_a_few_requests_of_one_read_are_messages_of_their_own():
    gateway = opened()
    ids = [f"e{n:02}" for n in range(FEW_MAX)]
    answers = parse_responses(gateway.feed(b"".join(map(event, ids))))
    assert gateway.singles == FEW_MAX
    assert [one.json for one in answers] == [{"id": id_, "position": f"3.{n:x}"} for n, id_ in enumerate(ids)]
    assert [one.id for one in gateway.messages[2:]] == ids


@pytest.mark.parametrize(
    "read",
    [
        b"".join([event(f"e{n:02}") for n in range(FEW_MAX + 1)]),
        event("two", body=bytes(1_000)) * FEW_MAX + event("three"),
        event("two") + event("three") + request("GET", "/topics"),
        event("two") + event("three")[:-1],
        event("two") + b"\r\n" + event("three"),
    ],
)
def test_a_read_of_more_than_a_few_requests_that_repeat_goes_the_way_of_all(read):
    gateway = opened()
    assert not gateway.alone(read)


def test_messages_that_change_to_the_long_way_have_the_times_at_which_they_were_read():
    gateway = opened()
    singles = []
    for id_ in ("two", "three"):
        gateway.now_ms += 1_000
        singles += gateway.alone(event(id_))
    effects = [gateway.adapter.publish_of(single) for single in singles]
    assert [one.time_ms for effect in effects for one in effect.messages] == [gateway.now_ms - 1_000, gateway.now_ms]
    gateway.act(reversed(effects))
    assert [one.json["id"] for one in parse_responses(gateway.adapter.take_output())] == ["two", "three"]


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


def runs(gateway, monkeypatch):
    """Returns a list that grows by the length of each run of requests that is not parsed."""
    taken = []
    run = gateway.adapter.repeats.run

    def noted(*args, **options):
        found = run(*args, **options)
        taken.append(0 if found is None else len(found.messages))
        return found

    monkeypatch.setattr(type(gateway.adapter.repeats), "run", lambda _self, *args, **options: noted(*args, **options))
    return taken


def run(gateway, *ids):
    """Hands over a read of several events as a shell does that has not asked for single messages."""
    gateway.act(gateway.adapter.receive(b"".join(map(event, ids)), now_ms=gateway.now_ms))


def test_requests_that_begin_a_read_are_taken_together_and_answered_in_order(monkeypatch):
    gateway = opened()
    taken = runs(gateway, monkeypatch)
    read = event("two") + event("three", body=b'{"n":3}') + request("GET", "/topics/site/1") + event("four")[:-1]
    answers = parse_responses(gateway.feed(read))
    assert taken == [2]
    assert [one.json.get("id") for one in answers[:2]] == ["two", "three"]
    assert [one.json.get("position") for one in answers[:2]] == ["3.0", "3.1"]
    assert answers[2].body == b'{"n":3}'
    [last] = parse_responses(gateway.feed(event("four")[-1:]))
    assert last.json["id"] == "four"


def test_a_client_that_never_waits_for_an_answer_is_learned_from(monkeypatch):
    """Its first read brings many requests, and others are under way whenever the next one comes."""
    gateway = Gateway()
    gateway.feed(request("GET", "/topics"))
    gateway.hold = True
    gateway.feed(event("one") + event("two"))
    taken = runs(gateway, monkeypatch)
    gateway.feed(event("three") + event("four"))
    gateway.feed(event("five"))
    assert taken == [2, 1]
    assert [one.json["id"] for one in parse_responses(gateway.release())] == ["one", "two", "three", "four", "five"]


def test_a_refused_request_that_begins_a_read_is_no_template():
    """Else those that repeat its head would be stored as the accepted one behind it was."""
    gateway = Gateway()
    gateway.feed(request("GET", "/topics"))
    bad = request("POST", "/topics/a?qos=7", body=b"bad")
    gateway.feed(bad + request("POST", "/topics/b", body=b"good"))
    [answer] = parse_responses(gateway.feed(bad))
    assert answer.status == 400
    assert [one.address for one in gateway.messages] == ["b"]


def test_a_run_waits_for_a_question_before_it(monkeypatch):
    gateway = opened()
    gateway.hold = True
    gateway.feed(request("GET", "/topics/site/1"))
    taken = runs(gateway, monkeypatch)
    gateway.feed(event("two") + event("three"))
    assert taken == [0]
    assert [one.status for one in parse_responses(gateway.release())] == [200, 200, 200]


def test_each_request_of_a_run_has_its_own_refusal():
    gateway = opened()
    gateway.hold = True
    run(gateway, "two", "three")
    [effect] = gateway.held
    refusal = Refusal(Cause.RATE, "too many")
    outcome = Outcome(first=Position(LogOffset(9), 4), refused={0: refusal})
    gateway.act(gateway.adapter.completed(effect.token, outcome, now_ms=gateway.now_ms))
    first, second = parse_responses(gateway.adapter.take_output())
    assert first.status == 429
    assert second.json == {"id": "three", "position": "9.4"}


def test_only_the_last_answer_says_that_the_gateway_goes_down():
    gateway = opened()
    gateway.hold = True
    run(gateway, "two", "three")
    gateway.act(gateway.adapter.shutdown(now_ms=gateway.now_ms))
    first, second = parse_responses(gateway.release())
    assert first["connection"] is None
    assert second["connection"] == "close"
    assert gateway.closed


def test_requests_of_a_run_count_among_those_that_may_wait_for_answers():
    gateway = opened(HttpOptions(max_pipelined=3))
    gateway.hold = True
    run(gateway, "two", "three")
    assert gateway.adapter.wants_data
    gateway.feed(event("four"))
    assert not gateway.adapter.wants_data
    gateway.release()
    assert gateway.adapter.wants_data


def structured(id_):
    """Returns a request of always the same length, whose event has no content type of its data."""
    body = b'{"specversion":"1.0","id":"%b","source":"/s","type":"t","subject":"dev/%b","data":{"v":1}}'
    head = ("content-type", "application/cloudevents+json")
    return request("POST", "/events", head, body=body % (id_.encode(), id_.encode()))


@pytest.mark.parametrize("together", [1, 2])
def test_structured_events_are_always_read(together):
    """Their ids and addresses are in the body."""
    gateway = opened()
    names = [f"s{n}" for n in range(6)]
    for at in range(0, len(names), together):
        assert gateway.single(structured(names[at])) is None
        gateway.feed(b"".join([structured(name) for name in names[at : at + together]]))
    assert [(one.address, one.id, one.body) for one in gateway.messages[2:]] == [
        (f"dev/{name}", name, b'{"v":1}') for name in names
    ]


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("apart", [False, True])
def test_a_client_may_send_an_empty_line_behind_each_request(together, apart):
    gateway = opened()
    for n in range(0, 300, together):
        requests = b"".join([event(f"e{n + nth}") + b"\r\n" * (not apart) for nth in range(together)])
        answers = parse_responses(gateway.feed(requests))
        assert [one.status for one in answers] == [200] * together
        if apart:
            assert gateway.feed(b"\r\n") == b""


def test_a_request_that_cannot_be_repeated_leaves_the_one_that_can():
    gateway = opened()
    retained = request("POST", "/topics/a?retain=true", body=b"1")
    for n in range(12):
        gateway.feed(retained)
        gateway.feed(event(f"e{n}"))
    assert gateway.singles == 12
