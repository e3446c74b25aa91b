"""A client of MQTT: PUBLISH in bytes, its properties by paho's codec."""

import json
from typing import Any

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties, VariableByteIntegers

from adapters.mqtt.codec.packets import Subscribe, SubscriptionRequest
from gateway.domain.batch import Batch
from store.api.message import Message
from tests.property.conversions.conversions_client import (
    Heard,
    ProtocolClient,
    heard_document,
    put,
    rows_of_attributes,
    stamp,
)
from tests.property.conversions.conversions_said import NOW_MS, Said
from tests.support.mqtt import mqtt_driver

DEVICE = "c1"


def utf8(text: str) -> bytes:
    """Returns a UTF-8 string (MQTT 5.0, 1.5.4)."""
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw


class MqttProtocols(ProtocolClient):
    """MQTT 3.1.1 and 5."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.column = "mqtt-5" if version == 5 else "mqtt-3.1.1"

    def say(self, said: Said) -> tuple[Message, dict[str, Any]]:
        driver = mqtt_driver.Driver(self.version)
        driver.now_ms = NOW_MS
        driver.connect(client_id=DEVICE)
        properties = self._properties(said)
        packet = utf8(said.address) + (b"\x00\x07" if said.qos else b"")
        packet += properties.pack() if self.version == 5 else b""
        packet += said.body
        driver.feed(
            bytes((0x30 | said.qos << 1 | said.retain,)) + bytes(VariableByteIntegers.encode(len(packet))) + packet
        )
        (message,) = driver.published()
        own: dict[str, Any] = {"topic": said.address, "payload": said.body, "qos": said.qos}
        if self.version == 5:
            own |= {"retain": said.retain, "properties": self._kept(properties, said.event)}
        return message, own

    @staticmethod
    def _properties(said: Said) -> Properties:
        properties = Properties(PacketTypes.PUBLISH)
        if said.native is not None:
            properties.PayloadFormatIndicator = said.native
        if said.content_type is not None:
            properties.ContentType = said.content_type
        if said.expiry_ms is not None and said.event is None:
            properties.MessageExpiryInterval = said.expiry_ms // 1000
        if said.reply_to is not None:
            properties.ResponseTopic = said.reply_to
        if said.correlation is not None and said.event is None:
            properties.CorrelationData = said.correlation
        user: list[tuple[str, str]] = list((said.event or {}).items())
        named = {"content-encoding": said.content_encoding}
        if said.event is None:
            time = stamp(said.time_ms) if said.time_ms is not None else None
            named |= {"partitionkey": said.key, "type": said.type, "traceparent": said.traceparent, "time": time}
        user += [(name, text) for name, text in said.properties if name not in (said.event or {})]
        # In the middle of the others: where they stand is to come back, too.
        middle = len(user) // 2
        user[middle:middle] = [(name, text) for name, text in named.items() if text is not None]
        if user:
            properties.UserProperty = user
        return properties

    def hear(self, batch: Batch, now_ms: int) -> Heard:
        driver = mqtt_driver.Driver(self.version)
        driver.now_ms = now_ms
        driver.connect(client_id="reader")
        wanted = SubscriptionRequest(
            pattern=batch.messages[0].address, qos=2, retain_as_published=self.version == 5, no_local=False
        )
        driver.send(Subscribe(packet_id=1, requests=(wanted,)))
        assert driver.deliver(batch) == 1
        while not (data := driver.adapter.take_output()):  # QoS 2: once the session is stored
            driver.tick()
        first, (size, used) = data[0], VariableByteIntegers.decode(data[1:])
        assert (first & 0xF8, len(data)) == (0x30, 1 + used + size)
        qos, packet = first >> 1 & 3, data[1 + used :]
        end = 2 + int.from_bytes(packet[:2], "big")
        topic, packet = packet[2:end].decode(), packet[end + (2 if qos else 0) :]
        rows: dict[str, Any] = {"address": topic, "qos": qos}
        own: dict[str, Any] = {"topic": topic, "qos": qos}
        if self.version == 5:
            properties, length = Properties(PacketTypes.PUBLISH).unpack(packet)
            packet = packet[length:]
            native = batch.messages[0].native or {}
            own |= {"retain": bool(first & 1), "properties": self._kept(properties, native.get("cloudevents"))}
            rows |= self._rows(properties) | ({"retain": True} if first & 1 else {})
            shown = [tuple(one) for one in (native.get("amqp") or {}).get("shown", ())]
            if shown and "properties" in rows:
                put(rows, id=dict(shown).get("id"))
                rows["properties"] = [one for one in rows["properties"] if one not in shown]
        elif batch.messages[0].native is not None and "cloudevents" in batch.messages[0].native:
            heard = heard_document(json.loads(packet))
            rows |= {name: value for name, value in heard.rows.items() if name != "address"}
            return Heard(rows, own)
        return Heard(rows | {"body": packet}, own | {"payload": packet})

    @staticmethod
    def _kept(properties: Properties, event: object) -> dict[str, Any]:
        """Returns the properties that come back as they were.

        A time to live is counted down. The time to live and the correlation of an event, which are attributes, are
        shown as MQTT's own properties besides.
        """
        changed = {"MessageExpiryInterval"} if event is None else {"MessageExpiryInterval", "CorrelationData"}
        return {name: value for name, value in properties.json().items() if name not in changed}

    @staticmethod
    def _rows(properties: Properties) -> dict[str, Any]:
        user = [(name, text) for name, text in getattr(properties, "UserProperty", ())]
        attributes: dict[str, str] = {}
        named = {"partitionkey", "type", "traceparent", "time", "content-encoding"}
        event = any(name == "specversion" for name, _ in user)
        others: list[tuple[str, str]] = []
        for name, text in user:
            if name not in attributes and (name in named or (event and name.isalnum() and name.islower())):
                attributes[name] = text
            else:
                others.append((name, text))
        encoding = attributes.pop("content-encoding", None)
        rows = rows_of_attributes(attributes)
        if not event:
            del rows["attributes"]
        rows["properties"] += others
        expiry_s = getattr(properties, "MessageExpiryInterval", None)
        rows.pop("expires_at_ms", None)
        return put(
            rows,
            content_type=getattr(properties, "ContentType", None),
            content_encoding=encoding,
            expires_at_ms=expiry_s * 1000 if expiry_s is not None else None,
            reply_to=getattr(properties, "ResponseTopic", None),
            correlation=getattr(properties, "CorrelationData", None),
        )

    def speaker(self, said: Said) -> str | None:
        del said
        return DEVICE

    def column_of(self, said: Said) -> str:
        # A client that knows no properties is sent an event as JSON, with all that it is.
        return "3.1.1 event" if self.version < 5 and said.event is not None else self.column
