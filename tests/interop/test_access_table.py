"""Every way in and out, as tables: what a user hears who may do nothing, or too little, and what it must not tell.

The ways are derived from the code. One that is not in its table fails here: whoever adds an endpoint, a packet, a
method or a remote call says what it is to answer somebody without a right. Each answer is taken twice, before there is
anything hidden and after, and compared byte by byte: statuses, headers, bodies, counts, cursors, texts of errors.
"""

import itertools
import json
import re
import typing
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pika
import pytest
from aiocoap import Message as CoapMessage
from aiocoap.numbers.codes import Code
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pamqp.commands import Basic, Channel, Confirm, Exchange, Queue, Tx
from prometheus_client import CollectorRegistry
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_websocket
from websockets.typing import Subprotocol

from adapters.amqp.methods import _METHODS
from adapters.coap.messages.request import ROOTS
from adapters.coap.topics.topic import topic_id
from adapters.http.handlers import groups, routes, subscriptions
from adapters.mqtt.codec import packets
from adapters.mqtt.session import session
from controller.node.service import ControllerService
from gateway.port import adapter as port
from gateway.process.worker_operations import WorkerOperations
from gateway.runtime import access_requests
from gateway.runtime.amqp_operations import AmqpOperations
from gateway.runtime.client_sessions import ClientSessions
from gateway.runtime.requests import REQUESTS
from store.base.admin import AdminServer
from store.node.replication_service import ReplicationService
from store.serving.rpc import StoreService
from store.serving.service import NodeService
from tests.support.coap.coap_ways import HAS_DTLS, CoapFiles, CoapWays, Way
from tests.support.gateway.answered_requests import AnsweredRequests, noting_requests
from tests.support.gateway.ruled_gateway import DENIED, PASSWORD, TIMEOUT_S, RuledGateway, UserClient, ruled

pytestmark = pytest.mark.slow

NOBODY, LITTLE = "nobody", "little"  # users: one has no rights, the other all below `mine/`
MINE = [f"all:{root}mine/#" for root in ("", "$queue/", "$exchange/", "$kv/default/", "$group/")]
SECRET = "closed/there"
EVENT = {"ce-specversion": "1.0", "ce-id": "secret-id", "ce-source": "/s", "ce-type": "secret"}
READABLE = "closed/else"  # is there before anything is hidden, for the user who may do everything


# The time that an answer takes tells nothing, as it is refused for want of a right before anything is looked up, or
# comes on a grid of time, as it searches among what is hidden, or is about the asker's own state, or is always the
# same.
Time = typing.Literal["right", "grid", "own", "same"]
OF_CONNECTIONS = {"Authenticate", "OpenContext", "OpenSession", "SaveSession", "EndSession", "NextChanges"}


def check_time(noted: AnsweredRequests, time: Time, way: str, may: Set[str] = frozenset()) -> None:
    """Checks what was looked up for a question over any protocol, where requests of the kinds `may` are allowed.

    Those for retained messages are too: they are of MQTT subscriptions made before, and come when they come.
    """
    grid, own, rest = noted.taken()
    assert rest <= may | {"Retained"}, (way, rest)
    assert bool(grid) == (time == "grid"), (way, grid)
    assert bool(own - OF_CONNECTIONS) == (time == "own"), (way, own)


# ---- HTTP


class Http(NamedTuple):
    """Requests of one endpoint: what they are answered to who may do nothing, and to who may do too little, and why the
    time that it takes tells nothing.
    """

    nobody: int
    little: int
    requests: tuple[tuple[str, Mapping[str, Any]], ...]  # targets, and what goes with them
    time: Time


def http(nobody: int, little: int, *requests: str | tuple[str, Mapping[str, Any]], time: Time = "right") -> Http:
    return Http(nobody, little, tuple((one, {}) if isinstance(one, str) else one for one in requests), time)


_HIDDEN = quote(SECRET)
_SEARCHES = [
    f"/messages?{one}={text}{more}"
    for one, text in (("key", "secret-key"), ("id", "secret-id"))
    for more in (
        "",
        "&limit=1",
        "&limit=1&where=type='secret'",
        "&type=secret&limit=2",
        "&from=0&limit=1",
        "&wait=0.05",
    )
]
_SUBSCRIPTION = {"sink": "https://sink.example.com/", "protocol": "HTTP"}
_BROKERS = [
    {"sink": "mqtts://sink.example.com/", "protocol": "MQTT5", "protocolsettings": {"topicname": "a"}},
    {"sink": "amqps://sink.example.com/", "protocol": "AMQP091", "protocolsettings": {"exchange": "a"}},
]
HTTP: dict[str, Http] = {
    "POST /events": http(403, 403, ("/events", {"headers": {**EVENT, "ce-subject": SECRET}, "content": b"x"})),
    "GET /topics": http(
        200,
        200,
        "/topics",
        "/topics?limit=1",
        "/topics?prefix=closed",
        "/topics?prefix=closed/there&limit=1",
        time="grid",
    ),
    "GET /subscribe": http(403, 403, "/subscribe?filter=closed/%23", f"/subscribe?filter={_HIDDEN}&where=qos>0"),
    "GET /messages": http(200, 200, *_SEARCHES, time="grid"),
    "GET /kv": http(
        403,
        200,
        "/kv?limit=1",
        "/kv?limit=2&keys=true",
        "/kv?prefix=closed/",
        "/kv?prefix=mine/&limit=1",
        "/kv?start=a&end=z",
        time="grid",
    ),
    "POST /kv": http(
        403,
        403,
        (
            "/kv",
            {"json": {"compare": [{"key": SECRET, "revision": 0}], "operations": [{"put": "mine/b", "value": ""}]}},
        ),
        (
            "/kv",
            {"json": {"compare": [{"key": SECRET, "revision": -1}], "operations": [{"put": "mine/b", "value": ""}]}},
        ),
        ("/kv", {"json": {"operations": [{"delete": SECRET}]}}),
    ),
    "POST /kv-holds": http(403, 201, "/kv-holds"),  # tells how much is written in all
    "DELETE /kv-holds": http(404, 404, "/kv-holds?revision=1", time="own"),
    "GET /groups": http(200, 200, "/groups", "/groups?limit=1", time="grid"),
    "GET /docs": http(200, 200, "/docs", time="same"),
    "GET /openapi.json": http(200, 200, "/openapi.json", time="same"),
    "GET /subscriptions": http(200, 200, "/subscriptions", "/subscriptions?limit=1", time="grid"),
    "POST /subscriptions": http(
        403,
        403,
        ("/subscriptions", {"json": _SUBSCRIPTION}),
        ("/subscriptions", {"json": {**_SUBSCRIPTION, "config": {"addresses": ["closed/#"]}}}),
        *(("/subscriptions", {"json": {**one, "config": {"addresses": [SECRET]}}}) for one in _BROKERS),
        *(("/subscriptions", {"json": {**one, "config": {"addresses": ["mine/#"]}}}) for one in _BROKERS),
        time="own",
    ),
    "GET /subscriptions/*": http(404, 404, "/subscriptions/0123", time="own"),
    "PUT /subscriptions/*": http(
        404,
        404,
        ("/subscriptions/0123", {"json": {**_SUBSCRIPTION, "config": {"addresses": ["mine/#"]}}}),
        time="own",
    ),
    "DELETE /subscriptions/*": http(404, 404, "/subscriptions/0123", time="own"),
    "POST /subscriptions/*/pause": http(404, 404, "/subscriptions/0123/pause", time="own"),
    "POST /subscriptions/*/resume": http(404, 404, "/subscriptions/0123/resume", time="own"),
    "GET /topics/*": http(403, 403, f"/topics/{_HIDDEN}", "/topics/closed/%23", "/topics/closed/%2B?limit=1"),
    "POST /topics/*": http(
        403,
        403,
        (f"/topics/{_HIDDEN}", {"content": b"x"}),
        (f"/topics/{_HIDDEN}?delay=9", {"content": b"x"}),
        (f"/topics/{_HIDDEN}?retain=true", {"content": b""}),
        (f"/topics/{_HIDDEN}", {"content": b"x", "headers": {"idempotency-key": "secret-id"}}),
        (f"/topics/{_HIDDEN}", {"content": b"x", "headers": {"prefer": "wait=1"}}),
        ("/topics/mine/a", {"content": b"x", "headers": {"prefer": "wait=1"}}),  # `answers/little` is not theirs
        ("/topics/mine/a", {"content": b"x", "headers": {"prefer": "wait=1", "x-reply-to": SECRET}}),
    ),
    "DELETE /timers/*": http(404, 404, "/timers/1.0.0_x", time="own"),
    "DELETE /kv/*": http(403, 403, f"/kv/{SECRET}", (f"/kv/{SECRET}", {"headers": {"if-match": "*"}})),
    "GET /kv/*": http(403, 403, f"/kv/{SECRET}", (f"/kv/{SECRET}", {"headers": {"if-none-match": "*"}})),
    "PUT /kv/*": http(
        403,
        403,
        (f"/kv/{SECRET}", {"content": b"x"}),
        (f"/kv/{SECRET}", {"content": b"x", "headers": {"if-none-match": "*"}}),
        (f"/kv/{SECRET}", {"content": b"x", "headers": {"if-match": '"1"'}}),
    ),
    "DELETE /groups/*": http(403, 403, "/groups/secret"),
    "GET /groups/*": http(403, 403, "/groups/secret"),
    "PUT /groups/*": http(
        403,
        403,
        ("/groups/secret", {"json": {"topic": "closed"}}),
        ("/groups/mine", {"json": {"topic": "mine", "attempts": 1, "dead_letter": SECRET}}),
    ),
    "POST /groups/*/receive": http(
        403, 403, "/groups/secret/receive", ("/groups/secret/receive", {"json": {"wait": 0.05}})
    ),
    "POST /groups/*/ack": http(403, 403, ("/groups/secret/ack", {"json": {"handles": ["x"]}})),
    "POST /groups/*/nack": http(403, 403, ("/groups/secret/nack", {"json": {"handles": ["x"]}})),
    "POST /groups/*/extend": http(403, 403, ("/groups/secret/extend", {"json": {"handles": ["x"]}})),
    "POST /groups/*/members": http(403, 403, ("/groups/secret/members", {"json": {"topic": "closed"}})),
    "POST /groups/*/reset": http(403, 403, ("/groups/secret/reset", {"json": {"to": "latest"}})),
    "DELETE /groups/*/members/*": http(403, 403, "/groups/secret/members/0123"),
    "PUT /groups/*/members/*": http(403, 403, "/groups/secret/members/0123"),
    "GET /groups/*/members/*/messages": http(403, 403, "/groups/secret/members/0123/messages?wait=0.05"),
    "POST /groups/*/members/*/commit": http(
        403, 403, ("/groups/secret/members/0123/commit", {"json": {"after": "1~16.1"}})
    ),
}
# Where the status depends on the request: a count needs the right to all of its range, a filter that to some of it.
MORE: dict[str, Http] = {
    "GET /kv": http(
        403,
        403,
        "/kv?count=true",
        "/kv?count=true&prefix=closed/",
        "/kv?watch=true&ns=other",
        "/kv?prefix=closed/&keys=true&ns=other",
    ),
    "GET /messages": http(
        403,
        403,
        f"/messages?address={_HIDDEN}",
        f"/messages?queue=16&address={_HIDDEN}",
        f"/messages?queue=17&offset=1&address=mine/a&address={_HIDDEN}&where=type='secret'",
        f"/messages?queue=16&from=0&limit=1&address={_HIDDEN}",
    ),
    # An address that may be read, in queues of other topics and of AMQP: where pages end would tell how much they hold.
    "GET /messages of queues": http(
        403,
        200,
        *(f"/messages?queue={queue}&offset={offset}&address=mine/a" for queue in range(16, 30) for offset in range(2)),
        time="grid",
    ),
    "GET /topics/*": http(403, 200, "/topics/%23", "/topics/%23?limit=1", "/topics/%2B/there?limit=1", time="grid"),
    "HEAD /topics/*": http(403, 403, f"/topics/{_HIDDEN}"),
}


NONE: frozenset[str] = frozenset()
MAY = {"POST /kv-holds": frozenset({"HoldKeys"})}  # requests that are answered to who may do too little, too


def http_endpoints() -> set[str]:
    """Returns every method and path that is served, with `*` for the part that a path names."""
    found = {f"{method} {path}" for path, methods in routes.EXACT.items() for method in methods}
    found |= {f"{method} {root}*" for root, methods in routes.BELOW.items() for method in methods}
    tables = (("/groups/*", groups._GROUP), ("/groups/*/members/*", groups._MEMBERS))
    for below, table in (*tables, ("/subscriptions/*", subscriptions._ONE)):
        found |= {f"{method} {below}{rest and f'/{rest}'}" for rest, methods in table.items() for method in methods}
    return found


def test_every_endpoint_of_http_is_in_the_table():
    assert http_endpoints() == HTTP.keys()


# ---- AMQP: None is what concerns a connection's own channel, consumers and deliveries, or is not there at all

AMQP: dict[str, Callable[[Any], Any] | None] = {
    "Exchange.Declare": lambda one: one.exchange_declare("closed-x", "topic", passive=True),
    "Exchange.Delete": lambda one: one.exchange_delete("closed-x"),
    "Exchange.Bind": lambda one: one.exchange_bind("closed-x", "amq.topic", "#"),
    "Exchange.Unbind": lambda one: one.exchange_unbind("closed-x", "amq.topic", "#"),
    "Queue.Declare": lambda one: one.queue_declare("closed-q", passive=True),
    "Queue.Bind": lambda one: one.queue_bind("closed-q", "closed-x", "#"),
    "Queue.Unbind": lambda one: one.queue_unbind("closed-q", "closed-x", "#"),
    "Queue.Purge": lambda one: one.queue_purge("closed-q"),
    "Queue.Delete": lambda one: one.queue_delete("closed-q", if_empty=True),
    "Basic.Consume": lambda one: one.basic_consume("closed-q", lambda *_: None),
    "Basic.Get": lambda one: one.basic_get("closed-q"),
    "Basic.Publish": lambda one: (one.confirm_delivery(), one.basic_publish("", "closed-q", b"x", mandatory=True)),
    "Tx.Commit": lambda one: (one.tx_select(), one.basic_publish("", "closed-q", b"x"), one.tx_commit()),
    **dict.fromkeys(
        [
            *(
                "Channel.Close",
                "Channel.Flow",
                "Channel.FlowOk",
                "Confirm.Select",
                "Tx.Select",
                "Tx.Rollback",
            ),
            *("Basic.Qos", "Basic.Cancel", "Basic.CancelOk", "Basic.Ack", "Basic.Nack", "Basic.Reject"),
            *("Basic.Recover", "Basic.RecoverAsync"),
        ]
    ),
}
FROM_FIRST = {"x-stream-offset": "first"}
COPIED = pika.BasicProperties(headers={"BCC": ["closed.there"]})
ANSWERED = pika.BasicProperties(reply_to="closed-q")
AMQP_MORE: list[Callable[[Any], Any]] = [
    lambda one: one.exchange_declare("closed-x", "topic"),
    lambda one: one.exchange_declare("closed-x", "fanout"),
    lambda one: one.queue_declare("closed-q"),
    lambda one: one.queue_declare("closed-q", durable=True),
    lambda one: one.queue_delete("closed-q"),
    lambda one: one.queue_declare("mine/d", arguments={"x-dead-letter-exchange": "closed-x"}),
    lambda one: one.queue_declare(
        "mine/d", arguments={"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": "closed.there"}
    ),
    lambda one: one.queue_bind("mine/q", "amq.topic", "closed.#"),
    lambda one: (one.queue_declare("mine/q"), one.queue_bind("mine/q", "closed-x", "k")),
    lambda one: (one.queue_declare("mine/q"), one.queue_bind("mine/q", "closed-x", "mine.k")),
    lambda one: (one.exchange_declare("mine/x"), one.exchange_bind("mine/x", "closed-x", "k")),
    lambda one: one.exchange_declare("mine/a", arguments={"alternate-exchange": "closed-x"}),
    lambda one: one.queue_declare("closed-s", durable=True, arguments={"x-queue-type": "stream"}),
    lambda one: (one.basic_qos(prefetch_count=1), one.basic_consume("closed-s", lambda *_: None, arguments=FROM_FIRST)),
    lambda one: (one.confirm_delivery(), one.basic_publish("amq.topic", "closed.there", b"x", mandatory=True)),
    lambda one: (one.confirm_delivery(), one.basic_publish("amq.topic", "mine.a", b"x", COPIED)),
    lambda one: (one.confirm_delivery(), one.basic_publish("amq.topic", "mine.a", b"x", ANSWERED)),
    lambda one: (one.confirm_delivery(), one.basic_publish("closed-x", "k", b"x", mandatory=True)),
]
OF_OWN_NAMES = {"DeclareQueue", "DeclareExchange"}  # in these, names below `mine/` are declared before the refusal
# The policies that `hidden` sets, by name. Then what a user with too few rights is told of names that they are for.
POLICIES = {
    "closed": (
        "^closed-",
        {"max-length": 1, "dead-letter-exchange": "closed-d", "alternate-exchange": "closed-d"},
    ),
    "mine": ("^mine/", {"dead-letter-exchange": "closed-x", "alternate-exchange": "closed-x"}),
}
BY_POLICY: list[tuple[int, Callable[[Any], Any]]] = [
    # The exchange of dead letters is the policy's, and the key would be the user's: an address that it may not name.
    (406, lambda one: one.queue_declare("mine/k", arguments={"x-dead-letter-routing-key": "closed.there"})),
    (403, lambda one: one.queue_declare("closed-p")),
    (403, lambda one: one.exchange_declare("closed-p", "topic", passive=True)),
    (403, lambda one: one.queue_bind("mine/q", "closed-p", "#")),
    (403, lambda one: (one.confirm_delivery(), one.basic_publish("closed-p", "k", b"x", mandatory=True))),
]


def test_every_method_of_amqp_is_in_the_table():
    found = set()
    for methods in (Channel, Exchange, Queue, Basic, Confirm, Tx):
        class_name = methods.__name__
        found |= {
            f"{class_name}.{name}" for name, one in vars(methods).items() if getattr(one, "index", None) in _METHODS
        }
    assert found | {"Basic.Publish"} == AMQP.keys()


# ---- MQTT

MQTT: dict[str, str] = {
    "Connect": "a will's address: 0x87",
    "Publish": "0x87, and so is what a message names",
    "Subscribe": "0x87 where nothing may be read, or shared, not all",
    **dict.fromkeys(
        ["Puback", "Pubrec", "Pubrel", "Pubcomp", "Unsubscribe", "Pingreq", "Disconnect", "Auth"], "its own"
    ),
}


def test_every_packet_of_mqtt_is_in_the_table():
    sent = {one.__name__ for one in session._HANDLERS}
    sent |= {"Connect", "Publish", "Pingreq", "Disconnect", "Auth"}
    kinds = {
        name for name, one in vars(packets).items() if isinstance(one, type) and one.__module__ == packets.__name__
    }
    answers = {"Connack", "Suback", "Unsuback", "Pingresp"}
    assert {name for name in kinds if name.capitalize() in {*MQTT, *answers}} - answers == MQTT.keys()
    assert sent <= MQTT.keys()


# ---- CoAP, without a name, and of users: by OSCORE, by DTLS, and by WebSocket over TLS

FETCHED = (SECRET, "closed/#", "closed/+", "closed/absent/#")  # the filters of FETCH
COAP_READS = (("GET", ""), ("GET", "/*"), ("FETCH", ""))
COAP: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((f"FETCH /{root}" for root in ROOTS), ("4.03",)),
    **{f"{method} /{root}/*": ("4.03",) for root in ROOTS for method in ("GET", "POST", "PUT")},
    "GET /t": ("2.05",),
    "GET /ps": ("4.03",),  # topics are keys
    "POST /ps": ("4.03",),
    "GET /.well-known/core": ("2.05",),
    **{f"{method} /*": ("4.03",) for method in ("GET", "POST", "PUT")},
    "DELETE /t/*": ("4.03",),
    **{f"{method} /t/*": ("4.05",) for method in ("FETCH", "PATCH", "iPATCH")},
}
TOPIC = bytes.fromhex("a2006c636c6f7365642f7468657265026c636f72652e70732e64617461")  # {0: SECRET, 2: "core.ps.data"}
TOPIC_PATH = f"/ps/$topic/{topic_id(SECRET)}"
COAP |= {f"{method} {TOPIC_PATH}": ("4.03",) for method in ("GET", "FETCH", "POST", "PUT", "iPATCH", "DELETE")}
TOPIC_BODIES = {f"FETCH {TOPIC_PATH}": (b"\x81\x00", 60)}  # and their Content-Formats
FETCHED_IN_PART = ("#", "+/there", "mine/#")  # a reader is sent what it may read of these, and nothing else


# ---- WebSocket: MQTT's clients come by each listener; events by requests that are refused in HTTP, and by messages

MQTT_LISTENERS = ("mqtt", "mqtt-ws", "http")
SOCKETS: dict[str, tuple[int, int]] = {  # the answers to the opening of a socket: to `nobody`, and to `little`
    "filter=closed/%23": (403, 403),
    f"filter={_HIDDEN}": (403, 403),
    f"filter={_HIDDEN}&where=qos>0": (403, 403),
    f"filter=mine/%23&filter={_HIDDEN}": (403, 403),
    "filter=%23": (403, 101),
    "filter=%2B/there": (403, 101),
    "filter=mine/%23": (403, 101),
}
SOCKET_EVENTS: tuple[dict[str, Any], ...] = (  # events that end the socket
    {"subject": SECRET, "id": "secret-id"},
    {"subject": SECRET, "id": "other"},
    {"subject": "closed/absent", "id": "secret-id"},
    {"subject": "$kv/default/closed/there", "id": "1"},
)

# ---- the sessions of a client, as they are shown to a user

SESSIONS = ("secret-away", "secret-here", "admin")


# ---- remote calls: for nodes and those who read for a whole cluster, who have no rules (docs/operations.md)

GRPC = {
    "StoreService": {"Topics", "Bounds", "OffsetAtTime", "Health", "Fetch"},
    "NodeService": {"Calls", "Append", "Tail"},
    "ReplicationService": {"Replicate", "Snapshot", "FetchRange", "Seals", "SwitchOver", "Verify"},
    "ControllerService": {"Follow", "Command", "Heartbeat", "Peer", "Install", "Status", "Routes", "Identify"},
}
# By where it listens, and browsers by Host and Origin; actions are for this machine alone.
ADMIN = {
    "/healthz",
    "/readyz",
    "/metrics",
    "/status",
    "/amqp/queues",
    "/amqp/bindings",
    "/amqp/connections",
    "/amqp/policies",
    "/amqp/vhosts",
    "/sessions",  # with `user=`: `tests.interop.mqtt.test_mqtt_sessions_listed`
}
ADMIN_ACTIONS = {
    "/amqp/connections/close",
    "/amqp/definitions",
    "/amqp/policies/clear",
    "/amqp/policies/set",
    "/amqp/queues/move",
    "/amqp/users/remove",
    "/amqp/vhosts/add",
    "/amqp/vhosts/delete",
    "/amqp/vhosts/limits/clear",
    "/amqp/vhosts/limits/set",
}
EFFECTS = {
    "Publish": "Permissions.refused",
    "Subscribe": "Permissions.check_filter by the adapter, and each address by the fan-out",
    "Consume": "access_requests.check_consume, and the pump",
    "Call": "the right named in gateway.runtime.requests",
    **dict.fromkeys(["Unsubscribe", "Settled", "SettleLeased", "Ready", "Cancel", "GiveUp", "Close"], "its own"),
    "HandOver": "the next adapter's: to it the peer is a stranger again (`Connection.hand_over`)",
}
# The parts of the gateway that publish, move or subscribe in somebody's name, and whose rights count when.
IN_A_NAME = {
    "gateway/bridges/amqp/forwarding.py": "subscribes as the configuration says",
    "gateway/bridges/shared/storing.py": "publishes as the configuration says",
    "gateway/delivery/answers.py": "subscribes for who waits for an answer",
    "gateway/groups/lease_letters.py": "moves for who made the group: checked then",
    "gateway/push/dead_letters.py": "publishes for the subscription's owner: checked with each event",
    "gateway/push/delivery.py": "subscribes for the subscription's owner",
    "gateway/queues/dead_letters.py": "moves for who declared the queue: checked then; a policy's are its operator's",
    "gateway/runtime/endpoint.py": "publishes and subscribes for a connection: see `EFFECTS`",
    "gateway/sessions/wills.py": "publishes for a will's client: checked when it is set and when it is published",
}
ACTS_IN_A_NAME = re.compile(r"fanout\.subscribe\(|_mover\.move\(|def published\(")
PORT_OF_PUBLISHING = "gateway/publishing/publishing.py"
# The requests that need no right by themselves, and why.
OWN = {
    **dict.fromkeys(["Authenticate", "FindKeys", "OpenContext", "NextLostContexts"], "before it is known who asks"),
    **dict.fromkeys(["OpenSession", "SaveSession", "EndSession", "DropWill", "LeaveShared"], "the asker's own session"),
    **dict.fromkeys(["GetSubscription", "PauseSubscription", "DeleteSubscription"], "the asker's own subscriptions"),
    **dict.fromkeys(["AwaitAnswer", "ForgetAnswer"], "an answer that was expected by right"),
    **dict.fromkeys(["NextChanges", "UnwatchKeys"], "a watch that was begun by right"),
    "ReleaseKeys": "of a state that its connection holds",
    **dict.fromkeys(["ListAddresses", "ListGroups", "ListSubscriptions"], "skips what the asker may not see"),
    **dict.fromkeys(["CreateSubscription", "UpdateSubscription", "JoinShared"], "checks each of its filters itself"),
    "CancelTimer": "by a ticket that its publisher was given",
    "RecallKey": "the asker's own requests: the name has the user in it",
    "StorePart": "read by nobody before its message, which is checked",
    "ReadPart": "by who was delivered the message",
}


def test_every_method_of_coap_is_in_the_table():
    methods = {one.name for one in Code if one.is_request()}
    assert {way.partition(" ")[0] for way in COAP} == methods
    assert COAP.keys() >= {f"{method} /{root}{one}" for root in ROOTS for method, one in COAP_READS}


def test_every_remote_call_page_and_effect_is_in_the_table():
    for service in (StoreService, NodeService, ReplicationService, ControllerService):
        empty = object.__new__(service)
        calls = empty.handlers() if hasattr(empty, "handlers") else empty._handlers()
        assert set(calls) == GRPC[service.__name__]
    hub = typing.cast(Any, None)
    operations = AmqpOperations(hub).operations.with_those_of(ClientSessions(hub).operations)
    pages = AdminServer(lambda: None, lambda: None, CollectorRegistry())._pages
    assert pages.keys() | operations.listings.keys() == ADMIN
    assert operations.actions.keys() == ADMIN_ACTIONS
    of_workers = WorkerOperations(typing.cast(Any, None)).operations
    assert of_workers.actions.keys() == ADMIN_ACTIONS
    assert of_workers.listings.keys() == operations.listings.keys()
    assert {one.__name__ for one in typing.get_args(port.Effect)} == EFFECTS.keys()
    # By time too: what the rows call `grid`. Retained messages are told of by no answer of their own: who subscribes
    # gets them one by one.
    searching = {kind.__name__ for kind, served in REQUESTS.items() if served.on_grid}
    lists = {"ListAddresses", "ListGroups", "ListKeys", "ListSubscriptions"}
    assert searching == {"FindMessages", "LastValues", "ReadQueue"} | lists
    assert {kind.__name__ for kind, served in REQUESTS.items() if served.needs is access_requests.own} == OWN.keys()


def test_everything_that_publishes_or_subscribes_in_a_name_is_in_the_table():
    root = Path(__file__).resolve().parents[2]
    sources = {str(one.relative_to(root)): one.read_text() for one in (root / "gateway").rglob("*.py")}
    found = {name for name, text in sources.items() if ACTS_IN_A_NAME.search(text)}
    assert found - {PORT_OF_PUBLISHING} == IN_A_NAME.keys()


# ---- the answers, before there is anything hidden and after


@pytest.fixture(scope="module")
def coap_files(tmp_path_factory: pytest.TempPathFactory) -> CoapFiles:
    return CoapFiles(tmp_path_factory.mktemp("table") / "coap", (NOBODY, LITTLE, "admin"))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, coap_files: CoapFiles) -> Iterator[RuledGateway]:
    listeners: dict[str, Any] = {
        name: {"port": 0, "tls_port": 0} for name in ("mqtt", "mqtt-ws", "coap-tcp", "http", "amqp")
    }
    listeners |= {"coap": {"port": 0}, "coaps": {"enabled": HAS_DTLS, "port": 0}}
    data_dir = Path(tmp_path_factory.mktemp("table")) / "data"
    served = RuledGateway(data_dir, listeners=listeners, **coap_files.sections)
    with pytest.MonkeyPatch.context() as patch, served as one:
        patch.setattr("gateway.delivery.queue_search.LOOKED_MAX", 1)
        for name, rules in ((NOBODY, ruled()), (LITTLE, ruled(*MINE))):
            one.do(one.set_user(name, rules))
        with one.http("admin") as admin:  # readable messages, which make the topics
            for address in (READABLE, "mine/a", "mine/z"):
                assert admin.post(f"/topics/{address}", content=b"x").is_success
            for key in ("mine/a", "mine/z"):
                assert admin.put(f"/kv/{key}", content=b"x").is_success
        yield one


@pytest.fixture(scope="module")
def coap(gateway: RuledGateway, coap_files: CoapFiles) -> Iterator[CoapWays]:
    with CoapWays(coap_files, gateway.ports, gateway.tls_ports) as ways:
        yield ways


@contextmanager
def hidden(served: RuledGateway) -> Iterator[None]:
    """Puts something into every place that the requests above ask for; a session is connected until the exit."""
    for name, (pattern, definition) in POLICIES.items():
        body = {"name": name, "pattern": pattern, "definition": definition}
        assert admin_port(served, "POST", "/amqp/policies/set", json=body).is_success
    with served.http("admin") as admin:
        for n in range(3):
            query = {"key": "secret-key", "retain": "true"}
            assert admin.post(f"/topics/{SECRET}", params=query, headers=EVENT, content=b"%d" % n).is_success
        assert admin.post(f"/topics/{SECRET}", params={"delay": "3600"}, content=b"x").is_success
        for key in (SECRET, "b", "closed/a", "minf"):
            assert admin.put(f"/kv/{key}", content=b"x").is_success
        topic = f"/kv/{topic_id(SECRET)}?ns=coap-topics"
        assert admin.put(topic, content=TOPIC).is_success
        assert admin.post("/subscriptions", json=_SUBSCRIPTION).is_success
        assert admin.post("/groups/secret/members", json={"topic": "closed"}).is_success
    channel = amqp(served, "admin").channel()
    channel.exchange_declare("closed-x", "topic", durable=True)
    channel.queue_declare("closed-q", durable=True)
    channel.queue_bind("closed-q", "closed-x", "#")
    channel.queue_declare("closed-s", durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_bind("closed-s", "closed-x", "#")
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("closed-x", "k", b"x")
    channel.connection.close()
    served.do(served.gateway.hub.queues.registry.make_vhost("closed"))
    with closing(UserClient(served, "admin", "secret-here")) as here:
        with closing(UserClient(served, "admin", "secret-away")) as away:
            for one in (here, away):
                assert one.connect(expiry_s=1000) == 0
                assert one.subscribe("closed/#", SECRET) == [1, 1]
        yield


def admin_port(served: RuledGateway, method: str, target: str, **given: Any) -> httpx.Response:
    """Returns the answer of the admin port."""
    url = f"http://127.0.0.1:{served.ports['admin']}{target}"
    return httpx.request(method, url, timeout=TIMEOUT_S, trust_env=False, **given)


def amqp(served: RuledGateway, name: str, vhost: str = "/") -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(name, "a secret")
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", served.ports["amqp"], vhost, credentials=credentials)
    )


def http_answers(served: RuledGateway, noted: AnsweredRequests, name: str) -> dict[str, Any]:
    """Returns all that HTTP answers a user, without the totals that count what is hidden."""
    found: dict[str, Any] = {}
    with served.http(name) as client:
        for table in (HTTP, MORE):
            for endpoint, row in table.items():
                for number, (target, given) in enumerate(row.requests):
                    answer = client.request(endpoint.partition(" ")[0], target, **given)
                    wanted = row.nobody if name == NOBODY else row.little
                    assert answer.status_code == wanted, f"{endpoint} {target}: {answer.text}"
                    refused = wanted == 403 and row.time == "grid"  # a search by who may read nothing of it
                    check_time(noted, "right" if refused else row.time, f"{endpoint} {target}", MAY.get(endpoint, NONE))
                    found[f"{endpoint} {target} {number}"] = masked(answer)
    return found


def masked(answer: httpx.Response) -> tuple[int, list[tuple[str, str]], str]:
    """Returns an answer without revisions, which count all writes and are no secret, and without its date."""
    headers = [(name, value) for name, value in answer.headers.multi_items() if name not in {"date", "content-length"}]
    return answer.status_code, headers, re.sub(r'^\{"revision":\d+', '{"revision":*', answer.text)


def amqp_answers(served: RuledGateway, noted: AnsweredRequests, name: str) -> list[str]:
    """Returns the codes that the channel is closed with, method by method."""
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=r"\(530\)") as refused:
        amqp(served, name, "closed")
    found, connection = [str(refused.value)], amqp(served, name)
    by_policy = (("by policy", work, code) for code, work in BY_POLICY)
    refusals = (("more", work, 403) for work in AMQP_MORE)
    for method, work, code in (*((one, work, 403) for one, work in AMQP.items()), *refusals, *by_policy):
        if work is None:
            continue
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            work(connection.channel())
        assert closed.value.reply_code == (403 if name == NOBODY else code), method
        check_time(noted, "right", method, OF_OWN_NAMES if method in {"more", "by policy"} else frozenset())
        found.append(f"{method} {closed.value.reply_text}")
    connection.close()
    return found


def mqtt_answers(served: RuledGateway, noted: AnsweredRequests, name: str, listener: str) -> list[Any]:
    """Returns codes, and the texts that come with them."""
    client = UserClient(served, name, f"table-{name}-{listener}", listener=listener)
    will = UserClient(served, name, f"will-{name}-{listener}", listener=listener)
    will.paho.will_set(SECRET, b"x", 1)
    found: list[Any] = [will.connect(), client.connect()]
    filters = ("closed/#", SECRET, "#", "+/there", "$share/g/closed/#", "$share/g/#", f"$share/g/{SECRET}", "$SYS/#")
    found += [client.subscribe(pattern) for pattern in filters]
    for address in (SECRET, "$delayed/9/closed/there"):
        found += [client.publish(address, qos) for qos in (1, 2)]
    asked = Properties(PacketTypes.PUBLISH)
    asked.ResponseTopic = SECRET
    found.append(client.publish("mine/a", 1, properties=asked))
    assert client.messages.empty() or name == LITTLE
    while not client.messages.empty():
        assert client.messages.get().topic.startswith("mine/")
    for one in (client, will):
        one.close()
    granted = [name == LITTLE and pattern in {"#", "+/there"} for pattern in filters]
    assert found[2:10] == [[1 if one else DENIED] for one in granted]
    assert found[0] == DENIED
    grid, _, rest = noted.taken()
    # Retained messages come one by one, and nothing tells the end of them.
    assert not grid
    assert rest <= {"Retained"} if name == LITTLE else not rest
    return found


def coap_answers(ways: CoapWays, noted: AnsweredRequests, way: Way) -> dict[str, Any]:
    """Returns codes, options and payloads."""
    found: dict[str, Any] = {}

    def ask(code: str, row: str, body: bytes, observe: int | None = None) -> None:
        method, _, path = row.partition(" ")
        message = CoapMessage(code=Code[method], payload=body, observe=observe)
        message.opt.uri_path = path.replace("*", SECRET)[1:].split("/")
        if row in TOPIC_BODIES:
            message.payload, message.opt.content_format = TOPIC_BODIES[row]
        elif path.startswith(TOPIC_PATH) or row == "POST /ps":
            message.payload = b"" if method in {"GET", "DELETE"} else TOPIC
        answer = ways.ask[way](message)
        assert Code(answer.code).dotted == code, (way, row, body, observe)
        check_time(noted, "grid" if code == "2.05" else "right", f"{way} {row} {body!r}")
        found[f"{row} {body!r} {observe}"] = Code(answer.code).dotted, answer.payload, answer.opt.encode()

    for row, (code, *_) in COAP.items():
        method, _, path = row.partition(" ")
        plain = b"" if method in {"GET", "DELETE"} else b"x"
        bodies = [one.encode() for one in FETCHED] if method == "FETCH" and path[1:] in ROOTS else [plain]
        for body, observe in itertools.product(bodies, (None, 0) if method in {"GET", "FETCH"} else (None,)):
            ask(code, row, body, observe)
    for root, pattern in itertools.product(ROOTS, FETCHED_IN_PART):
        code = "4.03" if way.user == NOBODY or (way.user is None and pattern == "mine/#") else "2.05"
        ask(code, f"FETCH /{root}", pattern.encode())
    return found


def open_socket(served: RuledGateway, name: str, query: str) -> ClientConnection:
    credentials = b64encode(f"{name}:{PASSWORD.decode()}".encode()).decode()
    return connect_websocket(
        f"ws://127.0.0.1:{served.ports['http']}/subscribe?{query}",
        subprotocols=[Subprotocol("cloudevents.json")],
        additional_headers={"authorization": f"Basic {credentials}"},
        proxy=None,
        open_timeout=TIMEOUT_S,
    )


def socket_answers(served: RuledGateway, noted: AnsweredRequests, name: str) -> dict[str, Any]:
    """Returns what opens, or refuses to open, sockets of events, and with what events end them."""
    found: dict[str, Any] = {}
    for query, codes in SOCKETS.items():
        wanted = codes[name == LITTLE]
        if wanted == 101:
            with open_socket(served, name, query) as socket:
                assert socket.ping().wait(TIMEOUT_S)
                with pytest.raises(TimeoutError):  # no message came before the answer to the ping
                    socket.recv(timeout=0)
            continue
        with pytest.raises(InvalidStatus) as refused:
            open_socket(served, name, query)
        answer = refused.value.response
        headers = [one for one in answer.headers.raw_items() if one[0].lower() != "date"]
        assert answer.status_code == wanted, query
        found[query] = answer.status_code, headers, answer.body
    check_time(noted, "right", "sockets")
    if name == LITTLE:
        for number, event in enumerate(SOCKET_EVENTS):
            with open_socket(served, name, "filter=mine/%23") as socket:
                socket.send(json.dumps({"specversion": "1.0", "source": "/s", "type": "secret", "data": 1, **event}))
                with pytest.raises(ConnectionClosed) as ended:
                    socket.recv(timeout=TIMEOUT_S)
                assert ended.value.rcvd is not None
                assert ended.value.rcvd.code == 1008, event
                found[f"event {number}"] = ended.value.rcvd.code, ended.value.rcvd.reason
    return found


def session_answers(served: RuledGateway, name: str) -> dict[str, Any]:
    """Returns what the admin port tells for a user of the sessions of others."""
    found = {client: admin_port(served, "GET", f"/sessions?client={client}&user={name}") for client in SESSIONS}
    return {client: (answer.status_code, answer.json()) for client, answer in found.items()}


@contextmanager
def listening(served: RuledGateway) -> Iterator[Callable[[], list[str]]]:
    """Listens to all that there is, as the user with too few rights, by each stream that stays open.

    The function publishes something that this user may read, and returns the addresses and keys that came first.
    """
    with ExitStack() as stack:
        socket = stack.enter_context(open_socket(served, LITTLE, "filter=%23"))
        devices = [UserClient(served, LITTLE, f"listens-{one}", listener=one) for one in MQTT_LISTENERS]
        for one in devices:
            stack.enter_context(closing(one)).connect()
            assert one.subscribe("#") == [1]
        http = stack.enter_context(served.http(LITTLE))
        streams = [
            stack.enter_context(http.stream("GET", target)) for target in ("/kv?watch=true", "/subscribe?filter=%23")
        ]
        lines = [one.iter_lines() for one in streams]
        for one in lines:
            next(one)

        def first() -> list[str]:
            served.publish("mine/last")
            with served.http("admin") as client:
                assert client.put("/kv/mine/last", content=b"x").is_success
            told = [json.loads(next(line for line in one if line.startswith("data: "))[6:]) for one in lines]
            heard = json.loads(socket.recv(timeout=TIMEOUT_S))["subject"]
            return [told[0]["key"], told[1]["subject"], heard, *(one.hear() for one in devices)]

        yield first


def all_answers(served: RuledGateway, coap: CoapWays, noted: AnsweredRequests) -> dict[str, Any]:
    found: dict[str, Any] = {f"{way}": coap_answers(coap, noted, way) for way in coap.ask if way.user != "admin"}
    for name in (NOBODY, LITTLE):
        found[f"http {name}"] = http_answers(served, noted, name)
        found[f"amqp {name}"] = amqp_answers(served, noted, name)
        for listener in MQTT_LISTENERS:
            found[f"mqtt {name} {listener}"] = mqtt_answers(served, noted, name, listener)
        found[f"sockets {name}"] = socket_answers(served, noted, name)
        found[f"sessions {name}"] = session_answers(served, name)
    return found


def test_who_may_do_everything_is_served_on_each_way(gateway: RuledGateway, coap: CoapWays) -> None:
    """Asks by every way with the right: where this fails, a refusal below proves nothing."""
    for way, ask in coap.ask.items():
        message = CoapMessage(code=Code.GET)
        message.opt.uri_path = ("t", *READABLE.split("/"))
        assert Code(ask(message).code).dotted == ("2.05" if way.user == "admin" else "4.03"), way
    for listener in MQTT_LISTENERS:
        with closing(UserClient(gateway, "admin", f"may-{listener}", listener=listener)) as client:
            assert client.connect() == 0
            assert client.subscribe("closed/#") == [1]
    with open_socket(gateway, "admin", "filter=closed/%23") as socket:
        socket.send(json.dumps({"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": READABLE}))
        assert json.loads(socket.recv(timeout=TIMEOUT_S))["subject"] == READABLE


def test_nothing_that_is_answered_tells_what_is_hidden(gateway: RuledGateway, coap: CoapWays) -> None:
    with noting_requests() as noted:
        before = all_answers(gateway, coap, noted)
    with listening(gateway) as first, hidden(gateway), noting_requests() as noted:
        after = all_answers(gateway, coap, noted)
        assert [len(admin_port(gateway, "GET", f"/sessions?client={one}").json()["rows"]) for one in SESSIONS[:2]] == [
            1,
            1,
        ]
        assert set(first()) == {"mine/last"}
    for way, said in before.items():
        if isinstance(said, dict):
            for one, answer in said.items():
                assert after[way][one] == answer, f"{way}: {one}"
        assert after[way] == said, way
