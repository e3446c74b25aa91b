"""A user who may read too little learns nothing hidden from counts, cursors, pages and times.

A gateway with access rules, spoken to by real clients. What is hidden is compared with what is not there.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pika
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from controller.api.commands import DeleteUser
from tests.support.gateway.ruled_gateway import (
    DENIED,
    SHARE,
    TIMEOUT_S,
    RuledGateway,
    fresh,
    leave_will,
    refused,
    ruled,
    wills_wait,
)

pytestmark = pytest.mark.slow

QUOTA_EXCEEDED = 0x97


@pytest.fixture
def user(served: RuledGateway) -> Iterator[Callable[..., str]]:
    """Makes users with rules of their own."""
    made: list[str] = []

    def make(*allowed: str, **options: Any) -> str:
        made.append(fresh("user"))
        served.do(served.set_user(made[-1], ruled(*allowed, **options)))
        return made[-1]

    yield make
    for name in made:
        served.do(served.gateway.hub.controller.do(DeleteUser(name=name)))


def said(answer: httpx.Response, *names: str) -> tuple[int, list[tuple[str, str]], str]:
    """Returns an answer without its date, and without the names that were asked for."""
    text, headers = answer.text, [(name, value) for name, value in answer.headers.items() if name != "date"]
    for name in names:
        text = text.replace(name, "*")
    return answer.status_code, headers, text


def publish(served: RuledGateway, address: str, body: bytes = b"x", **query: str) -> None:
    with served.http("admin") as http:
        assert http.post(f"/topics/{address}", content=body, params=query).status_code == 201


# ---- searches


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"limit": "1"},
        {"limit": "1", "where": "address='closed/searched'"},
        {"limit": "1", "where": "(address)LIKE'closed/s%'", "type": "secret"},
        {"limit": "2", "from": "0", "to": "9999999999999"},
    ],
)
def test_a_search_says_of_hidden_messages_what_it_says_of_none(served, user, query):
    name = user("subscribe:mine/#")
    key, other = fresh("device-a"), fresh("device-b")
    with served.http("admin") as http:
        for n in range(3):
            said_ = {"ce-type": "secret", "ce-id": f"id-{key}"}
            assert http.post(
                "/topics/closed/searched", params={"key": key}, content=b"%d" % n, headers=said_
            ).is_success
    with served.http(name) as http:
        for kind, there, absent in (("key", key, other), ("id", f"id-{key}", f"id-{other}")):
            found, none = (http.get("/messages", params={kind: text, **query}) for text in (there, absent))
            assert said(found) == said(none)
            assert (found.json(), found.links) == ([], {})


def test_a_position_that_is_hidden_is_one_that_is_nowhere(served, user):
    name = user("subscribe:mine/#")
    with served.http("admin") as http:
        position = http.post("/topics/closed/positions", content=b"x").json()["position"]
    frame, row = position.split(".")
    with served.http(name) as http:
        there, nowhere = (http.get("/messages", params={"id": text}) for text in (position, f"{frame}.{row}7"))
        assert said(there) == said(nowhere)


def test_waiting_is_not_ended_by_what_is_hidden(served, user):
    name, key = user("subscribe:mine/#"), fresh("device")
    publish(served, "closed/waited", key=key)
    with served.http(name) as http, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(http.get, "/messages", params={"key": key, "limit": "1", "wait": "30"})
        publish(served, "closed/waited", key=key)
        publish(served, "mine/waited", key=key)
        assert [one["subject"] for one in waiting.result(TIMEOUT_S).json()] == ["mine/waited"]


def test_pages_end_by_what_may_be_read_and_their_cursors_tell_nothing(served, user):
    name, other, key = user("subscribe:mine/#"), user("subscribe:mine/#"), fresh("device")
    for n in range(3):
        publish(served, "closed/paged", key=key)
        publish(served, f"mine/paged{n}", key=key)
    publish(served, "closed/paged", key=key)
    with served.http(name) as http, served.http(other) as others:
        first, again = (http.get("/messages", params={"key": key, "limit": "2"}) for _ in range(2))
        assert [one["subject"] for one in first.json()] == ["mine/paged2", "mine/paged1"]
        cursors = [httpx.URL(page.links["next"]["url"]).params["after"] for page in (first, again)]
        assert [len(one) for one in cursors] == [54, 54]
        assert cursors[0] != cursors[1]
        rest = http.get(first.links["next"]["url"])
        assert [one["subject"] for one in rest.json()] == ["mine/paged0"]
        assert not rest.links
        assert others.get(first.links["next"]["url"]).status_code == 400
        assert http.get("/messages", params={"key": key, "after": "0.0"}).status_code == 400


# ---- pages of keys and groups


def test_pages_of_keys_are_full_whatever_is_hidden_between(served, user):
    space = fresh("s")
    name = user(f"subscribe:$kv/default/{space}/+/mine", f"subscribe:$kv/default/{space}/mine/#")
    with served.http("admin") as admin, served.http(name) as http:
        for key in ("a/mine", "b/mine", "c/mine"):
            assert admin.put(f"/kv/{space}/{key}", content=b"1").is_success
        pages = [
            http.get("/kv", params={"prefix": f"{space}/", "limit": str(limit), "keys": "true"}) for limit in (1, 2, 3)
        ]
        for key in ("a/hidden", "a/mine/hidden", "b/hidden", "d", "e"):
            assert admin.put(f"/kv/{space}/{key}", content=b"1").is_success
        for limit, before in zip((1, 2, 3), pages, strict=True):
            after = http.get("/kv", params={"prefix": f"{space}/", "limit": str(limit), "keys": "true"})
            assert after.json()["entries"] == before.json()["entries"]
            assert after.json()["more"] is before.json()["more"] is (limit < 3)
            assert after.links == before.links


def test_pages_of_groups_are_full_whatever_is_hidden_between(served, user):
    mark = fresh("g")
    names = [f"{mark}-a", f"{mark}-b", f"{mark}-c", f"{mark}-d"]
    name = user("subscribe:groups/#", *[f"subscribe:$group/{one}" for one in names[::2]])
    with served.http("admin") as admin, served.http(name) as http:
        publish(served, "groups/x")
        for one in names:
            assert admin.post(f"/groups/{one}/members", json={"topic": "groups"}).is_success
        first = http.get("/groups", params={"limit": "1"})
        assert [one["group"] for one in first.json()] == [names[0]]
        last = http.get(first.links["next"]["url"])
        assert [one["group"] for one in last.json()] == [names[2]]
        assert not last.links
        both = http.get("/groups", params={"limit": "2"})
        assert ([one["group"] for one in both.json()], both.links) == ([names[0], names[2]], {})


def test_a_list_of_groups_does_not_name_topics_that_may_not_be_read(served, user):
    seen, hidden = fresh("seen"), fresh("hidden")
    name = user("all:$group/#", "subscribe:listed/#", "subscribe:unlisted/mine/#")
    publish(served, "listed/x")
    publish(served, "unlisted/x")
    with served.http("admin") as admin, served.http(name) as http:
        before = http.get("/groups")
        assert admin.post(f"/groups/{hidden}/members", json={"topic": "unlisted"}).is_success
        assert admin.put(f"/groups/{hidden}-leased", json={"topic": "unlisted"}).is_success
        assert said(http.get("/groups")) == said(before)
        assert admin.post(f"/groups/{seen}/members", json={"topic": "listed"}).is_success
        assert [one for one in http.get("/groups").json() if one not in before.json()] == [
            {"group": seen, "topic": "listed", "strategy": "averaged"}
        ]


# ---- members of groups


def test_a_member_with_fewer_rights_takes_nothing_of_a_shared_subscription(served, user, mqtt):
    bob, away = mqtt(user("subscribe:team/bob/#")), fresh("away")
    member = mqtt("admin", away)
    member.connect(expiry_s=1000)
    assert member.subscribe("$share/G/team/#") == [1]
    member.close()
    bob.connect()
    for pattern in ("team/#", "#", "team/+/x"):
        assert bob.subscribe(f"$share/G/{pattern}") == [DENIED]
    assert bob.subscribe("$share/G/team/bob/#") == [1]
    served.publish("team/eve/1", "team/bob/2", "team/eve/3")
    assert bob.hear() == "team/bob/2"
    member = mqtt("admin", away)
    member.connect(expiry_s=1000)
    assert [member.hear() for _ in range(3)] == ["team/eve/1", "team/bob/2", "team/eve/3"]


def test_a_member_of_a_shared_subscription_is_told_when_its_right_is_revoked(served, user, mqtt):
    name = user("subscribe:revoked/#")
    member = mqtt(name)
    member.connect()
    assert member.subscribe("$share/G/revoked/#") == [1]
    served.do(served.set_user(name, ruled("subscribe:revoked/some/#")))
    assert member.left.get(timeout=TIMEOUT_S) == DENIED


def test_a_group_of_consumers_wants_the_right_to_its_topic(served, user):
    name, group = user("all:$group/#", "subscribe:staff/mine/#"), fresh("staff")
    publish(served, "staff/secret")
    with served.http("admin") as admin, served.http(name) as http:
        assert admin.post(f"/groups/{group}/members", json={"topic": "staff"}).is_success
        for answer in (
            http.post(f"/groups/{group}/members", json={"topic": "staff"}),
            http.post(f"/groups/{group}-x/members", json={"topic": "staff"}),
            http.get(f"/groups/{group}"),
            http.post(f"/groups/{group}/reset", json={"to": "latest"}),
        ):
            assert answer.status_code == 403
        assert admin.get(f"/groups/{group}").json()["lag"] == 1


# ---- addresses that a message names


def event(subject: str | None) -> dict[str, str]:
    """Returns the headers of an event in binary mode."""
    headers = {"ce-specversion": "1.0", "ce-id": fresh("id"), "ce-source": "/here", "ce-type": "t"}
    return headers if subject is None else {**headers, "ce-subject": subject}


def test_where_an_event_was_published_is_seen_whatever_its_subject_is(served):
    with served.http("admin") as http:
        for subject, address in (
            ("closed/other", "closed/real"),
            (None, "closed/none"),
            ("closed/same", "closed/same"),
        ):
            forged = {**event(subject), "ce-headgateaddress": "closed/forged"}
            assert http.post(f"/topics/{address}", content=b"x", headers=forged).status_code == 201
            read = http.get(f"/topics/{address}").headers
            (one,) = http.get("/messages", params={"id": forged["ce-id"]}).json()
            for found, seen in (
                (read.get("ce-subject"), read.get("ce-headgateaddress")),
                (one.get("subject"), one.get("headgateaddress")),
            ):
                assert found == subject
                assert (seen or found) == address
        typed = {"subject": "closed/typed", "headgateaddress": 7}
        batch = [{"specversion": "1.0", "id": fresh("id"), "source": "/h", "type": "t", **typed}]
        kind = {"content-type": "application/cloudevents-batch+json"}
        assert http.post("/events", content=json.dumps(batch), headers=kind).status_code == 200
        assert "ce-headgateaddress" not in http.get("/topics/closed/typed").headers


def test_a_subject_that_names_a_denied_address_is_refused(served, user, mqtt, amqp):
    name = user("all:mine/#", denied=("publish:mine/not/#",))
    with served.http(name) as http:
        for subject, status in (("mine/a", 201), ("mine/b", 201), (None, 201), ("closed/a", 403), ("mine/not/a", 403)):
            assert http.post("/topics/mine/a", content=b"x", headers=event(subject)).status_code == status
        for subject, status in (("mine/a", 200), ("closed/a", 403), ("mine/not/a", 403)):
            assert http.post("/events", content=b"x", headers=event(subject)).status_code == status
    client = mqtt(name)
    client.connect()
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [(key[3:], value) for key, value in event("closed/a").items()]
    assert client.publish("mine/a", 1, properties=properties) == DENIED
    headers = pika.BasicProperties(headers=event("closed/a"))
    refused(amqp(name), lambda one: (one.confirm_delivery(), one.basic_publish("amq.topic", "mine.a", b"x", headers)))


def test_answers_are_wanted_only_where_the_requester_may_read(served, user, mqtt, amqp):
    name = user("all:mine/#", "publish:closed/answers/#", "all:$queue/mine/#")
    client = mqtt(name)
    client.connect()
    for topic, denied in (("mine/answers", False), ("closed/answers", True), ("closed/answers/me", True)):
        properties = Properties(PacketTypes.PUBLISH)
        properties.ResponseTopic = topic
        assert (client.publish("mine/asked", 1, properties=properties) == DENIED) is denied
        with served.http(name) as http:
            status = 403 if denied else 201
            assert http.post("/topics/mine/asked", params={"reply": topic}, content=b"x").status_code == status
            assert http.post("/topics/mine/asked", headers={"x-reply-to": topic}, content=b"x").status_code == status
    for asked, denied in (
        (pika.BasicProperties(headers={"x-reply-to-topic": "closed/answers"}), True),
        (pika.BasicProperties(reply_to="others"), True),
        (pika.BasicProperties(headers={"x-reply-to-topic": "mine/answers"}), False),
        (pika.BasicProperties(reply_to="mine/q"), False),
    ):

        def publish_(one: Any, asked: Any = asked) -> None:
            one.confirm_delivery()
            one.basic_publish("amq.topic", "mine.asked", b"x", asked)

        if denied:
            refused(amqp(name), publish_)
        else:
            publish_(amqp(name).channel())


def test_a_will_wants_its_answers_where_its_client_may_read(user, mqtt):
    client = mqtt(user("all:mine/#"))
    properties = Properties(PacketTypes.WILLMESSAGE)
    properties.ResponseTopic = "closed/answers"
    client.paho.will_set("mine/will", b"x", 1, properties=properties)
    assert client.connect() == DENIED


# ---- wills that wait


def test_a_will_that_waits_is_called_off_when_its_right_is_revoked(served, user, mqtt):
    bob, eve = user("publish:wills/#"), user("publish:wills/#")
    reader = mqtt("admin")
    reader.connect()
    assert reader.subscribe("wills/#") == [1]
    for name in (bob, eve):
        leave_will(mqtt(name), f"wills/{name}", 2)
    served.do(wills_wait(served, 2))
    served.do(served.set_user(bob, ruled()))
    assert reader.hear() == f"wills/{eve}"
    served.publish("wills/after")
    assert reader.hear() == "wills/after"


# ---- shares of what there may be


def test_one_user_uses_up_its_own_share_of_the_topics_only(served, user, mqtt, amqp):
    eve, bob, flood = user("publish:#"), user("publish:#"), fresh("flood")
    with served.http(eve) as http, served.http(bob) as others:
        found = [http.post(f"/topics/{flood}{n}/x", content=b"x").status_code for n in range(SHARE + 3)]
        assert found == [201] * SHARE + [429] * 3
        assert http.post(f"/topics/{flood}0/y", content=b"x").status_code == 201
        assert others.post(f"/topics/{flood}-bob/y", content=b"x").status_code == 201
        assert http.post(f"/topics/{flood}-bob/z", content=b"x").status_code == 201
    client = mqtt(eve)
    client.connect()
    assert client.publish(f"{flood}-more/x", 1) == QUOTA_EXCEEDED
    channel = amqp(eve).channel()
    channel.confirm_delivery()
    with pytest.raises((pika.exceptions.NackError, pika.exceptions.ChannelClosedByBroker)):
        channel.basic_publish("amq.topic", f"{flood}-more.x", b"x")
    assert client.publish(f"{flood}0/x", 1) < 0x80
