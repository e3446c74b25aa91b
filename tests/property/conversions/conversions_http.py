"""Clients of HTTP: plain messages, events in binary mode and events as JSON, in text and by h2."""

import json
from base64 import b64decode, b64encode
from typing import Any
from urllib.parse import quote, unquote

from adapters.http import HttpOptions
from gateway.domain.batch import Batch
from store.api.message import Message
from tests.property.conversions.conversions_client import (
    FRAME,
    Heard,
    ProtocolClient,
    heard_document,
    put,
    rows_of_attributes,
    stamp,
    without_ours,
)
from tests.property.conversions.conversions_said import NOW_MS, Said
from tests.support.http import http_driver

# Headers that may come back as others: a list with repeats, and the two that hold a correlation.
OTHERWISE = {"x-lot", "ce-correlationid", "x-correlation-data"}


def header_value(text: str) -> str:
    """Returns a header's value, in which all but printable ASCII is percent-encoded (CloudEvents HTTP binding 1.0.2,
    3.1.3.2).
    """
    return quote(text, safe="!#$&'()*+,-./:;<=>?@[\\]^_`{|}~")


class Http(ProtocolClient):
    """POST to /topics/ and GET of the last value; a plain message over HTTP/1.1."""

    column = "http"
    options = HttpOptions(property_headers=("x-lot",))

    def client(self, gateway: http_driver.Gateway) -> Any:
        """Returns a client of one version of HTTP."""
        return http_driver.Http1Client(gateway)

    def gateway(self, now_ms: int) -> http_driver.Gateway:
        """Returns a gateway that takes `x-lot` for a property."""
        gateway = http_driver.Gateway(self.options)
        gateway.now_ms = now_ms
        return gateway

    def say(self, said: Said) -> tuple[Message, dict[str, Any]]:
        return self.post(said, f"/topics/{quote(said.address, safe='/')}", self.headers(said), said.body)

    def post(
        self, said: Said, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> tuple[Message, dict[str, Any]]:
        """Returns the message of a POST, and the headers and body that should come back."""
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
        """Returns the headers of a plain message."""
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
        """Returns the headers of messages and events alike."""
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
        return Heard(rows, {**headers, "body": answer.body, "attributes": without_ours(attributes)})

    def speaker(self, said: Said) -> str | None:
        levels = said.address.split("/")
        return (levels[2] if len(levels) > 2 else "") or http_driver.PEER


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
        return heard_document(json.loads(lines["data"]))
