"""GET /messages, and the conditions of GET /subscribe."""

import json
from urllib.parse import quote

import pytest

from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Outcome
from gateway.port.reads import FindMessages, FoundMessages, QueuedMessage, QueuedMessages, ReadQueue
from store.api.message import Message
from tests.support.http.http_driver import Gateway, Http1Client, parse_responses, request


def get(client, target):
    (answer,) = parse_responses(client.gateway.feed(request("GET", target)))
    return answer


@pytest.fixture
def client():
    return Http1Client(Gateway())


@pytest.fixture
def asked(client):
    """Returns the requests that reach the gateway, which has two messages and a next page."""
    requests = []
    found = FoundMessages(
        messages=[Message("a/b", b'{"v":1}', content_type="application/json", id="2"), Message("a/b", b"\xff", id="1")],
        after="64.3",
    )
    real = client.gateway.answer_effect

    def answer(call):
        if not isinstance(call.request, FindMessages):
            return real(call)
        requests.append(call.request)
        return Outcome(value=found)

    client.gateway.answer_effect = answer
    return requests


def test_a_batch_of_events_with_a_link_to_the_next(client, asked):
    answer = get(client, "/messages?key=dev%2042&limit=2")
    assert (answer.status, answer["content-type"]) == (200, "application/cloudevents-batch+json")
    assert [event["id"] for event in json.loads(answer.body)] == ["2", "1"]
    assert answer["link"] == '</messages?key=dev%2042&limit=2&after=64.3>; rel="next"'
    assert asked == [FindMessages(key="dev 42", limit=2)]


def test_every_parameter(client, asked):
    where = "qos = 1 OR device LIKE 'd%'"
    query = f"address=a%2Fb&from=1970-01-01T00:00:01Z&to=5000&where={quote(where)}&type=it%27s&after=64.0&wait=2.5"
    assert get(client, f"/messages?{query}").status == 200
    assert asked == [
        FindMessages(
            address="a/b",
            from_ms=1000,
            until_ms=5000,
            where=f"({where}) AND type = 'it''s'",
            after="64.0",
            wait_ms=2_500,
        )
    ]


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("", "one of key, address, id"),
        ("key=", "one of key, address, id"),
        ("key=a&id=b", "one of key, address, id"),
        ("key=a&key=b", "more than once"),
        ("key=a&limit=0", "limit"),
        ("key=a&wait=60.001", "wait"),
        ("key=a&wait=-1", "wait"),
        ("key=a&limit=1001", "limit"),
        ("key=a&from=yesterday", "from"),
        ("key=a&to=", "to"),
        ("key=a&after=x", "after"),
        ("key=a&color=red", "color"),
        ("key=a&where=qos%20%3D", "line 1, column 6: a value is expected here"),
    ],
)
def test_bad_questions(client, query, detail):
    answer = get(client, f"/messages?{query}")
    assert answer.status == 400
    assert detail in json.loads(answer.body)["detail"]


def test_a_refusal_is_a_problem_document(client):
    client.gateway.answer_effect = lambda call: (
        Outcome(error=Refusal(Cause.PRECONDITION, "not found by key here"))
        if isinstance(call.request, FindMessages)
        else Gateway.answer_effect(client.gateway, call)
    )
    answer = get(client, "/messages?key=a")
    assert (answer.status, json.loads(answer.body)["detail"]) == (412, "not found by key here")


def test_a_stream_with_a_condition(client):
    client.gateway.feed(request("GET", "/subscribe?filter=a/%2B&filter=b&where=qos%3E0&type=t"))
    found = [(effect.pattern, effect.where) for effect in client.gateway.subscriptions.values()]
    assert found == [("a/+", "(qos>0) AND type = 't'"), ("b", "(qos>0) AND type = 't'")]


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("filter=a&where=qos%20%3E%0A%20%27a%27%20%2B", "line 2, column"),
        ("filter=a&where=", "a value is expected here, not the end"),
        ("filter=a&where=TRUE&where=FALSE", "more than once"),
        ("where=TRUE", "filter"),
    ],
)
def test_bad_conditions_of_a_stream(client, query, detail):
    answer = get(client, f"/subscribe?{query}")
    assert answer.status == 400
    assert detail in json.loads(answer.body)["detail"]


@pytest.fixture
def read(client):
    """Returns the requests for parts of queues that reach the gateway, which has two messages and more."""
    requests = []
    plain = Message(
        "a/b", b'{"v":1}', content_type="application/json", id="2", protocol="mqtt", device="d\x01", principal="p"
    )
    claims = ("headgatedevice", "else"), ("headgateprincipal", "else"), ("headgateoffset", "else")
    nobody, login = (Message("a/b", id="3", principal=principal, properties=claims) for principal in ("", None))
    found = QueuedMessages(
        messages=[QueuedMessage(n, 5_001, "a", one) for n, one in ((7, plain), (9, nobody), (11, login))], after=12
    )
    real = client.gateway.answer_effect

    def answer(call):
        if not isinstance(call.request, ReadQueue):
            return real(call)
        requests.append(call.request)
        return Outcome(value=found)

    client.gateway.answer_effect = answer
    return requests


def test_a_part_of_a_queue_is_a_batch_with_offsets_and_a_link(client, read):
    answer = get(client, "/messages?address=a%2Fb&queue=16&offset=3&address=c&limit=2")
    assert (answer.status, answer["content-type"]) == (200, "application/cloudevents-batch+json")
    first, second, third = json.loads(answer.body)
    assert {name: text for name, text in first.items() if name.startswith("headgate")} == {
        "headgatetopic": "a",
        "headgatequeue": "16",
        "headgateoffset": "7",
        "headgatestored": "1970-01-01T00:00:05.001Z",
        "headgateprotocol": "mqtt",
        "headgatedevice": "d%01",
        "headgateprincipal": "p",
    }
    assert (first["data"], second["headgateoffset"], "headgatedevice" in second) == ({"v": 1}, "9", False)
    assert second["headgateprincipal"] == ""
    assert {name for name in third if name.startswith("headgate")} == {
        f"headgate{one}" for one in ("topic", "queue", "offset", "stored")
    }  # its publisher says none of them
    assert third["headgateoffset"] == "11"
    assert answer["link"] == '</messages?address=a%2Fb&queue=16&offset=3&address=c&limit=2&after=12>; rel="next"'
    assert get(client, "/messages?queue=16&address=a/b&offset=3&after=12&from=1000&to=5000&type=t").status == 200
    assert read == [
        ReadQueue(queue=16, addresses=("a/b", "c"), offset=3, limit=2),
        ReadQueue(queue=16, addresses=("a/b",), offset=12, from_ms=1000, until_ms=5000, where="type = 't'"),
    ]


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("queue=16", "address"),
        ("queue=16&address=", "address"),
        ("queue=16" + "".join(f"&address={n}" for n in range(65)), "address"),
        ("queue=16&queue=17&address=a", "more than once"),
        ("queue=x&address=a", "queue"),
        ("queue=4294967296&address=a", "queue"),
        ("queue=16&address=a&offset=-1", "offset"),
        ("queue=16&address=a&after=64.0", "after"),
        ("queue=16&address=a&key=k", "key"),
        ("queue=16&address=a&wait=1", "wait"),
        ("address=a&offset=1", "offset"),
    ],
)
def test_a_wrong_part_of_a_queue_is_refused(client, read, query, detail):
    answer = get(client, f"/messages?{query}")
    assert answer.status == 400
    assert detail in json.loads(answer.body)["detail"]
    assert read == []
