"""The log tells a login from a name that a client has for itself, by every protocol: rules for devices go by that."""

import json
import socket
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pika
import pytest
from aiocoap import Message as CoapMessage
from aiocoap.numbers.codes import Code
from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes
from websockets.sync.client import connect as connect_websocket
from websockets.typing import Subprotocol

from controller.api.client import User
from controller.api.commands import SetUser
from gateway.security.auth import TRUSTED_GATEWAY
from store.api.devices import DeviceRule, Devices
from store.api.message import Message, decode
from store.remoting.reader import RemoteReader
from tests.support.coap.coap_ways import HAS_DTLS, CoapFiles, CoapWays, Way
from tests.support.gateway.ruled_gateway import HASHED, PASSWORD, TIMEOUT_S, RuledGateway, UserClient
from tests.support.mqtt.paho_client import properties

pytestmark = pytest.mark.slow

BODY = b'{"value": 21.5}'
JSON = "application/json"
USER, RELAY = "ada", "relay"  # the second is a trusted gateway
PIPELINED = 8

Served = RuledGateway
Publish = Callable[[Served, str | None, str], int]  # by a user or none, to an address; how many messages that were


@pytest.fixture(scope="module")
def coap_files(tmp_path_factory: pytest.TempPathFactory) -> CoapFiles:
    return CoapFiles(tmp_path_factory.mktemp("logins") / "coap", (USER, RELAY))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, coap_files: CoapFiles) -> Iterator[Served]:
    listeners: dict[str, Any] = {
        name: {"port": 0, "tls_port": 0} for name in ("mqtt", "mqtt-ws", "coap-tcp", "http", "amqp")
    }
    listeners |= {"coap": {"port": 0}, "coaps": {"enabled": HAS_DTLS, "port": 0}}
    sections = {"listeners": listeners, "access": {"default": "allow", "rules": []}, **coap_files.sections}
    data_dir = Path(tmp_path_factory.mktemp("logins")) / "data"
    with RuledGateway(data_dir, rpc={"enabled": True, "port": 0}, **sections) as one:
        relay = User(name=RELAY, password=HASHED, rights={TRUSTED_GATEWAY: True})
        one.do(one.gateway.hub.controller.do(SetUser(user=relay)))
        yield one


@pytest.fixture(scope="module")
def coap(served: Served, coap_files: CoapFiles) -> Iterator[CoapWays]:
    with CoapWays(coap_files, served.ports, served.tls_ports) as ways:
        yield ways


def stored(served: Served, address: str) -> list[Message]:
    """Returns the messages of an address, as Spark reads them."""
    topic = address.partition("/")[0]
    with RemoteReader(f"127.0.0.1:{served.ports['rpc']}") as reader:
        found = [
            decode(frame.record(row))
            for queue in reader.topics().get(topic, ())
            for frame, rows, _ in reader.fetch(queue, 0)
            for row in rows.tolist()
        ]
    return [message for message in found if message.address == address]


# ---- clients that publish


def by_mqtt(version: int, listener: str = "mqtt") -> Publish:
    def publish(served: Served, user: str | None, address: str) -> int:
        client = UserClient(served, user, f"mosq-{listener}{version}{user}", version=version, listener=listener)
        with closing(client):
            client.connect()
            for qos in (0, 1, 1, 1, 2):
                client.publish(address, qos)
            if version == paho.MQTTv5:
                said = properties(PacketTypes.PUBLISH, UserProperty=[("colour", "red")])
                event = [("specversion", "1.0"), ("id", "1"), ("source", "/s"), ("type", "t")]
                for one in (said, said, properties(PacketTypes.PUBLISH, UserProperty=event)):
                    client.publish(address, 1, properties=one)
                return 8
        return 5

    return publish


def by_will(version: int) -> Publish:
    def publish(served: Served, user: str | None, address: str) -> int:
        with closing(UserClient(served, None, f"reader-{version}{user}")) as reader:
            reader.connect()
            reader.subscribe(address)
            client = UserClient(served, user, f"mosq-will{version}{user}", version=version)
            client.paho.will_set(address, BODY, 1)
            client.connect()
            client.paho.loop_stop()
            client.paho.socket().close()
            assert reader.hear() == address
        return 1

    return publish


def by_http(*, http2: bool) -> Publish:
    """Returns a client of requests that repeat one another, and of events in each form."""

    def publish(served: Served, user: str | None, address: str) -> int:
        event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": address}
        plain, said = {**event, "data": {"value": 1}}, {**event, "data": {"value": 1}, "deviceid": "forged"}
        batch, structured = (f"application/cloudevents{kind}+json" for kind in ("-batch", ""))
        requests: list[tuple[str, bytes, Mapping[str, str]]] = [
            *[(f"/topics/{address}", BODY, {"content-type": JSON})] * 4,
            *[("/events", BODY, {"content-type": JSON, **{f"ce-{name}": text for name, text in event.items()}})] * 4,
            ("/events", json.dumps(plain).encode(), {"content-type": structured}),
            ("/events", json.dumps([plain, plain]).encode(), {"content-type": batch}),
            ("/events", json.dumps([plain, said]).encode(), {"content-type": batch}),
            ("/events", json.dumps([plain, said]).encode(), {"content-type": batch, "prefer": "handling=lenient"}),
        ]
        auth = None if user is None else (user, PASSWORD.decode())
        url = f"http://127.0.0.1:{served.ports['http']}"
        with httpx.Client(base_url=url, http1=not http2, http2=http2, auth=auth, timeout=TIMEOUT_S) as client:
            for target, body, headers in requests:
                answer = client.post(target, content=body, headers=headers)
                assert answer.is_success, answer.text
                assert answer.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
        return 15

    return publish


def pipelined(served: Served, user: str | None, address: str) -> int:
    """Publishes by requests that come in one read, the first of which is repeated by the others."""
    credentials = b64encode(f"{user}:".encode() + PASSWORD).decode()
    who = "" if user is None else f"authorization: Basic {credentials}\r\n"
    head = f"POST /topics/{address} HTTP/1.1\r\nhost: 127.0.0.1\r\n{who}content-length: {len(BODY)}\r\n\r\n"
    with closing(socket.create_connection(("127.0.0.1", served.ports["http"]), TIMEOUT_S)) as connection:
        for count in (1, 2, PIPELINED):  # learned, by itself, and as a run
            connection.sendall((head.encode() + BODY) * count)
            answered = b""
            while answered.count(b"HTTP/1.1 ") < count:
                data = connection.recv(65_536)
                assert data, answered
                answered += data
            assert answered.count(b"HTTP/1.1 201") == count, answered
    return 3 + PIPELINED


def by_event_socket(served: Served, user: str | None, address: str) -> int:
    """Publishes events over a WebSocket that subscribes to them."""
    url = f"ws://127.0.0.1:{served.ports['http']}/subscribe?filter={quote(address)}"
    credentials = b64encode(f"{user}:".encode() + PASSWORD).decode()
    who = {} if user is None else {"authorization": f"Basic {credentials}"}
    options: dict[str, Any] = {"subprotocols": [Subprotocol("cloudevents.json")], "proxy": None}
    with connect_websocket(url, additional_headers=who, open_timeout=TIMEOUT_S, **options) as connection:
        for id_ in ("1", "2"):
            event = {"specversion": "1.0", "id": id_, "source": "/s", "type": "t", "subject": address, "data": 1}
            connection.send(json.dumps(event))
            assert json.loads(connection.recv(timeout=TIMEOUT_S))["id"] == id_
    return 2


def by_amqp(served: Served, user: str | None, address: str) -> int:
    """Publishes as a guest where there is no user: AMQP lets nobody in without a name."""
    credentials = pika.PlainCredentials(*(("guest", "guest") if user is None else (user, PASSWORD.decode())))
    where = pika.ConnectionParameters("127.0.0.1", served.ports["amqp"], credentials=credentials)
    event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t", "ce-deviceid": "forged"}
    with pika.BlockingConnection(where) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for headers in (None, None, None, event):
            said = pika.BasicProperties(delivery_mode=2, headers=headers)
            channel.basic_publish("amq.topic", address.replace("/", "."), BODY, said)
    return 4


WAYS: dict[str, Publish] = {
    "mqtt3": by_mqtt(paho.MQTTv311),
    "mqtt5": by_mqtt(paho.MQTTv5),
    "websocket3": by_mqtt(paho.MQTTv311, "mqtt-ws"),
    "websocket5": by_mqtt(paho.MQTTv5, "mqtt-ws"),
    "will3": by_will(paho.MQTTv311),
    "will5": by_will(paho.MQTTv5),
    "http1": by_http(http2=False),
    "http2": by_http(http2=True),
    "pipelined": pipelined,
    "event socket": by_event_socket,
    "amqp": by_amqp,
}


def check(messages: Sequence[Message], count: int, device: str, principal: str | None, *, logged_in: str) -> None:
    """Checks device and principal of messages, and the devices that rules find: a login, or else the address says."""
    assert [(one.device, one.principal) for one in messages] == [(device, principal)] * count
    rules = DeviceRule(source="identity"), DeviceRule(source="level", level=2)
    assert Devices(rules).of(messages) == [logged_in or "dev42"] * count


@pytest.mark.parametrize("way", WAYS)
def test_a_login_is_told_from_a_name_of_the_clients_own(served: Served, way: str) -> None:
    own = {"mqtt3": "mosq-mqtt4None", "mqtt5": "mosq-mqtt5None", "will3": "mosq-will4None", "will5": "mosq-will5None"}
    own |= {"websocket3": "mosq-mqtt-ws4None", "websocket5": "mosq-mqtt-ws5None"}
    nobody = f"logins/{way}/dev42/nobody"
    expected = ("guest", None) if way == "amqp" else (own.get(way, "dev42"), "")
    count = WAYS[way](served, None, nobody)
    check(stored(served, nobody), count, *expected, logged_in="")
    user = f"logins/{way}/dev42/user"
    count = WAYS[way](served, USER, user)
    check(stored(served, user), count, USER, None, logged_in=USER)


@pytest.mark.parametrize("user", [None, USER])
def test_a_login_over_coap_is_told_from_an_address(coap: CoapWays, served: Served, user: str | None) -> None:
    ways = [way for way in coap.ask if way.user == user]
    assert {way.scheme for way in ways} >= ({"coap", "coap+tcp", "coap+ws"} if user is None else {"oscore", "coaps+ws"})
    for way in ways:
        address = f"logins/{way.scheme.replace('+', ' ')}/dev42/{user}"
        path = ("t", *address.split("/"))
        posts = [((), BODY), ((), BODY), (("colour=red",), BODY), (("retain=true", "ct=text/plain"), BODY)]
        for query, body in posts:
            post = CoapMessage(code=Code.POST, payload=body)
            post.opt.uri_path, post.opt.uri_query = path, query
            assert coap.ask[way](post).code == Code.CREATED
        event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": 1, "deviceid": "forged"}
        post = CoapMessage(code=Code.POST, payload=json.dumps(event).encode())
        post.opt.uri_path, post.opt.uri_query = path, ("ct=application/cloudevents+json",)
        assert coap.ask[way](post).code == Code.CREATED
        delete = CoapMessage(code=Code.DELETE)
        delete.opt.uri_path = path
        assert coap.ask[way](delete).code == Code.DELETED
        device, principal = ("dev42", "") if user is None else (USER, None)
        check(stored(served, address), len(posts) + 2, device, principal, logged_in=user or "")


@pytest.mark.parametrize("user", [RELAY, USER])
def test_the_login_of_a_trusted_gateway_is_in_messages_of_its_devices(
    served: Served, coap: CoapWays, user: str
) -> None:
    """Another user that names a device, or a login, says nothing."""
    address = f"logins/gateways/dev42/{user}"
    claims = {
        "specversion": "1.0",
        "id": "1",
        "source": "/s",
        "type": "t",
        "deviceid": "dev42",
        "headgateprincipal": "x",
    }
    url = f"http://127.0.0.1:{served.ports['http']}"
    with httpx.Client(base_url=url, auth=(user, PASSWORD.decode()), timeout=TIMEOUT_S) as client:
        for _ in range(3):
            headers = {f"ce-{name}": text for name, text in {**claims, "subject": address}.items()}
            assert client.post("/events", content=BODY, headers=headers).is_success
    credentials = pika.PlainCredentials(user, PASSWORD.decode())
    with pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", served.ports["amqp"], credentials=credentials)
    ) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for headers in ({"ce-deviceid": "dev42"}, {f"ce-{name}": text for name, text in claims.items()}):
            channel.basic_publish("amq.topic", address.replace("/", "."), BODY, pika.BasicProperties(headers=headers))
    schemes = [way.scheme for way in coap.ask if way.user == user]
    for scheme in schemes:
        post = CoapMessage(code=Code.POST, payload=BODY)
        post.opt.uri_path = ("t", *address.split("/"))
        assert coap.ask[Way(scheme, user)](post).code == Code.CREATED
    who = ("dev42", RELAY) if user == RELAY else (USER, None)
    check(stored(served, address), 5 + len(schemes), *who, logged_in=user)
