"""`/groups` over both versions: what is asked, what is answered, and what is refused."""

import json
from typing import Any, TypeAlias

import pytest

from gateway.domain.errors import Cause, Refusal
from gateway.port.groups import (
    CommitOffsets,
    DeleteGroup,
    DescribeGroup,
    GroupCursor,
    GroupDescription,
    GroupName,
    GroupsPage,
    Joined,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    NotOwned,
    Polled,
    PollGroup,
    QueueDescription,
    Renewed,
    RenewMember,
    ResetGroup,
)
from store.api.message import Message
from tests.support.http.http_driver import Http1Client, Http2Client
from tests.support.http.http_groups import GroupsGateway

Client: TypeAlias = Http1Client | Http2Client

MEMBER = "/groups/g/members/m1"


@pytest.fixture(params=[Http1Client, Http2Client], ids=["h1", "h2"])
def client(request: pytest.FixtureRequest) -> Any:
    return request.param(GroupsGateway())


def ask(client: Client, answer: Any, method: str, target: str, *headers: tuple[str, str], body: Any = None) -> Any:
    client.gateway.answers = [answer]
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.ask(method, target, *headers, body=data)


def test_joining(client: Any) -> None:
    joined = Joined(member="m1", topic="t", strategy="averaged", ttl_s=30)
    answer = ask(client, joined, "POST", "/groups/g/members", body={"topic": "t"})
    assert (answer.status, answer["location"]) == (201, MEMBER)
    assert answer.json == {"member": "m1", "topic": "t", "strategy": "averaged", "ttl_s": 30}
    given = {"topic": "t", "strategy": "consistent_hash", "start": "latest", "ttl_s": 5}
    ask(client, joined, "POST", "/groups/g/members", body=given)
    assert client.gateway.asked == [JoinGroup(group="g", topic="t"), JoinGroup(group="g", **given)]


def test_staying_and_leaving(client: Any) -> None:
    renewed = Renewed(ttl_s=30, queues=[16, 17], revoked=[17])
    answer = ask(client, renewed, "PUT", MEMBER)
    assert (answer.status, answer.json) == (200, {"ttl_s": 30, "queues": [16, 17], "revoked": [17]})
    assert ask(client, True, "DELETE", MEMBER).status == 204
    assert ask(client, False, "DELETE", MEMBER).status == 404
    assert client.gateway.asked == [
        RenewMember(group="g", member="m1"),
        *[LeaveGroup(group="g", member="m1")] * 2,
    ]


def test_messages(client: Any) -> None:
    message = Message(address="t/1", body=b'{"a":1}', content_type="application/json", id="x")
    polled = Polled(messages=[(16, 4, message)], after=GroupCursor(9, {16: 5}), queues=[16, 17], revoked=[17])
    answer = ask(client, polled, "GET", f"{MEMBER}/messages?max=7&wait=1.5&after=8~16.3")
    assert (answer.status, answer["content-type"]) == (200, "application/json")
    (found,) = answer.json["messages"]
    assert (found["queue"], found["offset"], found["event"]["id"]) == (16, 4, "x")
    assert found["event"]["data"] == {"a": 1}
    assert answer.json["after"] == "9~16.5"
    assert (answer.json["generation"], answer.json["next"]) == (9, {"16": 5})
    assert (answer.json["queues"], answer.json["revoked"]) == ([16, 17], [17])
    assert answer["link"] == f'<{MEMBER}/messages?max=7&wait=1.5&after=9~16.5>; rel="next"'
    assert client.gateway.asked == [
        PollGroup(group="g", member="m1", after=GroupCursor(8, {16: 3}), limit=7, wait_ms=1_500)
    ]
    ask(client, polled, "GET", f"{MEMBER}/messages")
    assert client.gateway.asked[1] == PollGroup(group="g", member="m1")


def test_messages_as_events(client: Any) -> None:
    message = Message(address="t/1", body=b"b", id="x")
    polled = Polled(messages=[(16, 1 << 40, message)], after=GroupCursor(9, {}), queues=[16])
    accept = ("accept", "application/cloudevents-batch+json")
    answer = ask(client, polled, "GET", f"{MEMBER}/messages", accept)
    assert answer["content-type"] == accept[1]
    (event,) = answer.json
    assert (event["id"], event["headgatequeue"], event["headgateoffset"]) == ("x", "16", str(1 << 40))
    assert answer["link"] == f'<{MEMBER}/messages?after=9>; rel="next"'


def test_commits(client: Any) -> None:
    for body in ({"after": "9~16.5"}, {"generation": 9, "offsets": {"16": 5}}):
        answer = ask(client, {16: 5}, "POST", f"{MEMBER}/commit", body=body)
        assert (answer.status, answer.json) == (200, {"offsets": {"16": 5}})
    asked = CommitOffsets(group="g", member="m1", cursor=GroupCursor(9, {16: 5}))
    assert client.gateway.asked == [asked, asked]
    answer = ask(client, NotOwned([16, 17]), "POST", f"{MEMBER}/commit", body={"after": "9~16.5~17.1"})
    assert (answer.status, answer["content-type"]) == (409, "application/problem+json")
    assert answer.json["queues"] == [16, 17]


def test_lists(client: Any) -> None:
    names = [GroupName(group=name, topic="t", strategy="averaged") for name in "ab"]
    answer = ask(client, GroupsPage(groups=names, after="b"), "GET", "/groups?limit=2")
    assert [one["group"] for one in answer.json] == ["a", "b"]
    assert answer["link"] == '</groups?limit=2&after=b>; rel="next"'
    answer = ask(client, GroupsPage(groups=[], after=None), "GET", "/groups?after=b")
    assert (answer.json, answer["link"]) == ([], None)
    assert client.gateway.asked == [ListGroups(limit=2), ListGroups(after="b")]


def test_descriptions(client: Any) -> None:
    queues = [
        QueueDescription(queue=16, offset=0, first=3, end=10, member="m1"),
        QueueDescription(queue=17, offset=4, first=0, end=5, member=""),
    ]
    found = GroupDescription(group="g", topic="t", strategy="averaged", members=["m1"], queues=queues)
    answer = ask(client, found, "GET", "/groups/g")
    assert answer.json["lag"] == 8
    assert answer.json["queues"][0] == {"queue": 16, "offset": 0, "first": 3, "end": 10, "member": "m1", "lag": 7}
    assert client.gateway.asked == [DescribeGroup(group="g")]


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({"to": "earliest"}, {"to": "earliest"}),
        ({"to": "latest", "queues": [16]}, {"to": "latest", "queues": (16,)}),
        ({"to": "timestamp", "timestamp": 5}, {"time_ms": 5}),
        ({"to": "timestamp", "timestamp": "1970-01-01T00:00:01Z"}, {"time_ms": 1_000}),
        ({"to": "offset", "offsets": {"16": 3}}, {"offsets": {16: 3}}),
    ],
)
def test_resets(client: Any, given: Any, asked: Any) -> None:
    answer = ask(client, {16: 3}, "POST", "/groups/g/reset", body=given)
    assert (answer.status, answer.json) == (200, {"offsets": {"16": 3}})
    assert client.gateway.asked == [ResetGroup(group="g", **asked)]


def test_deletions(client: Any) -> None:
    assert ask(client, True, "DELETE", "/groups/g").status == 204
    assert ask(client, False, "DELETE", "/groups/g").status == 404
    assert ask(client, Refusal(Cause.CONFLICT, "it has members"), "DELETE", "/groups/g").status == 409
    assert client.gateway.asked == [DeleteGroup(group="g")] * 3


@pytest.mark.parametrize(
    ("method", "target", "body", "attribute"),
    [
        ("POST", "/groups/g/members", b"", None),
        ("POST", "/groups/g/members", {"topic": 1}, None),
        ("POST", "/groups/g/members", {"topic": "t", "tll_s": 1}, None),
        ("POST", "/groups/g/members", b'{"topic": "\xff"}', None),
        ("GET", f"{MEMBER}/messages?max=0", None, "max"),
        ("GET", f"{MEMBER}/messages?max=1001", None, "max"),
        ("GET", f"{MEMBER}/messages?wait=61", None, "wait"),
        ("GET", f"{MEMBER}/messages?wait=-1", None, "wait"),
        ("GET", f"{MEMBER}/messages?wait=1e1", None, "wait"),
        ("GET", f"{MEMBER}/messages?after=16.4", None, "after"),
        ("GET", f"{MEMBER}/messages?since=4", None, "since"),
        ("GET", f"{MEMBER}/messages?max=1&max=2", None, "max"),
        ("POST", f"{MEMBER}/commit", {}, None),
        ("POST", f"{MEMBER}/commit", {"after": "9", "generation": 9}, "after"),
        ("POST", f"{MEMBER}/commit", {"after": "x"}, "after"),
        ("POST", f"{MEMBER}/commit", {"generation": 9, "offsets": {"x": 1}}, "offsets"),
        ("POST", f"{MEMBER}/commit", {"generation": 9, "offsets": {"16": -1}}, "offsets"),
        ("POST", f"{MEMBER}/commit", {"generation": -1, "offsets": {"16": 1}}, "generation"),
        ("POST", f"{MEMBER}/commit", {"generation": 1 << 63, "offsets": {"16": 1}}, "generation"),
        ("POST", "/groups/g/reset", {"to": "timestamp"}, "timestamp"),
        ("POST", "/groups/g/reset", {"to": "latest", "timestamp": 1}, "timestamp"),
        ("POST", "/groups/g/reset", {"to": "timestamp", "timestamp": "yesterday"}, "timestamp"),
        ("POST", "/groups/g/reset", {"to": "offset"}, "offsets"),
        ("POST", "/groups/g/reset?to=latest", {"to": "latest"}, "to"),
        ("GET", "/groups?limit=0", None, "limit"),
        ("PUT", f"{MEMBER}?ttl=1", None, "ttl"),
    ],
)
def test_what_is_refused(client: Any, method: str, target: str, body: Any, attribute: str | None) -> None:
    answer = ask(client, None, method, target, body=body)
    assert (answer.status, answer["content-type"]) == (400, "application/problem+json")
    assert answer.json.get("attribute") == attribute
    assert client.gateway.asked == []


NOWHERE = ("/groups/", "/groups//members", "/groups/g/", "/groups/g/nothing", "/groups/a%2Fb", "/groups/g%2fmembers")
NO_MEMBER = ("/groups/g/members/", "/groups/g/members//commit", f"{MEMBER}/", f"{MEMBER}/nothing", f"{MEMBER}/commit/x")


@pytest.mark.parametrize("target", [*NOWHERE, *NO_MEMBER])
def test_where_nothing_is(client: Any, target: str) -> None:
    assert ask(client, None, "GET", target).status == 404


@pytest.mark.parametrize(
    ("target", "allow"),
    [
        ("/groups", "GET, HEAD, OPTIONS"),
        ("/groups/g", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("/groups/g/members", "OPTIONS, POST"),
        ("/groups/g/reset", "OPTIONS, POST"),
        (MEMBER, "DELETE, OPTIONS, PUT"),
        (f"{MEMBER}/messages", "GET, HEAD, OPTIONS"),
        (f"{MEMBER}/commit", "OPTIONS, POST"),
    ],
)
def test_methods(client: Any, target: str, allow: str) -> None:
    answer = ask(client, None, "PATCH", target)
    assert (answer.status, answer["allow"]) == (405, allow)
    answer = ask(client, None, "OPTIONS", target)
    assert (answer.status, answer["allow"]) == (204, allow)
