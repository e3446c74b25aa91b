"""A client of each protocol: it says a message in bytes and shows what it is told of one.

Both sides run the gateway's own adapter; the client's side is written with codecs that are not the gateway's: paho's
properties, aiocoap's messages, pamqp's frames, the standard library's JSON and percent-encoding.

What a client is shown is a dictionary with a row of the table for each field that was there. `own` is what only a
client of the same protocol could compare: what it said has to come back to it as it was.
"""

import json
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import aiocoap
import amqp_peer
import http_driver
import mqtt_driver
from aiocoap.message import Direction
from coap_driver import PEER
from coap_driver import Driver as CoapDriver
from conversions_said import FORMATS, NOW_MS, Said, time_of
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties, VariableByteIntegers
from pamqp import commands

from adapters.http import HttpOptions
from adapters.mqtt.codec.packets import Subscribe, SubscriptionRequest
from gateway.address import from_routing_key, to_routing_key
from gateway.batch import Batch
from gateway.message import Message
from gateway.port import LastValue

__all__ = ["FRAME", "WIRES", "Heard", "Wire"]

FRAME = 4096  # where the log has put the message
DEVICE = "c1"
CE_JSON = 65_011  # the Content-Format of an event as JSON, as the gateway is set by default


class Heard(NamedTuple):
    """What a client was shown of a message."""

    rows: dict[str, Any]
    own: dict[str, Any]


class Wire:
    """A client of one protocol. `column` names what it is shown in the table."""

    column: str
    verbatim = False  # what it said comes back to it byte for byte, and nothing besides

    def say(self, said: Said) -> tuple[Message, dict[str, Any]]:
        """The message that the adapter makes of the client's bytes, and what should come back of them."""
        raise NotImplementedError

    def hear(self, batch: Batch, now_ms: int) -> Heard:
        """What the client is shown of a batch's one message."""
        raise NotImplementedError

    def speaker(self, said: Said) -> str | None:
        """The device that this client's messages are of."""
        del said
        return None

    def column_of(self, said: Said) -> str:
        """The column of the table for a message."""
        del said
        return self.column


def stamp(time_ms: int) -> str:
    """An RFC 3339 timestamp, written as the gateway writes it."""
    text = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds")
    return text.replace(".000", "").replace("+00:00", "Z")


def put(rows: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Add the fields that are there."""
    rows.update((name, value) for name, value in fields.items() if value is not None)
    return rows


# ---- the attributes of events, as every binding of CloudEvents shows them

_NOT_EXTENSIONS = {"specversion", "id", "source", "type", "time", "subject", "dataschema", "partitionkey"}
_NOT_EXTENSIONS |= {"expirytime", "correlationid", "traceparent", "contentencoding", "datacontenttype"}


def rows_of_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that attributes show."""
    get = attributes.get
    correlation = get("correlationid")
    rows = put(
        {"attributes": {n: v for n, v in attributes.items() if n not in {"datacontenttype", "contentencoding"}}},
        id=get("id"),
        key=get("partitionkey"),
        type=get("type"),
        time_ms=time_of(get("time")) if get("time") is not None else None,
        expires_at_ms=time_of(get("expirytime")) if get("expirytime") is not None else None,
        correlation=correlation.encode() if correlation is not None else None,
        traceparent=get("traceparent"),
    )
    rows["properties"] = [
        (name, value if isinstance(value, str) else json.dumps(value))
        for name, value in attributes.items()
        if name not in _NOT_EXTENSIONS
    ]
    return rows


def heard_document(document: dict[str, Any]) -> Heard:
    """What an event as JSON shows."""
    left = dict(document)
    data = {name: left.pop(name) for name in ("data", "data_base64") if name in left}
    rows = rows_of_attributes(left)
    put(rows, content_type=left.get("datacontenttype"), content_encoding=left.get("contentencoding"))
    rows["body"] = data
    if "subject" in left:
        rows["address"] = left["subject"]
    return Heard(rows, {"document": document})


# ---- MQTT


def utf8(text: str) -> bytes:
    """A UTF-8 string (MQTT 5.0, 1.5.4)."""
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw


class Mqtt(Wire):
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
        elif batch.messages[0].native is not None and "cloudevents" in batch.messages[0].native:
            heard = heard_document(json.loads(packet))
            rows |= {name: value for name, value in heard.rows.items() if name != "address"}
            return Heard(rows, own)
        return Heard(rows | {"body": packet}, own | {"payload": packet})

    @staticmethod
    def _kept(properties: Properties, event: object) -> dict[str, Any]:
        """The properties that come back as they were.

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


# ---- CoAP


class Coap(Wire):
    """POST to /t/; GET of the last value, as it is and as an event in JSON."""

    column = "coap"

    def say(self, said: Said) -> tuple[Message, dict[str, Any]]:
        driver = CoapDriver(now_ms=NOW_MS)
        texts = {"id": said.id, "key": said.key, "type": said.type, "reply": said.reply_to}
        texts |= {"traceparent": said.traceparent, "qos": str(said.qos), "retain": "true" if said.retain else None}
        for name, ms in (("expiry", said.expiry_ms), ("delay", said.delay_ms)):
            texts[name] = str(ms // 1000) if ms is not None else None
        texts["time"] = str(said.time_ms) if said.time_ms is not None else None
        if said.correlation is not None:
            texts["corr"] = urlsafe_b64encode(said.correlation).decode().rstrip("=")
        query = [f"{name}={text}" for name, text in texts.items() if text is not None]
        query += [f"{name}={text}" if text else name for name, text in said.properties]
        request = self._request(aiocoap.POST, said.address, tuple(query), said.body)
        if said.content_type is not None:
            request.opt.content_format = FORMATS[said.content_type, said.content_encoding]
        driver.complete(driver.receive(request.encode()))
        (message,) = driver.stored
        number = request.opt.content_format
        own = {"body": said.body, "content_format": None if number is None else int(number)}
        return message, own

    @staticmethod
    def _request(code: Any, address: str, query: tuple[str, ...] = (), body: bytes = b"") -> aiocoap.Message:
        request = aiocoap.Message(code=code, _mtype=aiocoap.CON, _mid=9, _token=b"tk", payload=body)
        request.direction = Direction.OUTGOING
        request.opt.uri_path = ("t", *address.split("/"))
        request.opt.uri_query = query
        return request

    def hear(self, batch: Batch, now_ms: int) -> Heard:
        message = batch.message(0)
        plain = self._get(message, now_ms, None)
        number = plain.opt.content_format
        rows = heard_document(json.loads(self._get(message, now_ms, CE_JSON).payload)).rows
        rows.pop("content_type", None)
        rows.pop("content_encoding", None)
        rows |= {"address": message.address, "body": plain.payload}
        if number is not None:
            rows["content_type"], rows["content_encoding"] = next(f for f, n in FORMATS.items() if n == number)
            put(rows, content_encoding=rows.pop("content_encoding"))
        return Heard(rows, {"body": plain.payload, "content_format": None if number is None else int(number)})

    def _get(self, message: Message, now_ms: int, accept: int | None) -> aiocoap.Message:
        driver = CoapDriver(now_ms=now_ms, last=message)
        request = self._request(aiocoap.GET, message.address)
        request.opt.accept = accept
        driver.complete(driver.receive(request.encode()))
        assert driver.calls == [LastValue(address=message.address)]
        ((data, _),) = driver.endpoint.take_output()
        answer = aiocoap.Message.decode(data)
        assert answer.code == aiocoap.CONTENT
        return answer

    def speaker(self, said: Said) -> str | None:
        levels = said.address.split("/")
        return (levels[1] if len(levels) > 1 else "") or str(PEER[0])


# ---- HTTP


# Headers that may come back as others: a list with repeats, and the two that hold a correlation.
OTHERWISE = {"x-lot", "ce-correlationid", "x-correlation-data"}


def header_value(text: str) -> str:
    """A header's value: what is not printable ASCII is percent-encoded (CloudEvents HTTP binding 1.0.2, 3.1.3.2)."""
    return quote(text, safe="!#$&'()*+,-./:;<=>?@[\\]^_`{|}~")


class Http(Wire):
    """POST to /topics/ and GET of the last value; a plain message over HTTP/1.1."""

    column = "http"
    options = HttpOptions(property_headers=("x-lot",))

    def client(self, gateway: http_driver.Gateway) -> Any:
        """A client of one version of HTTP."""
        return http_driver.Http1Client(gateway)

    def gateway(self, now_ms: int) -> http_driver.Gateway:
        """A gateway that takes `x-lot` for a property."""
        gateway = http_driver.Gateway(self.options)
        gateway.now_ms = now_ms
        return gateway

    def say(self, said: Said) -> tuple[Message, dict[str, Any]]:
        return self.post(said, f"/topics/{quote(said.address, safe='/')}", self.headers(said), said.body)

    def post(
        self, said: Said, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> tuple[Message, dict[str, Any]]:
        """The message of a POST, and the headers and body that should come back."""
        query = {"qos": str(said.qos), "retain": "true" if said.retain else None, "reply": None}
        query["delay"] = str(said.delay_ms // 1000) if said.delay_ms is not None else None
        if said.event is None:
            query["expiry"] = str(said.expiry_ms // 1000) if said.expiry_ms is not None else None
        target = f"{path}?{'&'.join(f'{name}={text}' for name, text in query.items() if text is not None)}"
        gateway = self.gateway(NOW_MS)
        answer = self.client(gateway).ask("POST", target, *headers, body=body)
        assert answer.status in {200, 201}, answer.body
        (message,) = gateway.messages
        return message, {"body": body, **{name: text for name, text in headers if name not in OTHERWISE}}

    def headers(self, said: Said) -> list[tuple[str, str]]:
        """The headers of a plain message."""
        names = {"ce-id": said.id, "ce-type": said.type, "ce-partitionkey": said.key, "x-reply-to": said.reply_to}
        if said.time_ms is not None:
            names["ce-time"] = stamp(said.time_ms)
        if said.correlation is not None:
            if (text := said.correlation.decode(errors="replace")).isprintable() and text.encode() == said.correlation:
                names["ce-correlationid"] = text or None
            if names.get("ce-correlationid") is None:
                names["x-correlation-data"] = b64encode(said.correlation).decode()
        encoded = [
            (name, text if name == "x-correlation-data" else header_value(text))
            for name, text in names.items()
            if text is not None
        ]
        return encoded + self.common(said)

    @staticmethod
    def common(said: Said) -> list[tuple[str, str]]:
        """The headers of messages and events alike."""
        event = said.event or {}
        plain = {"content-type": said.content_type, "content-encoding": said.content_encoding}
        if not event:
            plain["traceparent"] = said.traceparent
        found = [(name, text) for name, text in plain.items() if text is not None]
        for name, text in said.properties:
            if name not in event:
                found.append((name, text) if name.startswith("x-") else (f"ce-{name}", header_value(text)))
        return found

    def hear(self, batch: Batch, now_ms: int) -> Heard:
        message = batch.message(0)
        gateway = self.gateway(now_ms)
        gateway.frames.append([message])
        answer = self.client(gateway).ask("GET", f"/topics/{quote(message.address, safe='/')}")
        assert answer.status == 200, answer.body
        headers = dict(answer.headers)
        attributes = {n[3:]: unquote(v) for n, v in headers.items() if n.startswith("ce-")}
        rows = rows_of_attributes(attributes)
        data, reply_to = headers.get("x-correlation-data"), headers.get("x-reply-to")
        put(
            rows,
            address=message.address,
            content_type=headers.get("content-type"),
            content_encoding=headers.get("content-encoding"),
            traceparent=headers.get("traceparent"),
            correlation=b64decode(data) if data is not None else None,
            reply_to=unquote(reply_to) if reply_to is not None else None,
            body=answer.body,
        )
        rows["properties"] += [pair for pair in answer.headers if pair[0] == "x-lot"]
        return Heard(rows, {**headers, "body": answer.body, "attributes": attributes})


class EventBinary(Http):
    """Events in binary mode over HTTP/2."""

    def client(self, gateway: http_driver.Gateway) -> Any:
        return http_driver.Http2Client(gateway)

    def headers(self, said: Said) -> list[tuple[str, str]]:
        assert said.event is not None
        attributes = [(f"ce-{name}", header_value(text)) for name, text in said.event.items()]
        reply_to = [] if said.reply_to is None else [("x-reply-to", header_value(said.reply_to))]
        return attributes + reply_to + self.common(said)

    def say(self, said: Said) -> tuple[Message, dict[str, Any]]:
        message, own = super().say(said)
        kept = {name: text for name, text in own.items() if not name.startswith("ce-")}
        return message, kept | {"attributes": said.event}


class EventJson(Http):
    """Events in structured mode: POST to /events, and server-sent events."""

    column = "json"

    def say(self, said: Said) -> tuple[Message, dict[str, Any]]:
        document = dict(said.event or {})
        if said.content_type is not None:
            document["datacontenttype"] = said.content_type
        if said.native is not None:
            document[said.native[0]] = said.native[1]
        kind = [("content-type", "application/cloudevents+json")]
        message, _ = self.post(said, "/events", kind, json.dumps(document).encode())
        return message, {"document": document}

    def hear(self, batch: Batch, now_ms: int) -> Heard:
        address = batch.messages[0].address
        gateway = self.gateway(now_ms)
        opening = gateway.feed(http_driver.request("GET", f"/subscribe?filter={quote(address, safe='')}"))
        assert opening.startswith(b"HTTP/1.1 200 ")
        assert gateway.deliver(batch.messages, frame=FRAME) == 1
        (stream,) = http_driver.parse_responses(opening + gateway.adapter.take_output())
        _, event = stream.body.decode().split("\n\n", 1)
        lines = dict(line.split(": ", 1) for line in event.strip().split("\n"))
        assert lines["id"] == str(batch.position(0))
        heard = heard_document(json.loads(lines["data"]))
        return Heard(heard.rows | {"address": address}, heard.own)


# ---- AMQP


class Amqp(Wire):
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
        return message, {"routing_key": key, "body": said.body, "properties": self._content_header(sent)}

    @staticmethod
    def _content_header(data: bytes) -> bytes:
        """The property flags and fields of the one message in these frames (AMQP 0-9-1, 2.3.5.2)."""
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


WIRES: dict[str, Wire] = {
    "mqtt-3.1.1": Mqtt(4),
    "mqtt-5": Mqtt(5),
    "coap": Coap(),
    "http": Http(),
    "event-binary": EventBinary(),
    "event-json": EventJson(),
    "amqp": Amqp(),
}
