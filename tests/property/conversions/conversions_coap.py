"""A client of CoAP, by aiocoap's codec."""

import json
from base64 import urlsafe_b64encode
from typing import Any

import aiocoap
from aiocoap.message import Direction

from gateway.domain.address import unescape_level
from gateway.domain.batch import Batch
from gateway.port.reads import LastValue
from store.api.message import Message
from tests.property.conversions.conversions_client import Heard, ProtocolClient, heard_document, put
from tests.property.conversions.conversions_said import FORMATS, NOW_MS, Said
from tests.support.coap.coap_driver import PEER, Driver

CE_JSON = 65_011  # the Content-Format of an event as JSON, as the gateway is set by default


class Coap(ProtocolClient):
    """POST to /t/; GET of the last value, as it is and as an event in JSON."""

    column = "coap"

    def say(self, said: Said) -> tuple[Message, dict[str, Any]]:
        driver = Driver(now_ms=NOW_MS)
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
        elif said.native is not None:
            request.opt.content_format = said.native
        driver.complete(driver.receive(request.encode()))
        (message,) = driver.stored
        number = request.opt.content_format
        own = {"body": said.body, "content_format": None if number is None else int(number)}
        return message, own

    @staticmethod
    def _request(code: Any, address: str, query: tuple[str, ...] = (), body: bytes = b"") -> aiocoap.Message:
        request = aiocoap.Message(code=code, _mtype=aiocoap.CON, _mid=9, _token=b"tk", payload=body)
        request.direction = Direction.OUTGOING
        request.opt.uri_path = ("t", *map(unescape_level, address.split("/")))
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
        if number in FORMATS.values():
            rows["content_type"], rows["content_encoding"] = next(f for f, n in FORMATS.items() if n == number)
            put(rows, content_encoding=rows.pop("content_encoding"))
        return Heard(rows, {"body": plain.payload, "content_format": None if number is None else int(number)})

    def _get(self, message: Message, now_ms: int, accept: int | None) -> aiocoap.Message:
        """Returns the answer to a GET, all blocks of it in one (RFC 7959, 2.4)."""
        driver = Driver(now_ms=now_ms, last=message)
        body, block = b"", None
        while True:
            request = self._request(aiocoap.GET, message.address)
            request.opt.accept, request.opt.block2 = accept, block
            request.mid += 0 if block is None else block.block_number
            driver.complete(driver.receive(request.encode()))
            ((data, _),) = driver.endpoint.take_output()
            answer = aiocoap.Message.decode(data)
            assert answer.code == aiocoap.CONTENT
            body += answer.payload
            told = answer.opt.block2
            if told is None or not told.more:
                assert set(driver.calls) == {LastValue(address=message.address)}
                answer.payload = body
                return answer
            block = told._replace(block_number=told.block_number + 1, more=False)

    def speaker(self, said: Said) -> str | None:
        levels = said.address.split("/")
        return (levels[2] if len(levels) > 2 else "") or str(PEER[0])
