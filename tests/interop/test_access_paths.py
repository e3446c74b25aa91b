"""A forbidden message reaches nobody on any way: real clients and a gateway with access rules.

On each way a message that is forbidden is followed by one that is allowed: when that one is there, the other is not
coming any more.
"""

import asyncio
import json
from typing import Any

import pytest
from aiocoap import Context
from aiocoap import Message as CoapMessage
from aiocoap.numbers.codes import GET, POST
from paho.mqtt import client as paho

from controller.api.client import User
from controller.api.commands import DeleteUser, SetUser
from gateway.domain.access_settings import own_access, rights_of
from gateway.security.passwords import hash_password
from tests.support.gateway.ruled_gateway import (
    ADMINISTRATIVE,
    DENIED,
    PASSWORD,
    TIMEOUT_S,
    RuledGateway,
    fresh,
    refused,
)

pytestmark = pytest.mark.slow


# ---- MQTT


def test_mqtt_publishing(mqtt):
    client = mqtt("ada", "c7")
    client.connect()
    for qos, denied in ((1, DENIED), (2, 0x92)):  # paho says PUBREL to a PUBREC of 0x87, and hears PUBCOMP
        assert client.publish("closed/x", qos) == denied
        assert client.publish("open/secret/x", qos) == denied
        assert client.publish("own/c8/x", qos) == denied
        assert client.publish("$delayed/1/closed/x", qos) == denied
        assert client.publish("open/x", qos) < 0x80
        assert client.publish("own/c7/x", qos) < 0x80
    assert client.left.empty()


def test_mqtt_3_1_1_is_closed(mqtt):
    client = mqtt("ada", version=paho.MQTTv311)
    client.connect()
    assert client.subscribe("closed/#", "open/#") == [0x80, 1]
    client.paho.publish("closed/x", b"", 1)
    client.left.get(timeout=TIMEOUT_S)


def test_mqtt_subscribing_and_live(served, mqtt):
    client = mqtt("ada")
    client.connect()
    assert client.subscribe("closed/#", "#", "open/secret/x", "own/other/#", "$amqp/#", "$SYS/#") == [
        DENIED,
        1,
        *[DENIED] * 4,
    ]
    served.publish("closed/1", "open/secret/1", "open/1")
    assert client.hear() == "open/1"


def test_mqtt_catching_up(served, mqtt):
    client_id = fresh("away")
    client = mqtt("ada", client_id)
    client.connect(expiry_s=1000)
    client.subscribe("+/catch/#", "open/secret/catch/#")
    client.close()
    served.publish("closed/catch/1", "open/secret/catch/1", "open/catch/1")
    client = mqtt("ada", client_id)
    client.connect(expiry_s=1000)
    assert client.hear() == "open/catch/1"


def test_mqtt_retained(served, mqtt):
    served.publish("closed/kept", "open/secret/kept", "open/zkept", retain="true")
    client = mqtt("ada")
    client.connect()
    client.subscribe("#")
    assert client.hear() == "open/zkept"


def test_mqtt_shared(served, mqtt):
    first, second = mqtt("ada"), mqtt("ada")
    second.messages = first.messages
    for one in (first, second):
        one.connect()
        shared = ("open/shared", "closed/#", "+/shared", "open/+")  # of the last, a part is secret
        assert one.subscribe(*[f"$share/g/{pattern}" for pattern in shared]) == [1, DENIED, DENIED, DENIED]
    served.publish("closed/shared", "open/shared")
    assert first.hear() == "open/shared"


def test_a_forbidden_will_is_refused_and_an_allowed_one_comes(mqtt):
    client = mqtt("ada")
    client.paho.will_set("closed/will", b"x", 1)
    assert client.connect() == DENIED
    reader, client = mqtt("ada"), mqtt("ada")
    reader.connect()
    reader.subscribe("open/will")
    client.paho.will_set("open/will", b"x", 1)
    client.connect()
    client.paho.loop_stop()
    client.paho.socket().close()
    assert reader.hear() == "open/will"


def test_a_will_that_is_not_allowed_any_more_does_not_come(served, mqtt):
    own = rights_of(own_access({"otherwise": "deny", "rules": [{"effect": "allow", "filters": ["open/#"]}]}))
    served.do(served.set_user("bob", dict(own)))
    reader, bob, eve = mqtt("admin"), mqtt("bob"), mqtt("ada")
    reader.connect()
    reader.subscribe("open/wills/#")
    bob.paho.will_set("open/wills/bob", b"x", 1)
    eve.paho.will_set("open/wills/eve", b"x", 1)
    for one in (bob, eve):
        assert one.connect() == 0
    served.do(served.set_user("bob", {"otherwise": "deny"}))
    for one in (bob, eve):
        one.paho.loop_stop()
        one.paho.socket().close()
        if one is bob:
            served.do(released(served))
    assert reader.hear() == "open/wills/eve"


async def released(served: RuledGateway) -> None:
    """Waits until the gateway has released a connection that is gone."""
    hub = served.gateway.hub
    while len(hub.connections) > 2 or hub._releasing:
        await asyncio.sleep(0.01)


def test_rights_that_change_count_at_once(served, mqtt):
    allowed = {"otherwise": "deny", "rules": [{"effect": "allow", "filters": ["turn/#", "stay/#"]}]}
    served.do(served.set_user("carl", allowed))
    client = mqtt("carl")
    client.connect()
    assert client.subscribe("turn/#", "stay/#") == [1, 1]
    served.publish("turn/1")
    assert client.hear() == "turn/1"
    fewer = {**allowed, "rules": [*allowed["rules"], {"effect": "deny", "filters": ["turn/#"]}]}
    served.do(served.set_user("carl", fewer))
    served.publish("turn/2", "stay/2")
    assert client.hear() == "stay/2"
    assert client.publish("turn/3", 1) == DENIED
    served.do(served.set_user("carl", allowed))
    served.publish("turn/4")
    assert client.hear() == "turn/4"
    assert client.left.empty()


def test_who_is_removed_or_gets_another_password_is_told_to_go(served, mqtt):
    controller = served.gateway.hub.controller
    for change in (
        lambda: controller.do(DeleteUser(name="cora")),
        lambda: controller.do(SetUser(user=User(name="cora", password=hash_password(b"another")))),
    ):
        served.do(served.set_user("cora"))
        client, other = mqtt("cora"), mqtt("ada")
        for one in (client, other):
            one.connect()
        client.paho.reconnect_delay_set(TIMEOUT_S, TIMEOUT_S)
        served.do(change())
        assert client.left.get(timeout=TIMEOUT_S).value == ADMINISTRATIVE
        assert other.publish("open/x", 1) < 0x80


# ---- HTTP


def test_http_publishing_and_reading(served):
    served.publish("closed/http", "open/http", "open/secret/http")
    with served.http("ada") as http:
        assert http.post("/topics/closed/http", content=b"x").status_code == 403
        assert http.post("/topics/open/http", content=b"open/http").status_code == 201
        assert http.get("/topics/closed/http").status_code == 403
        assert http.get("/topics/closed/nothing-there").status_code == 403
        assert http.get("/topics/open/secret/http").status_code == 403
        assert http.get("/topics/open/http").content == b"open/http"
        listed = http.get("/topics").json()
        assert "open/http" in listed
        assert not [one for one in listed if one.startswith(("closed", "open/secret"))]
        assert http.get("/topics/closed/%23").status_code == 403
        found = http.get("/topics/%2B/http").json()
        assert [one["subject"] for one in found] == ["open/http"]
        assert http.get("/messages", params={"address": "closed/http"}).status_code == 403


def test_finding_by_id(served):
    with served.http("admin") as http:
        for address in ("closed/found", "open/found"):
            event = {"specversion": "1.0", "id": "same-id", "source": "x", "type": "t", "subject": address}
            headers = {"content-type": "application/cloudevents+json"}
            assert http.post("/events", content=json.dumps(event), headers=headers).status_code == 200
        assert len(http.get("/messages", params={"id": "same-id"}).json()) == 2
    with served.http("ada") as http:
        found = http.get("/messages", params={"id": "same-id"}).json()
        assert [one["subject"] for one in found] == ["open/found"]


def test_server_sent_events(served):
    with served.http("ada") as http:
        assert http.get("/subscribe", params={"filter": "closed/#"}).status_code == 403
        with http.stream("GET", "/subscribe", params={"filter": "+/sse"}) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("retry")
            served.publish("closed/sse", "open/sse")
            data = next(line for line in lines if line.startswith("data: "))
            assert json.loads(data.removeprefix("data: "))["subject"] == "open/sse"


def test_two_users_on_one_connection(served):
    """The rights of one user do not depend on the other, whoever used the connection last."""
    with served.http(None) as http:
        ada, admin = ("ada", PASSWORD.decode()), ("admin", PASSWORD.decode())
        for _ in range(2):
            assert http.post("/topics/closed/two", content=b"x", auth=admin).status_code == 201
            assert http.post("/topics/closed/two", content=b"x", auth=ada).status_code == 403
            assert http.get("/topics/closed/two", auth=admin).status_code == 200
            assert http.get("/topics/closed/two", auth=ada).status_code == 403
            assert http.get("/topics/closed/two").status_code == 403


def test_keys_and_values(served):
    with served.http("admin") as admin, served.http("ada") as ada:
        for key in ("closed/a", "open/a", "open/secret/a", "open/z"):
            assert admin.put(f"/kv/{key}", content=b"1").status_code in {200, 201, 204}
        assert ada.get("/kv/open/a").status_code == 200
        assert ada.get("/kv/closed/a").status_code == ada.get("/kv/closed/none").status_code == 403
        assert ada.put("/kv/closed/a", content=b"2").status_code == 403
        assert ada.delete("/kv/open/secret/a").status_code == 403
        assert [one["key"] for one in ada.get("/kv", params={"limit": 2}).json()["entries"]] == ["open/a", "open/z"]
        assert ada.get("/kv", params={"count": "true"}).status_code == 403
        assert ada.get("/kv", params={"prefix": "open/z/", "count": "true"}).status_code == 200
        compares = {"compare": {"closed/a": 1}, "operations": [{"put": "open/b", "value": "x"}]}
        assert ada.post("/kv", json=compares).status_code in {400, 403}
        with ada.stream("GET", "/kv", params={"watch": "true"}) as stream:
            lines = stream.iter_lines()
            next(lines)
            for key in ("closed/w", "open/secret/w", "open/w"):
                admin.put(f"/kv/{key}", content=b"1")
            data = next(line for line in lines if line.startswith("data: "))
            assert json.loads(data.removeprefix("data: "))["key"] == "open/w"


# ---- CoAP


def test_coap(served):
    served.publish("open/coap", "closed/coap")

    async def asked() -> None:
        context = await Context.create_client_context()

        async def ask(code: Any, path: str) -> Any:
            uri = f"coap://127.0.0.1:{served.ports['coap']}{path}"
            async with asyncio.timeout(TIMEOUT_S):
                return await context.request(
                    CoapMessage(code=code, uri=uri, payload=b"x" if code == POST else b"")
                ).response

        try:
            assert (await ask(POST, "/t/closed/coap")).code.dotted == "4.03"
            assert (await ask(POST, "/t/open/coap")).code.dotted in {"2.01", "2.04"}
            assert (await ask(GET, "/t/closed/coap")).code.dotted == "4.03"
            assert (await ask(GET, "/t/open/coap")).code.dotted == "2.05"
            links = (await ask(GET, "/.well-known/core")).payload.decode()
            assert "open/coap" in links
            assert "closed/" not in links
        finally:
            await context.shutdown()

    asyncio.run(asked())


# ---- AMQP


def test_amqp(served, amqp):
    admin, ada = amqp("admin"), amqp("ada")
    channel = admin.channel()
    for name in ("open/q", "closed-q"):
        channel.queue_declare(name, durable=True)
    channel.queue_bind("open/q", "amq.topic", "#")
    refused(ada, lambda one: one.basic_get("closed-q"))
    refused(ada, lambda one: one.queue_declare("closed-q", passive=True))
    refused(ada, lambda one: one.queue_declare("other"))
    refused(ada, lambda one: one.queue_purge("closed-q"))
    refused(ada, lambda one: one.queue_delete("closed-q"))
    refused(ada, lambda one: one.exchange_declare("x", "topic"))
    refused(ada, lambda one: one.queue_bind("open/q", "amq.topic", "closed.#"))
    refused(ada, lambda one: one.queue_bind("open/q", "amq.topic", "open.#"))  # with what is secret
    refused(ada, lambda one: one.queue_bind("open/q", "amq.fanout"))
    refused(ada, lambda one: one.basic_consume("closed-q", lambda *_: None))

    def publish(one: Any) -> None:
        one.confirm_delivery()
        one.basic_publish("amq.topic", "closed.x", b"")

    refused(ada, publish)
    mine = ada.channel()
    mine.queue_declare("open/mine")
    mine.queue_bind("open/mine", "amq.topic", "open.amqp")
    mine.confirm_delivery()
    mine.basic_publish("amq.topic", "open.amqp", b"mine")
    assert mine.basic_get("open/mine", auto_ack=True)[2] == b"mine"
    for method, _, body in mine.consume("open/q", inactivity_timeout=TIMEOUT_S):
        assert method is not None
        if body == b"mine":
            break


def test_a_consumer_that_may_not_read_any_more_gets_nothing(served, amqp):
    own = {"otherwise": "deny", "rules": [{"effect": "allow", "filters": ["$queue/#", "turns/#"]}]}
    served.do(served.set_user("dora", own))
    channel = amqp("dora").channel()
    for name in ("turns", "stays"):
        channel.queue_declare(name)
        channel.queue_bind(name, "amq.topic", "turns.x")
    got: list[tuple[str, bytes]] = []
    for name in ("turns", "stays"):
        channel.basic_consume(name, lambda _c, _m, _p, body, name=name: got.append((name, body)), auto_ack=True)
    served.do(
        served.set_user("dora", {**own, "rules": [*own["rules"], {"effect": "deny", "filters": ["$queue/turns"]}]})
    )
    with served.http("admin") as http:
        http.post("/topics/turns/x", content=b"1")
    while len(got) < 1:
        channel.connection.process_data_events(time_limit=0.05)
    assert got == [("stays", b"1")]
    served.do(served.set_user("dora", own))
    while len(got) < 2:
        channel.connection.process_data_events(time_limit=0.05)
    assert got[1] == ("turns", b"1")


# ---- what is said of it


def test_denials_are_counted(served, mqtt):
    def counted() -> float:
        return float(served.call(served.gateway.metrics.access_denied("mqtt", "publish")._value.get))

    client = mqtt("ada")
    client.connect()
    before = counted()
    client.publish("closed/counted", 1)
    assert counted() == before + 1
