"""The publish-subscribe draft (draft-ietf-core-coap-pubsub-21): topic-data as everywhere, topic resources refused.

docs/coap.md has the same table. Of topic-data the other tests show more: `/ps/` is `/t/`.
"""

import pytest

from adapters.coap.codec.registry import (
    ACCEPT,
    CONTENT_FORMAT,
    DELETE,
    FETCH,
    OBSERVE,
    POST,
    PUT,
)
from adapters.coap.codec.wire import encode_uint
from gateway.port.reads import ListAddresses
from store.api.message import Message
from tests.support.coap.coap_driver import Driver, dotted, options_of, request

VALUE = Message(address="room2", body=b"21", id="1", content_type="text/plain")
PATCH, IPATCH = 6, 7
CORE_PUBSUB, CBOR = 606, 60  # the first is the number that the draft suggests
TOPIC = bytes.fromhex("a20065726f6f6d32026c636f72652e70732e64617461")  # {0: "room2", 2: "core.ps.data"}
KEYS = bytes.fromhex("820103")  # [1, 3]


@pytest.mark.parametrize(
    ("code", "path", "kind", "body", "answered"),
    [
        (POST, "ps", CORE_PUBSUB, TOPIC, "4.05"),  # 2.4.3: creating a topic
        (FETCH, "ps", CORE_PUBSUB, TOPIC, "4.15"),  # 2.4.2: topics by their properties
        (FETCH, "ps/room2", CBOR, KEYS, "4.05"),  # 2.5.2: part of a topic
        (IPATCH, "ps/room2", CORE_PUBSUB, TOPIC, "4.05"),  # 2.5.4: updating a topic
        (PATCH, "ps/room2", CORE_PUBSUB, TOPIC, "4.05"),
        (PUT, "ps", CORE_PUBSUB, TOPIC, "4.05"),
        (DELETE, "ps", None, b"", "4.05"),
    ],
)
def test_requests_for_topic_resources_are_refused(
    code: int, path: str, kind: int | None, body: bytes, answered: str
) -> None:
    driver = Driver(last=VALUE, listed=["room2"])
    answer = driver.ask(path, code, content_format=kind, payload=body)
    assert dotted(answer.code) == answered
    assert driver.stored == []
    assert answer.payload


def test_a_topic_is_not_read_as_a_topic_resource() -> None:
    """(2.5.1)"""
    driver = Driver(last=VALUE)
    assert dotted(driver.get("ps/room2", options=((ACCEPT, encode_uint(CORE_PUBSUB)),)).code) == "4.06"


def test_a_collection_lists_topic_data_and_no_topic_resources() -> None:
    """(2.3.2 to 2.3.4, 2.4.1)"""
    driver = Driver(listed=["room2", "plant/a"])
    for mid, (path, query, payload) in enumerate(
        (
            ("ps", (), b'</ps/room2>;rt="core.ps.data",</ps/plant/a>;rt="core.ps.data"'),
            ("ps", ("rt=core.ps.data",), b'</ps/room2>;rt="core.ps.data",</ps/plant/a>;rt="core.ps.data"'),
            ("ps", ("rt=core.ps.conf",), b""),
            (
                ".well-known/core",
                ("rt=core.ps.coll",),
                b'</t>;rt="core.ps.coll";ct=40,</ps>;rt="core.ps.coll";ct=40',
            ),
        )
    ):
        answer = driver.get(path, query=query, mid=mid)
        assert (dotted(answer.code), answer.payload) == ("2.05", payload)
        assert options_of(answer)[CONTENT_FORMAT] == encode_uint(40)
    assert set(driver.calls) == {ListAddresses(prefix="", limit=1_000)}


def test_topic_data_goes_through_the_states_of_the_draft() -> None:
    """(3.1 to 3.3) Half created, fully created by the first publication, and half created again."""
    driver = Driver()
    observe = ((OBSERVE, b""),)
    assert dotted(driver.get("ps/room2", options=observe).code) == "4.04"
    assert driver.subscribed() == []
    assert dotted(driver.ask("ps/room2", PUT, payload=b"21", mid=2).code) == "2.01"
    driver.last = VALUE
    assert dotted(driver.ask("ps/room2", PUT, payload=b"22", mid=3).code) == "2.04"
    answer = driver.get("ps/room2", mid=4, options=observe)
    assert (dotted(answer.code), OBSERVE in options_of(answer)) == ("2.05", True)
    answers = driver.exchange(request("ps/room2", DELETE, mid=5))
    assert [dotted(one.code) for one in answers] == ["2.02"]
    (told,) = driver.deliver(driver.stored[-1], sub=max(driver.subscriptions))
    assert (dotted(told.code), told.token) == ("4.04", b"tk")
    assert driver.tick(1) == []
    assert driver.subscribed() == []
