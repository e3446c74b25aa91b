"""GET: the last value of an address, and the list of addresses."""

from hashlib import blake2b
from typing import Any

import msgspec

from adapters.cloudevents import STRUCTURED_JSON, to_structured
from adapters.coap.answers import Answer
from adapters.coap.blocks import Snapshot, Snapshots
from adapters.coap.formats import LINK_FORMAT, number_of
from adapters.coap.links import address_prefix, link_list, read_filter
from adapters.coap.registry import (
    BAD_REQUEST,
    BLOCK2,
    CONTENT,
    CONTENT_FORMAT,
    ETAG,
    MAX_AGE,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    PRECONDITION_FAILED,
    SIZE2,
    VALID,
)
from adapters.coap.request import Block, Request, Target, resolve
from adapters.coap.settings import CoapOptions
from adapters.coap.wire import Option, encode_uint
from gateway.domain.address import check_address
from gateway.domain.errors import ProtocolError, Refusal
from gateway.port.adapter import LastValue, ListAddresses, Peer
from gateway.port.adapter import Request as GatewayRequest
from store.api.message import Message

__all__ = ["Read", "Reads"]

PROTOCOL = "coap"
ETAG_BYTES = 8


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A GET that the gateway has been asked for."""

    peer: Peer
    request: Request
    target: Target


class Reads:
    """The answers to GET requests. `begin` asks, `finish` makes the response of what it was told."""

    def __init__(self, settings: CoapOptions, snapshots: Snapshots) -> None:
        self._settings = settings
        self.snapshots = snapshots

    def begin(self, peer: Peer, request: Request, now_ms: int) -> Answer | tuple[Read, GatewayRequest[Any]]:
        """A later block of what is at hand, or what to ask the gateway. Raises `ProtocolError` (4.00, 4.02, 4.04)."""
        target = resolve(request.path, bare_paths=self._settings.bare_paths)
        block = request.block2
        if block is not None and block.number:
            snapshot = self.snapshots.get(peer, request.key, now_ms)
            if snapshot is not None:
                if block.offset + block.size >= len(snapshot.body):
                    self.snapshots.drop(peer, request.key)
                return self._slice(snapshot, block)
        read = Read(peer=peer, request=request, target=target)
        if target.address is None:
            if request.accept not in {None, LINK_FORMAT}:
                raise ProtocolError(NOT_ACCEPTABLE, f"Accept: links are of Content-Format {LINK_FORMAT}")
            prefix = address_prefix(read_filter(request.query))
            return read, ListAddresses(prefix=prefix, limit=self._settings.list_max)
        try:
            check_address(target.address)
        except Refusal as refusal:
            raise ProtocolError(BAD_REQUEST, f"Uri-Path: {refusal.detail}") from refusal
        return read, LastValue(address=target.address)

    def links(self, read: Read, addresses: list[str]) -> bytes:
        """The links that a request asks for: a `value` for `finish`, the same for all with its path and query."""
        return link_list(addresses, read_filter(read.request.query), root=read.target.root).encode()

    def finish(self, read: Read, value: Message | bytes | None, now_ms: int, *, max_age_s: int | None = None) -> Answer:
        """Returns the response, once the gateway has answered. Raises `ProtocolError` (4.00, 4.04, 4.06).

        `max_age_s` takes the place of the setting where the peer is told of changes.
        """
        if max_age_s is None:
            max_age_s = self._settings.max_age_s
        if isinstance(value, bytes):
            options = _options(LINK_FORMAT, _etag(value), max_age_s)
            return self._answer(read, value, options, now_ms)
        if value is None or value.expired(now_ms):
            if read.request.condition is not None and read.request.condition.etags is not None:
                raise ProtocolError(PRECONDITION_FAILED, "there is no last value")
            raise ProtocolError(NOT_FOUND, "no message at this address")
        condition = read.request.condition
        if condition is not None and not condition.holds(self.etags(value, now_ms)):
            raise ProtocolError(PRECONDITION_FAILED, "the last value is another one")
        body, number = self._representation(value, read.request)
        if value.expires_at_ms is not None:
            max_age_s = min(max_age_s, (value.expires_at_ms - now_ms) // 1000)
        options = _options(number, _etag(body, value.id, str(number)), max_age_s)
        return self._answer(read, body, options, now_ms)

    def etags(self, message: Message | None, now_ms: int) -> frozenset[bytes]:
        """The ETags of a last value in each Content-Format it is given in; none where there is no value."""
        if message is None or message.expired(now_ms):
            return frozenset()
        formats = (None, self._settings.cloudevents_format)
        both = [self._representation(message, Request(accept=one)) for one in formats]
        return frozenset([_etag(body, message.id, str(number)) for body, number in both])

    def _representation(self, message: Message, request: Request) -> tuple[bytes, int | None]:
        """The body and Content-Format that a request will take; raises `ProtocolError` (4.06)."""
        cloudevents = self._settings.cloudevents_format
        if request.accept == cloudevents or (request.accept is None and f"ct={STRUCTURED_JSON}" in request.query):
            return to_structured(message), cloudevents
        native = (message.native or {}).get(PROTOCOL) or {}
        number: int | None = native.get("content_format")
        if number is None and message.content_type is not None:
            number = number_of(message.content_type, message.content_encoding)
        if request.accept is not None and request.accept != number:
            has = f"Content-Format {number}" if number is not None else repr(message.content_type)
            raise ProtocolError(NOT_ACCEPTABLE, f"Accept: the message is of {has}")
        return message.body, number

    def _answer(self, read: Read, body: bytes, options: tuple[Option, ...], now_ms: int) -> Answer:
        """2.03 when the peer has this already, else 2.05, in blocks when it is large or they were asked for."""
        request, block = read.request, read.request.block2
        if options[0][1] in request.etags and (block is None or block.number == 0):
            return Answer(VALID, options[:2])
        first = Block.of_size(self._settings.block_size)
        if block is None and len(body) <= first.size:
            return Answer(CONTENT, options, body)
        snapshot = Snapshot(body=body, options=options)
        if len(body) > min(first.size, (block or first).size):
            self.snapshots.put(read.peer, request.key, snapshot, len(body), now_ms)
        return self._slice(snapshot, block or first)

    def _slice(self, snapshot: Snapshot, block: Block) -> Answer:
        """One block, no larger than asked for and no larger than ours (RFC 7959, 2.4)."""
        exponent = min(block.exponent, Block.of_size(self._settings.block_size).exponent)
        offset, body = block.offset, snapshot.body
        if offset and offset >= len(body):
            raise ProtocolError(BAD_REQUEST, f"Block2: the body ends before block {block.number}")
        size = 16 << exponent
        sent = Block(offset // size, offset + size < len(body), exponent)
        options = (*snapshot.options, (BLOCK2, sent.encode()))
        if not offset:
            options = (*options, (SIZE2, encode_uint(len(body))))
        return Answer(CONTENT, options, body[offset : offset + size])


def _options(number: int | None, etag: bytes, max_age_s: int) -> tuple[Option, ...]:
    """ETag, Max-Age and, where there is one, Content-Format."""
    fresh = ((ETAG, etag), (MAX_AGE, encode_uint(max_age_s)))
    return fresh if number is None else (*fresh, (CONTENT_FORMAT, encode_uint(number)))


def _etag(body: bytes, *of: str) -> bytes:
    """Names one representation of one message (RFC 7252, 5.10.6): the id alone may have been used before."""
    digest = blake2b("\0".join(of).encode("utf-8", "surrogatepass"), digest_size=ETAG_BYTES)
    digest.update(body)
    return digest.digest()
