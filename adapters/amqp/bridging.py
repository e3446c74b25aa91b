"""Bridged messages: the properties of an upstream's message as a message of ours, and the other way round.

A forwarded message has the properties that a consumer of ours would get, but for these:

    user_id          left out, as brokers compare it with who publishes
    ce-deviceid      a header: the message's device. Its publisher's own header of that name is `ce-deviceid.2`
    message_id       the position in our log, where there is none: what is sent again has the same one
    expiration       what is left of it
    reply_to         left out where it is the direct reply-to of the first publisher's channel
    CC, BCC, x-delay left out: they have been obeyed
    headgate-path    the gateways that it has come through (`gateway.domain.bridge_path`)
"""

from typing import Any, Final

import msgspec

from adapters.amqp.codec.fitting import fitted
from adapters.amqp.codec.properties import NATIVE, REPLY_TO, properties_of, read_properties
from adapters.amqp.codec.property_fields import edited, read_fields
from adapters.amqp.codec.property_headers import OBEYED, free_name
from adapters.amqp.codec.structured import body_of
from adapters.amqp.codec.wire import Table
from gateway.domain.bridge_path import PATH, extended_path, forwarded_path
from gateway.domain.errors import Cause, ProtocolError, Refusal
from gateway.port.bridge import Destination, Forwarded
from gateway.port.queues import COPY_KEYS
from store.api.message import Message

DEVICE: Final = "ce-deviceid"  # a header: who the message speaks for
_BRIDGE: Final = "bridge"  # in `native`: the bridge that has read the message


class AmqpBridgeCodec:
    """See `gateway.port.bridge.BrokerCodec`."""

    def __init__(self, bridge: str, gateway: str) -> None:
        self._bridge = bridge
        self._gateway = gateway

    def read(self, properties: bytes, body: bytes, place: Destination, *, upstream: str, now_ms: int) -> Message | None:
        """See `BrokerCodec`."""
        try:
            ids = _path_of(read_fields(properties))
            path = extended_path(ids, upstream=upstream, own=self._gateway)
            if path is None:
                return None
            if path != ids:
                properties = edited(properties, added={PATH: " ".join(path)})
            template = read_properties(properties)._replace(user_id=None, device=None)
            message = template.message(place.address, body, device=place.device, trusted_gateway=False, now_ms=now_ms)
        except ProtocolError as error:
            raise Refusal(Cause.MALFORMED, error.detail) from error
        native = message.native or {}
        own = {name: value for name, value in native[NATIVE].items() if name != COPY_KEYS}  # the upstream has copied it
        return msgspec.structs.replace(message, native={**native, NATIVE: {**own, _BRIDGE: self._bridge}})

    def forwarded(
        self, message: Message, *, upstream: str, fallback_id: str, header_bytes_max: int, now_ms: int
    ) -> Forwarded | None:
        """See `BrokerCodec`."""
        native = message.native or {}
        if native.get(NATIVE, {}).get(_BRIDGE) == self._bridge:
            return None
        raw = properties_of(message, now_ms=now_ms)
        found = read_fields(raw)
        path = forwarded_path(_path_of(found), upstream=upstream, own=self._gateway)
        if path is None:
            return None
        headers: Table = found.get("headers", {})
        added: Table = {PATH: " ".join(path)} if path else {}
        renamed: dict[str, str] = {}
        if DEVICE in headers and (
            not message.device or headers[DEVICE] != message.device
        ):  # the publisher's word alone
            renamed[DEVICE] = free_name(headers, {}, DEVICE, taken=True)
        if message.device:
            added[DEVICE] = message.device
        id_ = found.get("message_id") or fallback_id
        expires_ms = message.expires_at_ms
        fields = {
            "user_id": None,
            "message_id": id_,
            "expiration": None if expires_ms is None else str(max(0, expires_ms - now_ms)),
        }
        if found.get("reply_to") == REPLY_TO:
            fields["reply_to"] = None
        raw = edited(raw, added=added, removed=OBEYED, renamed=renamed, fields=fields)
        if len(raw) > header_bytes_max:
            raw = fitted(raw, header_bytes_max)
        return Forwarded(id_, raw, body_of(message))


def _path_of(found: dict[str, Any]) -> list[str]:
    path = found.get("headers", {}).get(PATH)
    return path.split() if isinstance(path, str) else []
