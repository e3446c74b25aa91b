"""Referrals to other servers (4.11), response topics (3.2.2.3.15) and problem information (3.1.2.11.7)."""

import msgspec
import pytest

from adapters.mqtt.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from adapters.mqtt.codec.properties import NO_PROPERTIES, Properties
from adapters.mqtt.messages.options import Options
from gateway.domain.errors import Cause, Refusal
from gateway.port import adapter as port
from gateway.port.adapter import Outcome
from tests.support.mqtt.mqtt_driver import Driver

ELSEWHERE = "other.example:1883"


def shut_down(driver):
    driver.act(driver.adapter.shutdown(now_ms=driver.now_ms))
    return driver.out()


def told(packet):
    return packet.code, packet.properties.server_reference


def test_going_down_refers_to_another_server():
    driver = Driver(5, Options(server_reference=ELSEWHERE))
    driver.connect()
    (bye,) = shut_down(driver)
    assert isinstance(bye, Disconnect)
    assert told(bye) == (0x9C, ELSEWHERE)
    waiting = Driver(5, Options(server_reference=ELSEWHERE))
    waiting.principal = None
    waiting.send(Connect(version=5, client_id="c"))
    (refused,) = shut_down(waiting)
    assert isinstance(refused, Connack)
    assert told(refused) == (0x9C, ELSEWHERE)


@pytest.mark.parametrize("options", [Options(), Options(server_reference=ELSEWHERE)])
def test_clients_of_3_1_1_are_told_what_they_know(options):
    driver = Driver(4, options)
    driver.connect()
    assert shut_down(driver) == []
    waiting = Driver(4, options)
    waiting.principal = None
    waiting.send(Connect(version=4, client_id="c"))
    assert [packet.code for packet in shut_down(waiting)] == [3]


def test_without_another_server_none_is_named():
    driver = Driver(5)
    driver.connect()
    assert [told(packet) for packet in shut_down(driver)] == [(0x8B, None)]
    driver = Driver(5, Options(server_reference=ELSEWHERE))
    driver.connect()
    (bye,) = driver.send(Connect(version=5, client_id="c1"))
    assert told(bye) == (0x82, None)


@pytest.mark.parametrize(("version", "code"), [(5, 0x9D), (4, 3), (3, 3)])
def test_a_gateway_that_has_moved_lets_nobody_in(version, code):
    driver = Driver(version, Options(server_reference=ELSEWHERE, server_moved=True))
    refused = driver.connect()
    assert refused.code == code
    assert refused.properties.server_reference == (ELSEWHERE if version == 5 else None)
    assert driver.closed


@pytest.mark.parametrize(
    ("prefix", "asked", "client_id", "answer"),
    [
        ("answers/${client_id}", 1, "c1", "answers/c1"),
        ("answers", 1, "a/b", "answers"),
        ("answers/${client_id}", 0, "c1", None),
        ("answers/${client_id}", None, "c1", None),
        ("answers/${client_id}", 1, "a/b", None),
        ("answers/${client_id}", 1, "+", None),
        ("", 1, "c1", None),
    ],
)
def test_response_information(prefix, asked, client_id, answer):
    driver = Driver(5, Options(response_topic_prefix=prefix))
    connack = driver.connect(client_id=client_id, properties=Properties(request_response_information=asked))
    assert connack.properties.response_information == answer


def test_response_information_of_an_assigned_identifier():
    driver = Driver(5, Options(response_topic_prefix="r/${client_id}/x"))
    connack = driver.connect(client_id="", properties=Properties(request_response_information=1))
    assert connack.properties.response_information == f"r/{connack.properties.assigned_client_id}/x"


@pytest.mark.parametrize("prefix", ["a/+", "#", "a\0b"])
def test_a_prefix_is_no_filter(prefix):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"response_topic_prefix": prefix}, Options)


@pytest.mark.parametrize("asked", [0, 1, None])
def test_acknowledgements_say_their_code_and_no_more(asked):
    """MQTT-3.1.2-29: without Request Problem Information only PUBLISH, CONNACK and DISCONNECT may say why."""
    driver = Driver(5)
    driver.connect(properties=Properties(request_problem_information=asked))
    answers = driver.send(
        Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="$share/x", qos=1),)),
        Unsubscribe(packet_id=2, patterns=("none",)),
        Pubrel(packet_id=9),
        Publish(topic="t", packet_id=3, qos=1),
    )
    (effect,) = driver.take(port.Publish)
    answers += driver.complete(effect, Outcome(refused={0: Refusal(Cause.QUOTA, "why")}))
    assert {type(packet) for packet in answers} == {Suback, Unsuback, Pubcomp, Puback}
    assert {packet.properties for packet in answers} == {NO_PROPERTIES}
