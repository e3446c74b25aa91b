"""A client of AMQP 0-9-1, by pamqp's codec."""

from typing import Any

from pamqp import commands

from adapters.amqp.codec.property_fields import edited
from gateway.domain.address import from_routing_key, to_routing_key
from gateway.domain.batch import Batch
from store.api.message import Message
from tests.property.conversions.conversions_client import Heard, ProtocolClient, put, rows_of_attributes
from tests.property.conversions.conversions_said import NOW_MS, Said
from tests.support.amqp import amqp_peer


class Amqp(ProtocolClient):
    """basic.publish to amq.topic, and basic.deliver from a queue bound to it."""

    column = "amqp"
    verbatim = True

    def say(self, said: Said) -> tuple[Message, dict[str, Any]]:
        peer = amqp_peer.Peer().open()
        peer.now_ms = NOW_MS
        native = dict(said.native or {})
        headers = {**native.pop("headers", {})}
        if said.event is not None:
            headers |= {f"ce-{name}": text for name, text in said.event.items()}
        else:
            put(headers, **{"ce-partitionkey": said.key, "traceparent": said.traceparent})
            put(headers, timestamp_in_ms=said.time_ms)
        put(headers, **{"x-reply-to-topic": said.reply_to, "x-delay": said.delay_ms})
        if said.retain:
            headers["x-retain"] = True
        fields = put(native, content_type=said.content_type, content_encoding=said.content_encoding)
        if said.event is None:
            put(fields, message_id=said.id, message_type=said.type)
            if said.correlation is not None:
                headers["x-correlation-data"] = bytearray(said.correlation)  # a string of bytes to pamqp
            put(fields, expiration=str(said.expiry_ms) if said.expiry_ms is not None else None)
        key = to_routing_key(said.address)
        sent = amqp_peer.publish(1, "amq.topic", key, said.body, delivery_mode=said.qos + 1, headers=headers, **fields)
        peer.feed(sent)
        (message,) = peer.published()
        properties = self._content_header(sent)
        if said.delay_ms:  # it is over when anybody hears of the message
            properties = edited(properties, added={"x-delay": -said.delay_ms})
        return message, {"routing_key": key, "body": said.body, "properties": properties}

    @staticmethod
    def _content_header(data: bytes) -> bytes:
        """Returns the property flags and fields of the one message in these frames (AMQP 0-9-1, 2.3.5.2)."""
        found: list[bytes] = []
        while data:
            kind, end = data[0], 7 + int.from_bytes(data[3:7], "big")
            found += [data[7 + 12 : end]] if kind == 2 else []
            data = data[end + 1 :]
        (properties,) = found
        return properties

    def hear(self, batch: Batch, now_ms: int) -> Heard:
        message = batch.message(0)
        peer = amqp_peer.Peer().open()
        peer.now_ms = now_ms
        assert peer.deliver(peer.consume(no_ack=True), [message]) == 1
        sent = peer.conn.take_output()
        peer.rest = sent  # read once more, as frames
        deliver, header, *chunks = peer.methods()
        assert isinstance(deliver, commands.Basic.Deliver)
        body = b"".join(chunk.value for chunk in chunks)
        found = {n: v for n in commands.Basic.Properties.__slots__ if (v := getattr(header.properties, n)) is not None}
        headers = found.pop("headers", {})
        own = {"routing_key": deliver.routing_key, "body": body, "properties": self._content_header(sent)}
        assert deliver.exchange == "amq.topic"
        return Heard({"address": from_routing_key(deliver.routing_key), "body": body} | self._rows(found, headers), own)

    @staticmethod
    def _rows(found: dict[str, Any], headers: dict[str, Any]) -> dict[str, Any]:
        left = dict(headers)
        event = "ce-specversion" in headers
        rows: dict[str, Any] = {"qos": found["delivery_mode"] - 1, "retain": left.pop("x-retain", None) or None}
        if event:
            attributes = {n[3:]: left.pop(n) for n in headers if n.startswith("ce-")}
            rows |= rows_of_attributes(attributes)
            rows.pop("expires_at_ms", None)
        short = found.get("correlation_id")
        expiration = found.get("expiration")
        data = left.pop("x-correlation-data", None)
        put(
            rows,
            id=found.get("message_id"),
            key=left.pop("ce-partitionkey", None),
            type=found.get("message_type"),
            content_type=found.get("content_type"),
            content_encoding=found.get("content_encoding"),
            time_ms=left.pop("timestamp_in_ms", None),
            device=found.get("user_id"),
            expires_at_ms=int(expiration) if expiration is not None else None,
            deliver_at_ms=left.pop("x-delay", None),
            reply_to=left.pop("x-reply-to-topic", None),
            correlation=short.encode() if short is not None else data,
            traceparent=left.pop("traceparent", None),
        )
        rows["properties"] = rows.get("properties", []) + list(left.items())
        return {name: value for name, value in rows.items() if value is not None}

    def speaker(self, said: Said) -> str | None:
        del said
        return "guest"
