"""Messages are encoded once for all subscribers of a kind, and little of that is kept."""

import pytest

from adapters.mqtt.codec import Properties
from adapters.mqtt.codec.packets import Publish, Subscribe, SubscriptionRequest
from adapters.mqtt.session.encoded import IDENTIFIED_COUNT_MAX, Encoded
from gateway.domain.batch import Batch
from store.api.message import Message
from tests.support.mqtt.mqtt_driver import NOW_MS, Driver, batch_of


def message(body: bytes, **fields: int) -> Message:
    return Message("t", body, NOW_MS, "mqtt", "other", 1, **fields)  # type: ignore[arg-type]


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


def test_identifiers_that_were_kept_are_kept_on_as_time_passes():
    batch = batch_of(message(b"1", expires_at_ms=NOW_MS + 60_000))
    drivers = [subscriber(identifier) for identifier in range(1, IDENTIFIED_COUNT_MAX + 1)]
    for _ in range(3):
        for driver in drivers:
            driver.now_ms += 1_000
            assert driver.deliver(batch) == 1
    assert kinds(batch) == IDENTIFIED_COUNT_MAX
