"""The reads of many connections that are one plain PUBLISH each (`gateway.port.single`)."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from adapters.mqtt.messages.messages import PROTOCOL
from adapters.mqtt.receiving.acknowledgements import PUBACK
from adapters.mqtt.receiving.keep_alive import KeepAlive
from adapters.mqtt.receiving.publish_reader import NO_ID
from adapters.mqtt.session.session import MqttSession
from gateway.port.single import Single
from store.api.message import Message

PUBLISH_QOS_1: Final = 0x32  # without DUP and RETAIN


class SingleClient(Protocol):
    """A connection of a client, as far as its single messages are concerned."""

    phase: Any
    held: bytearray  # input that is not parsed yet
    session: MqttSession
    keep_alive: KeepAlive


def singles(reads: Sequence[tuple[SingleClient, bytes]], now_ms: int, *, connected: object) -> list[Sequence[Single]]:
    """Returns the message of each read that is one plain PUBLISH of QoS 1, to a topic that is known, none of others.

    `connected` is the phase in which a client may publish. One loop for the reads of many connections: 1 us each, a
    quarter of it for `Message` and `Single`.
    """
    found: list[Sequence[Single]] = []
    add = found.append
    for one, data in reads:
        size, intake = len(data), one.session.intake
        if (
            one.phase is not connected
            or one.held
            or size < 7
            or data[0] != PUBLISH_QOS_1
            or intake.unstored
            or intake.held_up
            or intake.has_more
            or intake.refused
        ):
            add(())
            continue
        length, start = data[1], 2
        if length > 127:
            high = data[2]
            if not 0 < high < 128:
                add(())
                continue
            length += (high << 7) - 128
            start = 3
        body = start + 4 + (data[start] << 8 | data[start + 1])
        if start + length != size or body > size or length > intake.body_bytes_max:
            add(())
            continue
        address = intake.topics.known.get(data[start + 2 : body - 2])
        identifier = data[body - 2 : body]
        context = intake.context
        if address is None or identifier == NO_ID:
            add(())
            continue
        if context.version == 5:
            if body == size or data[body] or len(intake.exact) >= context.options.receive_maximum:
                add(())
                continue
            body += 1
        one.keep_alive.received_ms = now_ms
        who, native = context.principal, intake.native
        message = Message(address, data[body:], now_ms, PROTOCOL, context.device, principal=who, native=native)
        add((Single(message, PUBACK + identifier),))
    return found
