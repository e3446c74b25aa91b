"""Groups that lease messages, over both versions: what is asked, what is answered, and what is refused."""

import json
from typing import Any, TypeAlias

import pytest

from adapters.http.handlers.waiting import ASKED_MAX
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Call, GiveUp, Outcome, Publish
from gateway.port.groups import (
    CreateLeaseGroup,
    DescribeGroup,
    ExtendReceived,
    GroupDescription,
    LeaseGroup,
    LeaseTerms,
    QueueDescription,
    Received,
    ReceiveMessages,
    ReturnReceived,
    SettleReceived,
)
from store.api.message import Message
from tests.support.http.http_driver import Http1Client, Http2Client
from tests.support.http.http_groups import GroupsGateway

Client: TypeAlias = Http1Client | Http2Client

TERMS = LeaseTerms(lease_s=60, attempts=5, dead_letter="dead/t", retry_s=1, retry_max_s=60, ordered=True)
GIVEN = {"lease_s": 60, "attempts": 5, "dead_letter": "dead/t", "retry_s": 1, "retry_max_s": 60, "ordered": True}
MESSAGE = Message(address="t/1", body=b'{"a":1}', content_type="application/json", id="x")
GONE = Refusal(Cause.CONFLICT, "leased to somebody else")


@pytest.fixture(params=[Http1Client, Http2Client], ids=["h1", "h2"])
def client(request: pytest.FixtureRequest) -> Any:
    return request.param(GroupsGateway())


def ask(client: Client, answer: Any, method: str, target: str, *headers: tuple[str, str], body: Any = None) -> Any:
    client.gateway.answers = [answer]
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.ask(method, target, *headers, body=data)


@pytest.mark.parametrize(("created", "status"), [(True, 201), (False, 200)])
def test_creating(client: Any, created: bool, status: int) -> None:
    group = LeaseGroup(group="g", topic="t", terms=TERMS, created=created)
    answer = ask(client, group, "PUT", "/groups/g", body={"topic": "t", "start": "latest", **GIVEN})
    assert (answer.status, answer.json) == (status, {"group": "g", "topic": "t", "terms": GIVEN})
    ask(client, group, "PUT", "/groups/g", body={"topic": "t"})
    assert client.gateway.asked == [
        CreateLeaseGroup(group="g", topic="t", start="latest", terms=TERMS),
        CreateLeaseGroup(group="g", topic="t"),
    ]


def test_receiving(client: Any) -> None:
    received = [Received(16, 4, 2, "handle-1", MESSAGE)]
    answer = ask(client, received, "POST", "/groups/g/receive", body={"max": 7, "wait": 1.5, "lease_s": 9})
    assert (answer.status, answer["content-type"], answer["cache-control"]) == (200, "application/json", "no-store")
    (found,) = answer.json["messages"]
    assert found.pop("event")["data"] == {"a": 1}
    assert found == {"queue": 16, "offset": 4, "deliveries": 2, "handle": "handle-1"}
    assert ask(client, [], "POST", "/groups/g/receive").json == {"messages": []}
    assert client.gateway.asked == [
        ReceiveMessages(group="g", limit=7, wait_ms=1_500, lease_s=9),
        ReceiveMessages(group="g"),
    ]


def test_receiving_events(client: Any) -> None:
    received = [Received(16, 4, 2, "handle-1", MESSAGE)]
    kind = "application/cloudevents-batch+json"
    answer = ask(client, received, "POST", "/groups/g/receive", ("accept", kind))
    assert (answer.status, answer["content-type"]) == (200, kind)
    (event,) = json.loads(answer.body)
    extensions = {name: event[name] for name in event if name.startswith("headgate")}
    assert extensions == {
        "headgatehandle": "handle-1",
        "headgatedeliveries": 2,
        "headgatequeue": "16",
        "headgateoffset": "4",
    }


@pytest.mark.parametrize(
    ("what", "more", "asked"),
    [
        ("ack", {}, SettleReceived(group="g", handles=("a", "b"))),
        ("nack", {}, ReturnReceived(group="g", handles=("a", "b"))),
        ("nack", {"delay_s": 7}, ReturnReceived(group="g", handles=("a", "b"), delay_s=7)),
        ("extend", {}, ExtendReceived(group="g", handles=("a", "b"))),
        ("extend", {"lease_s": 7}, ExtendReceived(group="g", handles=("a", "b"), lease_s=7)),
    ],
)
def test_handles(client: Any, what: str, more: dict[str, Any], asked: Any) -> None:
    extending = what == "extend"
    done, partly = (["c", "d"], ["c", GONE]) if extending else ([None, None], [None, GONE])
    body = {"handles": ["a", "b"], **more}
    answer = ask(client, done, "POST", f"/groups/g/{what}", body=body)
    handles = {"handles": ["c", "d"]} if extending else {}
    assert (answer.status, answer.json) == (200, {"done": 2, "refused": [], **handles})
    answer = ask(client, partly, "POST", f"/groups/g/{what}", body=body)
    fault = {"index": 1, "status": 409, "cause": "conflict", "detail": GONE.detail}
    handles = {"handles": ["c", None]} if extending else {}
    assert (answer.status, answer.json) == (207, {"done": 1, "refused": [fault], **handles})
    assert client.gateway.asked == [asked] * 2


@pytest.mark.parametrize(
    ("method", "target", "body", "status"),
    [
        ("PUT", "/groups/g", None, 400),
        ("PUT", "/groups/g", {}, 400),
        ("PUT", "/groups/g", {"topic": "t", "leases": 3}, 400),
        ("PUT", "/groups/g", {"topic": "t", "lease_s": "3"}, 400),
        ("PUT", "/groups/g?x=1", {"topic": "t"}, 400),
        ("POST", "/groups/g/receive", {"max": 0}, 400),
        ("POST", "/groups/g/receive", {"max": 1_001}, 400),
        ("POST", "/groups/g/receive", {"wait": 61}, 400),
        ("POST", "/groups/g/receive", {"wait": -1}, 400),
        ("POST", "/groups/g/receive", b"{", 400),
        ("POST", "/groups/g/receive?max=3", None, 400),
        ("POST", "/groups/g/ack", None, 400),
        ("POST", "/groups/g/ack", {"handles": "a"}, 400),
        ("POST", "/groups/g/ack", {"handles": [1]}, 400),
        ("POST", "/groups/g/ack", {"handles": ["a"] * 1_001}, 400),
        ("POST", "/groups/g/nack", {"handles": [], "delay": 3}, 400),
        ("POST", "/groups/g/extend", {"handles": [], "lease_s": 1.5}, 400),
        ("GET", "/groups/g/receive", None, 405),
        ("PUT", "/groups/g/ack", None, 405),
        ("POST", "/groups/g/receive/", None, 404),
        ("POST", "/groups/g/members/m/ack", None, 404),
    ],
)
def test_refusals(client: Any, method: str, target: str, body: Any, status: int) -> None:
    answer = ask(client, None, method, target, body=body)
    assert answer.status == status
    assert client.gateway.asked == []


def test_a_group_is_shown_with_its_terms_and_one_with_members_without(client: Any) -> None:
    leased = QueueDescription(queue=16, offset=5, first=0, end=9, member="", waiting=3)
    found = GroupDescription(group="g", topic="t", strategy="leases", members=[], queues=[leased], terms=TERMS)
    shown = ask(client, found, "GET", "/groups/g").json
    assert (shown["terms"], shown["lag"], shown["queues"][0]["waiting"]) == (GIVEN, 3, 3)
    plain = QueueDescription(queue=16, offset=5, first=0, end=9, member="m")
    found = GroupDescription(group="g", topic="t", strategy="averaged", members=["m"], queues=[plain])
    shown = ask(client, found, "GET", "/groups/g").json
    assert "terms" not in shown
    assert shown["queues"] == [{"queue": 16, "offset": 5, "first": 0, "end": 9, "member": "m", "lag": 4}]
    assert client.gateway.asked == [DescribeGroup(group="g")] * 2


def test_a_receiver_whose_stream_is_reset_gives_up() -> None:
    """Else the next message would be leased to nobody."""
    client = Http2Client(GroupsGateway())
    ask(client, (), "POST", "/groups/f/receive")
    client.gateway.hold = True
    streams = [client.send("POST", f"/groups/{name}/receive") for name in "gh"]
    client.flush()
    first, _ = client.gateway.held
    client.h2.reset_stream(streams[0])
    client.flush()
    assert client.gateway.effects[-1] == GiveUp(token=first.token)
    client.read(client.gateway.release())
    assert client.answer(streams[1]).json == {"messages": []}
    assert sum(isinstance(effect, GiveUp) for effect in client.gateway.effects) == 1


def test_a_receiver_whose_stream_is_reset_before_its_turn_never_begins() -> None:
    client = Http2Client(GroupsGateway())
    ask(client, (), "POST", "/groups/f/receive")
    client.gateway.hold = True
    streams = [client.send("POST", "/groups/g/receive") for _ in range(ASKED_MAX + 1)]
    client.flush()
    client.h2.reset_stream(streams[-1])
    client.flush()
    client.read(client.gateway.release())
    assert len(client.gateway.asked) == 1 + ASKED_MAX


def test_receivers_that_wait_take_no_more_room_than_readers() -> None:
    """Answers to 17 requests on one connection may not be made at the same time, each as large as an answer may be."""
    client = Http2Client(GroupsGateway())
    ask(client, [], "POST", "/groups/g/receive")
    client.gateway.hold = True
    for _ in range(ASKED_MAX + 1):
        client.send("POST", "/groups/g/receive")
    client.flush()
    assert len(client.gateway.held) == ASKED_MAX
    client.read(client.gateway.release())
    assert len(client.gateway.asked) == 1 + ASKED_MAX + 1


def test_requests_that_read_nothing_pass_readers_that_wait_for_their_turn() -> None:
    """Otherwise the acknowledgement that all of them wait for would be behind them."""
    client = Http2Client(GroupsGateway())
    ask(client, [], "POST", "/groups/g/receive")
    client.gateway.hold = True
    for _ in range(ASKED_MAX):
        client.send("POST", "/groups/g/receive")
    later = [client.send("POST", f"/groups/{name}/receive") for name in ("h", "i")]
    client.send("POST", "/groups/g/ack", body=b'{"handles": ["a"]}')
    client.send("POST", "/topics/a", body=b"1")
    client.flush()
    held = client.gateway.held
    assert [type(effect) for effect in held[ASKED_MAX:]] == [Call, Publish]
    assert isinstance(held[ASKED_MAX].request, SettleReceived)
    assert client.gateway.adapter.deadline_ms() != 0
    for name in ("h", "i"):
        client.gateway.act(client.gateway.adapter.completed(held.pop(0).token, Outcome(value=[]), now_ms=0))
        assert held[-1].request.group == name
    client.read(client.gateway.release())
    assert [client.answer(stream).status for stream in later] == [200, 200]
