"""CloudEvents in structured mode over AMQP: events to others, and the bytes that came to AMQP."""

import json

import pytest
from msgspec.structs import replace
from pamqp import commands
from pamqp.body import ContentBody

from adapters import cloudevents
from adapters.amqp.codec.delivery import get_ok_frames, return_frames
from adapters.amqp.codec.structured import body_of
from adapters.cloudevents import KEPT_BYTES_MAX
from gateway.port.queues import ADDED, PROPERTIES, STORED
from store.api.message import decode, encode
from tests.support.amqp.amqp_peer import NOW_MS, Peer

JSON = "application/cloudevents+json"
BODIES = [
    b'{ "specversion": "1.0", "id":"7", "source":"/s", "type":"t.x", "data" : {"v": 21.50, "u":"\xc3\xa9"}, "n":5 }\n',
    b'{"specversion":"1.0","id":"7","source":"/s","type":"t.x","datacontenttype":"text/plain","data":"1.0","n":5}',
    b'{"specversion":"1.0","id":"7","source":"/s","type":"t.x","datacontenttype":"text/plain","data":"\\u00e9\\n","n":5}',
    b'{"specversion":"1.0","id":"7","source":"/s","type":"t.x","data_base64":"AAEC","n":5}',
    b'{"specversion":"1.0","id":"7","source":"/s","type":"t.x","data":null,"n":5}',
    b'{"specversion":"1.0","id":"7","source":"/s","type":"t.x","n":5}',
]


def taken(body, **properties):
    peer = Peer().open()
    peer.publish("amq.topic", "a.b", body, **{"content_type": JSON, **properties})
    (message,) = peer.published()
    return message


def sent(*messages):
    """Returns the bodies, and the content types, that a consumer gets."""
    peer = Peer().open()
    peer.deliver(peer.consume(), messages)
    frames = peer.methods()
    bodies = [frame.value for frame in frames if isinstance(frame, ContentBody)]
    return bodies, [frame.properties.content_type for frame in frames if hasattr(frame, "properties")]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("content_type", [JSON, "Application/CloudEvents+JSON ; charset=utf-8"])
def test_an_event_in_json_is_an_event_and_leaves_as_it_came(body, content_type):
    message = taken(body, content_type=content_type, message_id="m", message_type="other", headers={"x": "y"})
    assert (message.address, message.id, message.type) == ("a/b", "7", "t.x")
    assert message.properties == (("n", "5"), ("x", "y"))
    document = {**json.loads(body), "headgateaddress": "a/b", "x": "y"}
    assert json.loads(cloudevents.to_structured(message)) == document
    later = decode(encode(message))
    assert sent(message, later) == ([body, body], [content_type] * 2)


@pytest.mark.parametrize(
    ("member", "event"),
    [
        (b'"data":"%s"', True),
        (b'"data_base64":"%s"', True),
        (b'"data":"\\n%s"', False),
        (b'"data":"x","y":"%s"', False),
    ],
)
def test_a_body_of_which_much_stands_beside_the_data_is_no_event(member, event):
    """Of a text with escapes that is the whole body."""
    rest = BODIES[5].replace(b'"n":5', b'"datacontenttype":"text/plain",' + member % (b"QUJD" * (KEPT_BYTES_MAX // 4)))
    message = taken(rest)
    assert ("cloudevents" in message.native) is event
    assert body_of(message) == rest
    assert sum(map(len, message.native["amqp"].get("structured", ()))) < 1_000


def test_it_leaves_so_by_every_method():
    message = taken(BODIES[0])
    own = message.native["amqp"]
    added = {**message.native, "amqp": {PROPERTIES: b"", ADDED: {"x-delivery-count": 1}, STORED: own}}
    assert body_of(message) == BODIES[0]
    assert sent(replace(message, native=added))[0] == [BODIES[0]]
    parts = {"payload_max": 4_000, "now_ms": NOW_MS}
    for frames in (
        get_ok_frames(1, 1, message, redelivered=False, remaining=0, **parts),
        return_frames(1, message, **parts),
    ):
        assert BODIES[0] in frames


@pytest.mark.parametrize(
    ("body", "properties"),
    [
        (b"", {}),
        (b"\x1f\x8b", {"content_encoding": "gzip"}),
        (b"[]", {"content_type": "application/cloudevents-batch+json"}),
        (b"{}", {"content_type": "application/json"}),
    ],
)
def test_another_body_is_none(body, properties):
    message = taken(body, **properties)
    assert message.body == body
    assert "cloudevents" not in message.native


@pytest.mark.parametrize("body", [b"x", b"{}", BODIES[5].replace(b'"1.0"', b'"0.3"'), BODIES[5].replace(b"5", b"5.5")])
def test_a_body_that_is_no_event_of_this_version_is_a_message_as_any_other(body):
    message = taken(body, message_id="m", message_type="other")
    assert (message.body, message.type, message.content_type, message.id) == (body, "other", JSON, "m")
    assert message.native["amqp"]["shown"] == [["id", "m"]]
    assert "cloudevents" not in message.native
    assert sent(message) == ([body], [JSON])


def test_a_transaction_counts_what_is_kept_beside_the_data_of_an_event():
    peer = Peer(transaction_bytes_max=100_000).open()
    peer.send(commands.Tx.Select(), channel=1)
    peer.one(commands.Tx.SelectOk)
    body = BODIES[0] + b" " * 40_000
    for _ in range(3):
        peer.publish("amq.topic", "a.b", body, content_type=JSON)
    assert "transaction_bytes_max" in peer.one(commands.Channel.Close).reply_text
