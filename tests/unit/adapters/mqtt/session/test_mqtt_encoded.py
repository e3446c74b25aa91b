"""Messages are encoded once for all subscribers of a kind, and little of that is kept."""

from typing import Any

import pytest

from adapters.mqtt.codec import Properties
from adapters.mqtt.codec.packets import Publish, Subscribe, SubscriptionRequest
from adapters.mqtt.session.encoded import IDENTIFIED_COUNT_MAX, Encoded
from gateway.domain.batch import Batch
from store.api.message import Message
from tests.support.mqtt.mqtt_driver import NOW_MS, Driver, batch_of


def message(body: bytes, **fields: Any) -> Message:
    return Message("t", body, NOW_MS, "mqtt", "other", 1, **fields)


def kinds(batch: Batch) -> int:
    return sum(isinstance(one, Encoded) for one in batch.memo.values())


def subscriber(identifier: int, *, qos: int = 1, **properties: int) -> Driver:
    driver = Driver(5)
    driver.connect(client_id=f"c{identifier}", properties=Properties(**properties))
    requests = (SubscriptionRequest(pattern="t", qos=qos),)
    driver.send(Subscribe(packet_id=1, requests=requests, properties=Properties(subscription_ids=(identifier,))))
    return driver


@pytest.mark.parametrize("properties", [{}, {"topic_alias_maximum": 5}], ids=["plain", "aliases"])
@pytest.mark.parametrize("qos", [0, 1])
def test_any_number_of_identifiers_is_sent_and_few_are_kept(qos: int, properties: dict[str, int]):
    batch = batch_of(message(b"1"), message(b"2", expires_at_ms=NOW_MS + 5_000), message(b"3", expires_at_ms=NOW_MS))
    for identifier in range(1, 3 * IDENTIFIED_COUNT_MAX):
        driver = subscriber(identifier, qos=qos, **properties)
        assert driver.deliver(batch) == 3
        out = [packet for packet in driver.out() if isinstance(packet, Publish)]
        assert [(one.payload, one.qos, one.properties.subscription_ids) for one in out] == [
            (b"1", qos, (identifier,)),
            (b"2", qos, (identifier,)),
        ]
    assert kinds(batch) == IDENTIFIED_COUNT_MAX
    assert driver.deliver(batch) == 3


def test_what_is_not_kept_is_not_larger_than_the_client_takes():
    batch = batch_of(message(b"x" * 200), message(b"y"))
    for identifier in range(1, IDENTIFIED_COUNT_MAX + 2):
        driver = subscriber(identifier, maximum_packet_bytes=100)
        assert driver.deliver(batch) == 2
        assert [packet.payload for packet in driver.out() if isinstance(packet, Publish)] == [b"y"]


def test_a_message_first_wanted_later_than_its_batch_is_encoded_as_of_then():
    batch = batch_of(
        message(b"1"), message(b"2", expires_at_ms=NOW_MS + 5_000), message(b"3", expires_at_ms=NOW_MS + 8_000)
    )
    first, second, third = (Driver(5) for _ in range(3))
    for driver in (first, second, third):
        driver.connect()
        driver.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="t", qos=1),)))
    assert first.deliver(batch, picks=[0]) == 1
    kept = list(batch.memo.values())
    second.now_ms += 1_000
    third.now_ms += 6_000
    assert second.deliver(batch, picks=[0, 1]) == 2
    assert list(batch.memo.values()) == kept
    assert third.deliver(batch, picks=[0, 1, 2]) == 3
    for driver, said in ((second, [(b"1", None), (b"2", 4)]), (third, [(b"1", None), (b"3", 2)])):
        out = [packet for packet in driver.out() if isinstance(packet, Publish)]
        assert [(one.payload, one.properties.message_expiry_s) for one in out] == said


@pytest.mark.parametrize("version", [4, 5])
def test_plain_messages_wanted_one_by_one_are_encoded_together_and_no_others(version: int):
    plain = [message(bytes([n])) for n in range(10)]
    batch = batch_of(
        *plain, message(b"later", expires_at_ms=NOW_MS + 5_000), message(b"own", content_type="text/plain")
    )
    made: list[int] = []
    for index in range(12):
        driver = Driver(version)
        driver.connect(client_id=f"c{index}")
        driver.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="t", qos=1),)))
        assert driver.deliver(batch, picks=[index]) == 1
        out = [packet for packet in driver.out() if isinstance(packet, Publish)]
        assert [(one.payload, one.topic, one.qos) for one in out] == [(batch.messages[index].body, "t", 1)]
        (encoded,) = [one for one in batch.memo.values() if isinstance(one, Encoded)]
        made.append(sum(piece is not None for piece in encoded.pieces))
    assert made == [1, 2, 3, *[made[3]] * 7, made[3] + 1, 12]
    assert made[3] == 10 + (version == 4)  # without properties there is nothing but topic and body


def test_identifiers_that_were_kept_are_kept_on_as_time_passes():
    batch = batch_of(message(b"1", expires_at_ms=NOW_MS + 60_000))
    drivers = [subscriber(identifier) for identifier in range(1, IDENTIFIED_COUNT_MAX + 1)]
    for _ in range(3):
        for driver in drivers:
            driver.now_ms += 1_000
            assert driver.deliver(batch) == 1
    assert kinds(batch) == IDENTIFIED_COUNT_MAX
