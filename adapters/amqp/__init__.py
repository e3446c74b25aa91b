"""AMQP 0-9-1: a sans-IO connection, its channels, and the mapping of messages.

The entry point `headgate.adapters:amqp` names `FACTORY`.

Imported by: none.
Imports: cloudevents, gateway.domain, gateway.port, store.api, store.format.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from adapters.amqp.body_credit import BodyCredit
from adapters.amqp.bridging import AmqpBridgeCodec
from adapters.amqp.connection import AmqpConnection
from adapters.amqp.events import AmqpEventCodec
from adapters.amqp.options import AmqpOptions
from gateway.port.adapter import ConnectionInfo, Listener, Random
from gateway.port.bridge import Scheme

__all__ = ["FACTORY", "AmqpConnection", "AmqpFactory", "AmqpOptions"]


class AmqpFactory:
    """The `AdapterFactory` of AMQP 0-9-1."""

    listeners: Sequence[Listener] = (
        Listener(name="amqp", port=5672, transport="tcp", tls_port=5671, summary="AMQP 0-9-1"),
    )
    options = AmqpOptions
    broker_schemes: Mapping[str, Scheme] = {"amqp": Scheme(5672), "amqps": Scheme(5671, secure=True)}

    def __init__(self) -> None:
        self.arriving = BodyCredit()

    def connect(self, info: ConnectionInfo, options: Any, *, random: Random) -> AmqpConnection:
        """Returns the state machine of a new connection."""
        assert isinstance(options, AmqpOptions)
        return AmqpConnection(info, options, arriving=self.arriving, random=random)

    def broker_codec(self, bridge: str, gateway: str) -> AmqpBridgeCodec:
        """See `gateway.port.bridge.BrokerFactory`."""
        return AmqpBridgeCodec(bridge, gateway)

    def event_codec(self, gateway: str) -> AmqpEventCodec:
        """See `gateway.port.bridge.BrokerFactory`."""
        return AmqpEventCodec(gateway)


FACTORY = AmqpFactory()
