"""MQTT 3.1.1 and 5.0 (and 3.1's protocol name) over streams and WebSocket.

Imported by: none.
Imports: cloudevents, websocket, gateway.domain, gateway.port, store.api, store.base, store.format.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from adapters.mqtt.connection import MqttConnection
from adapters.mqtt.messages.options import Options
from adapters.mqtt.session.session_state import NO_STATE, load
from adapters.mqtt.upstream.publishing import MqttPublisher
from adapters.mqtt.upstream.reading import MqttUpstream
from adapters.mqtt.websocket.framing import MqttFraming
from adapters.mqtt.websocket.upgrade import AllowedPages, Upgrade
from adapters.websocket.connection import WebSocketConnection
from gateway.port.adapter import Adapter, ConnectionInfo, Listener, Random
from gateway.port.bridge import BrokerPublisher, PublisherTerms, Scheme, Upstream, UpstreamSettings
from gateway.port.operated import SubscribedFilter

__all__ = ["FACTORY", "MqttConnection", "Options"]

WEBSOCKET = "mqtt-ws"  # the name of its listener


class _Factory:
    """The entry point `mqtt` of the group `headgate.adapters` (`gateway.port.adapter.AdapterFactory`,
    `BridgeFactory`, `PublisherFactory`, `SessionFactory`).
    """

    listeners: Sequence[Listener] = (
        Listener(name="mqtt", port=1883, transport="tcp", tls_port=8883, alpn=("mqtt",), summary="MQTT 3.1.1 and 5.0"),
        Listener(
            name=WEBSOCKET, port=8083, transport="tcp", tls_port=8084, alpn=("http/1.1",), summary="MQTT over WebSocket"
        ),
    )
    options = Options
    schemes: Mapping[str, Scheme] = {
        "mqtt": Scheme(1883),
        "mqtts": Scheme(8883, secure=True),
        "ws": Scheme(80, subprotocol="mqtt"),
        "wss": Scheme(443, secure=True, subprotocol="mqtt"),
    }

    def connect(self, info: ConnectionInfo, options: Any, *, random: Random) -> Adapter:
        """Returns the state machine of a new client's connection."""
        connection = MqttConnection(info, options, random)
        if info.listener != WEBSOCKET:
            return connection
        pages = AllowedPages(origins=options.websocket_origins, hosts=options.websocket_hosts, local=info.loopback)
        return WebSocketConnection(connection, Upgrade(pages), MqttFraming(), info.forwarding)

    def upstream(self, terms: UpstreamSettings, options: Any) -> Upstream:
        """Returns a broker that messages are read from (`gateway.port.bridge.BridgeFactory`)."""
        return MqttUpstream(terms, sparkplug=options.sparkplug)

    def publisher(self, terms: PublisherTerms) -> BrokerPublisher:
        """Returns a broker that events are published to (`gateway.port.bridge.PublisherFactory`)."""
        return MqttPublisher(terms)

    def open_subscriptions(self, adapter: Adapter) -> Sequence[SubscribedFilter]:
        """Returns the subscriptions of an open connection (`gateway.port.operated.SessionFactory`)."""
        connection = adapter.connection if isinstance(adapter, WebSocketConnection) else adapter
        assert isinstance(connection, MqttConnection)
        return [SubscribedFilter(one.pattern, one.qos) for one in connection.session.subscriptions]

    def saved_subscriptions(self, state: bytes) -> Sequence[SubscribedFilter] | None:
        """Returns the subscriptions of a stored session (`gateway.port.operated.SessionFactory`)."""
        saved = load(state, NO_STATE)
        return None if saved is None else [SubscribedFilter(one.pattern, one.qos) for one in saved.subscriptions]


FACTORY = _Factory()
