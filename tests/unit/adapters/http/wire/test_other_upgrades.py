"""Requests for a WebSocket that carries MQTT or CoAP: the connection is handed over, where it may be."""

from collections.abc import Collection
from random import Random

import pytest

from adapters.http import HttpFactory, HttpOptions
from adapters.http.wire.h1 import Http1
from gateway.port.adapter import ConnectionInfo, HandOver
from tests.support.http.http_driver import NOW_MS, parse_responses

REQUEST = (
    b"GET /mqtt?x HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: mqtt\r\n\r\n"
)
COAP = REQUEST.replace(b"/mqtt?x", b"/.well-known/coap").replace(b": mqtt", b": coap")
EVENTS = REQUEST.replace(b"/mqtt?x", b"/subscribe?filter=a").replace(b": mqtt", b": cloudevents.json")
BEHIND = b"\x82\x80\0\0\0\0"


def connected(options: HttpOptions, others: Collection[str]):
    info = ConnectionInfo(peer=("192.0.2.1", 1), local=("192.0.2.2", 2), others=others)
    return HttpFactory().connect(info, options, random=Random(1))


@pytest.mark.parametrize("cut", [1, 20, len(REQUEST) - 1, len(REQUEST), len(REQUEST) + len(BEHIND)])
def test_the_next_adapter_gets_the_request_and_what_is_behind_it(cut: int) -> None:
    adapter, data = connected(HttpOptions(), {"mqtt-ws"}), REQUEST + BEHIND
    effects = [*adapter.receive(data[:cut], now_ms=NOW_MS)]
    if not effects:
        effects += adapter.receive(data[cut:], now_ms=NOW_MS)
        cut = len(data)
    assert effects == [HandOver(listener="mqtt-ws", data=data[:cut], websocket=True)]
    assert adapter.take_output() == b""


def test_coap_goes_to_the_adapter_of_its_streams() -> None:
    adapter = connected(HttpOptions(websocket_mqtt=False), {"mqtt-ws", "coap-tcp"})
    (effect,) = adapter.receive(COAP, now_ms=NOW_MS)
    assert effect == HandOver(listener="coap-tcp", data=COAP, websocket=True)


@pytest.mark.parametrize(
    ("request_", "options", "others"),
    [
        (REQUEST, HttpOptions(websocket_mqtt=False), {"mqtt-ws"}),
        (REQUEST, HttpOptions(), {"coap-tcp"}),
        (COAP, HttpOptions(websocket_coap=False), {"coap-tcp"}),
        (COAP, HttpOptions(), {"mqtt-ws"}),
    ],
)
def test_where_it_is_not_offered_there_is_nothing(
    request_: bytes, options: HttpOptions, others: Collection[str]
) -> None:
    adapter = connected(options, others)
    assert adapter.receive(request_, now_ms=NOW_MS) == []
    (answer,) = parse_responses(adapter.take_output())
    assert answer.status == 404


def test_a_request_behind_one_that_is_not_answered_is_not_handed_over() -> None:
    adapter = connected(HttpOptions(), {"mqtt-ws"})
    publish = b"POST /topics/a HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nx"
    effects = adapter.receive(publish + REQUEST, now_ms=NOW_MS)
    assert not any(isinstance(effect, HandOver) for effect in effects)


@pytest.mark.parametrize("request_", [REQUEST, COAP, EVENTS])
def test_an_upgrade_of_http_1_0_is_passed_over(request_: bytes) -> None:
    adapter = connected(HttpOptions(), {"mqtt-ws", "coap-tcp"})
    effects = adapter.receive(request_.replace(b"HTTP/1.1", b"HTTP/1.0"), now_ms=NOW_MS)
    assert not any(isinstance(effect, HandOver) for effect in effects)
    assert isinstance(adapter.transport, Http1)
    assert b"101" not in adapter.take_output()
