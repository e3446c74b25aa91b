"""Routing keys of an upstream as addresses of ours, and the other way round, as the configuration's templates say."""

from collections.abc import Sequence
from typing import NamedTuple

from gateway.bridges.shared.addresses import captured, filled, numbered
from gateway.bridges.shared.amqp_settings import LEVELS_NAMED_MAX, SHORT_BYTES_MAX, AmqpConsume, AmqpForward
from gateway.domain.address import escape_level, from_routing_key, to_routing_key
from gateway.port.bridge import Destination
from gateway.port.queues import routing_of


def place_of(bridge: str, one: AmqpConsume, exchange: str, routing_key: str) -> Destination:
    """Returns the address that a message of a queue goes to, and the device that it speaks for."""
    topic = from_routing_key(routing_key)
    values = {
        "topic": topic,
        "exchange": escape_level(exchange) or None,
        "queue": escape_level(one.queue),
        "bridge": bridge,
        **dict.fromkeys(map(str, range(1, LEVELS_NAMED_MAX + 1))),
        **numbered(topic.split("/")[:LEVELS_NAMED_MAX]),
    }
    return Destination(filled(one.to, values), filled(one.device, values))


class UpstreamRoute(NamedTuple):
    """The place upstream that a message of ours is published to."""

    exchange: str
    routing_key: str
    mandatory: bool
    message_bytes_max: int
    too_long: bool  # no routing key of AMQP can say it


class Routes:
    """The routes of one bridge's addresses."""

    def __init__(self, bridge: str, forward: Sequence[AmqpForward]) -> None:
        self._bridge = bridge
        self._forward = [(one.filter.split("/"), one) for one in forward]

    def __call__(self, address: str) -> UpstreamRoute | None:
        """Returns the route of an address; None when no filter matches it."""
        levels = address.split("/")
        for pattern, one in self._forward:
            found = captured(pattern, levels)
            if found is not None:
                values = {
                    "key": routing_of(address)[1],
                    "address": address,
                    "bridge": self._bridge,
                    **numbered([None if text is None else to_routing_key(text) for text in found]),
                }
                key = filled(one.routing_key, values, separator=".")
                too_long = len(key.encode("utf-8", "replace")) > SHORT_BYTES_MAX
                return UpstreamRoute(one.exchange, key, one.mandatory, one.message_bytes_max, too_long)
        return None
