"""Events that come by one binding and leave by another."""

import json
from typing import Any

import pytest

from adapters.cloudevents import from_structured
from adapters.mqtt.codec import Properties
from adapters.mqtt.codec.packets import Publish, Subscribe, SubscriptionRequest
from store.api.message import Message
from tests.support.http.http_driver import Gateway, Http1Client
from tests.support.mqtt.mqtt_driver import NOW_MS, Driver, batch_of

EVENT = {"specversion": "1.0", "id": "A-1", "source": "/sensors/7", "type": "com.example.reading"}
HEADERS = tuple((f"ce-{name}", value) for name, value in EVENT.items())


def structured(**members: Any) -> Message:
    body = json.dumps({**EVENT, **members}).encode()
    return from_structured(body, now_ms=NOW_MS, protocol="http", device="d", address="t/a")


def by_mqtt(message: Message, version: int = 5) -> Publish:
    """Returns what a client of MQTT is sent of a message."""
    driver = Driver(version)
    driver.connect()
    driver.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="t/#"),), properties=Properties()))
    driver.effects.clear()
    driver.deliver(batch_of(message))
    (packet,) = driver.out()
    assert isinstance(packet, Publish)
    return packet


def test_typed_attributes_are_canonical_texts_in_user_properties() -> None:
    """(MQTT Protocol Binding, 3.1)"""
    typed = {"yes": True, "no": False, "low": -(2**31), "name": "Grütze", "time": "2018-04-05T17:31:00Z"}
    packet = by_mqtt(structured(data="text", datacontenttype="text/plain", **typed))
    texts = {**typed, "yes": "true", "no": "false", "low": "-2147483648"}
    assert dict(packet.properties.user) == {**EVENT, **texts}
    assert len(packet.properties.user) == len(EVENT) + len(texts)
    assert (packet.properties.content_type, packet.payload) == ("text/plain", b"text")


def test_the_payload_for_mqtt_3_1_1_is_the_event_in_json() -> None:
    """(MQTT Protocol Binding, 3 and 3.2)"""
    members = {"yes": True, "low": -5, "data": {"c": 1}}
    assert json.loads(by_mqtt(structured(**members), version=4).payload) == {**EVENT, **members}


def test_base64_is_bytes_in_binary_mode() -> None:
    """(JSON Event Format, 3.1.2)"""
    packet = by_mqtt(structured(data_base64="AAEC", datacontenttype="application/octet-stream"))
    assert packet.payload == b"\x00\x01\x02"
    client = Http1Client(Gateway())
    body = json.dumps({**EVENT, "data_base64": "AAEC"}).encode()
    client.ask("POST", "/topics/a", ("content-type", "application/cloudevents+json"), body=body)
    assert client.ask("GET", "/topics/a").body == b"\x00\x01\x02"


@pytest.mark.parametrize("accept", ["application/cloudevents+json", "*/*", None])
def test_messages_are_no_batch_for_who_takes_single_events_alone(accept: str | None) -> None:
    """(JSON Event Format, 4)"""
    client = Http1Client(Gateway())
    client.ask("POST", "/topics/a", *HEADERS, body=b"1")
    headers = () if accept is None else (("accept", accept),)
    answer = client.ask("GET", "/topics/a", *headers)
    assert answer.status == 200
    assert not (answer["content-type"] or "").startswith("application/cloudevents-batch")
