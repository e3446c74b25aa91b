"""GET and FETCH: the last value of an address, of all addresses that a filter matches, and the list of addresses."""

from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from adapters.cloudevents import STRUCTURED_JSON, data_type, to_batch, to_structured
from adapters.coap.codec.formats import LINK_FORMAT, TEXT, number_of
from adapters.coap.codec.registry import (
    BAD_REQUEST,
    BLOCK2,
    CONTENT,
    CONTENT_FORMAT,
    CONTINUE,
    ETAG,
    FETCH,
    GET,
    MAX_AGE,
    MAX_AGE_DEFAULT_S,
    METHOD_NOT_ALLOWED,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    PRECONDITION_FAILED,
    REQUEST_ENTITY_INCOMPLETE,
    SIZE2,
    UNSUPPORTED_CONTENT_FORMAT,
    VALID,
)
from adapters.coap.codec.wire import Option, encode_uint
from adapters.coap.exchanges.answers import Answer
from adapters.coap.messages.blocks import BlockTransfers, BodySnapshot
from adapters.coap.messages.request import ROOTS, Block, CoapRequest, Target, resolve
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.messages.times import SocketTime
from adapters.coap.reading.links import address_prefix, link_list, read_filter, topic_links
from adapters.coap.topics.reads import TopicRead, representation, take_page, topic_read
from adapters.coap.topics.topic import is_for_topics
from gateway.domain.address import check_address
from gateway.domain.errors import ProtocolError, Refusal
from gateway.domain.filters import check_filter
from gateway.port.adapter import Peer, Request
from gateway.port.reads import LastValue, LastValues, LastValuesPage, ListAddresses
from store.api.keys import Entry, Page
from store.api.message import Message

PROTOCOL = "coap"
ETAG_BYTES = 8
EACH = "each=true"  # the item of a query that asks for all messages in Confirmable notifications


class Observable(NamedTuple):
    """The resource that a GET or FETCH reads, and that it may observe: an address, or a filter."""

    pattern: str
    many: bool  # it is a filter, of a FETCH


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A GET or FETCH that the gateway has been asked for."""

    peer: Peer
    request: CoapRequest
    target: Target
    observable: Observable | None = None  # None: links, or topics
    topics: TopicRead | None = None
    each: bool = False  # an observer gets each message, one after the other
    limit: int = 0  # of the values that a filter is answered with
    found: list[Message] = []  # of these, so far
    payload: bytes = b""


class Reads:
    """The answers to GET requests. `begin` asks the gateway, `finish` makes the response of the answer."""

    def __init__(
        self, settings: CoapOptions, transfers: BlockTransfers, time: SocketTime, *, reliable: bool = False
    ) -> None:
        """Takes whether no response can be lost on its way, so that none is asked for again."""
        self.time = time
        self._settings = settings
        self._reliable = reliable
        self.block_size: int = settings.block_size  # bytes of the largest block sent
        self.snapshots, self.uploads = transfers.snapshots, transfers.uploads

    def begin(
        self, peer: Peer, code: int, request: CoapRequest, payload: bytes, now_ms: int
    ) -> Answer | tuple[Read, Request[Any]]:
        """Returns a later block of a response that is kept, or the request to the gateway.

        2.31 is the answer to a block of a FETCH that is not the last. Raises `ProtocolError` (4.00, 4.02, 4.04, 4.05,
        4.06, 4.08, 4.13, 4.15) and, for such blocks, `Refusal` (OVERLOAD).
        """
        if code == FETCH and request.block1 is not None and self._is_fetched(request.path):
            whole = self.uploads.add(peer, request, payload, now_ms, read_again=True)
            if whole is None:
                return Answer(CONTINUE)
            payload = whole
        if code in {GET, FETCH} and is_for_topics(request.path, self._settings):
            held = self._held(peer, request, now_ms, payload)
            asked = None if held is not None else topic_read(code, request, payload, self._settings)
            if asked is not None:
                target = Target(None, request.path[0])
                return Read(peer=peer, request=request, target=target, topics=asked[0], payload=payload), asked[1]
            if held is not None:
                return held
        if code == FETCH:
            return self._fetch(peer, request, payload, now_ms)
        if code != GET:
            raise ProtocolError(METHOD_NOT_ALLOWED, "the methods are GET, FETCH, POST, PUT and DELETE")
        target = resolve(request.path, bare_paths=self._settings.bare_paths)
        held = self._held(peer, request, now_ms)
        if held is not None:
            return held
        if target.address is None:
            read = Read(peer=peer, request=request, target=target)
            if request.accept not in {None, LINK_FORMAT}:
                raise ProtocolError(NOT_ACCEPTABLE, f"Accept: links are of Content-Format {LINK_FORMAT}")
            prefix = address_prefix(read_filter(request.query))
            return read, ListAddresses(prefix=prefix, limit=self._settings.list_max)
        try:
            check_address(target.address)
        except Refusal as refusal:
            raise ProtocolError(BAD_REQUEST, f"Uri-Path: {refusal.detail}") from refusal
        observable = Observable(target.address, many=False)
        each = EACH in request.query
        read = Read(peer=peer, request=request, target=target, observable=observable, each=each)
        return read, LastValue(address=target.address)

    def _is_fetched(self, path: tuple[str, ...]) -> bool:
        """Returns whether a FETCH has a body there."""
        return (len(path) == 1 and path[0] in ROOTS) or is_for_topics(path, self._settings)

    def _held(self, peer: Peer, request: CoapRequest, now_ms: int, payload: bytes = b"") -> Answer | None:
        """Returns a later block of a body that is at hand; None for another request.

        Some clients send the payload of a FETCH with its first request alone.
        """
        block = request.block2
        if block is None or not block.number:
            return None
        snapshot = self.snapshots.get(peer, request.key, now_ms)
        if snapshot is None or (payload and payload != snapshot.asked):
            return None
        if block.offset + block.size >= len(snapshot.body):
            (self.snapshots.drop if self._reliable else self.snapshots.done)(peer, request.key)
        return self._slice(snapshot, block)

    def _fetch(
        self, peer: Peer, request: CoapRequest, payload: bytes, now_ms: int
    ) -> Answer | tuple[Read, Request[Any]]:
        """Begins a FETCH (RFC 8132, 2) of the last values that a filter matches."""
        target = resolve(request.path, bare_paths=self._settings.bare_paths)
        if target.address is not None or not target.root:
            raise ProtocolError(METHOD_NOT_ALLOWED, "FETCH is for /t, with a filter as its body")
        if request.content_format not in {None, TEXT}:
            raise ProtocolError(UNSUPPORTED_CONTENT_FORMAT, f"a filter is of Content-Format {TEXT}")
        if request.accept not in {None, self._settings.cloudevents_batch_format}:
            number = self._settings.cloudevents_batch_format
            raise ProtocolError(NOT_ACCEPTABLE, f"Accept: values of a filter are of Content-Format {number}")
        limit, after = self._page(request.query)
        held = self._held(peer, request, now_ms, payload)
        if held is not None:
            return held
        if request.block2 is not None and request.block2.number and not payload:
            raise ProtocolError(REQUEST_ENTITY_INCOMPLETE, "the values are held no more: ask for the first block")
        try:
            pattern = check_filter(payload.decode())
        except UnicodeDecodeError:
            raise ProtocolError(BAD_REQUEST, "the filter is not UTF-8") from None
        except Refusal as refusal:
            raise ProtocolError(BAD_REQUEST, f"the filter: {refusal.detail}") from refusal
        observable = Observable(pattern, many=True)
        read = Read(
            peer=peer, request=request, target=target, observable=observable, limit=limit, found=[], payload=payload
        )
        return read, LastValues(pattern=pattern, limit=limit, after=after)

    def _page(self, query: tuple[str, ...]) -> tuple[int, str]:
        """Reads the query of a FETCH: how many values it takes, and the address that they follow."""
        limit, after = self._settings.list_max, ""
        for item in query:
            name, _, text = item.partition("=")
            if name == "after":
                after = text
            elif name == "limit" and text.isascii() and text.isdecimal() and 0 < int(text[:9]) <= limit:
                limit = int(text)
            else:
                raise ProtocolError(BAD_REQUEST, f"{name[:32]}: a FETCH takes after=ADDRESS and limit=1 to {limit}")
        return limit, after

    def more(self, read: Read, page: LastValuesPage | Page) -> Request[Any] | None:
        """Takes a page of values or topics; returns the next request, None where the response is complete."""
        if isinstance(page, Page):
            assert read.topics is not None
            return take_page(read.topics, page, self._settings)
        read.found.extend(page.messages)
        left = read.limit - len(read.found)
        full = sum([len(message.body) for message in read.found]) >= self._settings.max_body_bytes
        if page.after is None or left <= 0 or full:
            return None
        assert read.observable is not None
        return LastValues(pattern=read.observable.pattern, limit=left, after=page.after)

    def links(self, read: Read, addresses: list[str]) -> bytes:
        """Returns the links that a request asks for, as a `value` for `finish`; same path and query, same links."""
        return link_list(addresses, read_filter(read.request.query), root=read.target.root).encode()

    def topics(self, read: Read, value: Page | Entry | None) -> bytes:
        """Returns the topic or the links that a request asks for, as a `value` for `finish`. Raises `ProtocolError`."""
        assert read.topics is not None
        if read.topics.paths is not None:
            return topic_links(read.topics.paths, read_filter(read.request.query)).encode()
        assert not isinstance(value, Page)
        return representation(read.topics, value, self._settings)

    def finish(
        self,
        read: Read,
        value: Message | list[Message] | bytes | None,
        now_ms: int,
        *,
        max_age_s: int | None = None,
    ) -> Answer:
        """Returns the response, once the gateway has answered. Raises `ProtocolError` (4.00, 4.04, 4.06, 4.12).

        `value` is links or a topic as bytes, or the messages of a filter. `max_age_s` takes the place of the setting
        where the peer is told of changes.
        """
        notifies = max_age_s is not None
        if max_age_s is None:
            max_age_s = self._settings.max_age_s
        wall_ms = self.time.wall_ms(now_ms)
        if isinstance(value, bytes):
            is_topic = read.topics is not None and read.topics.id is not None
            kind = self._settings.topic_format if is_topic else LINK_FORMAT
            options = _options(kind, _etag(value), max_age_s)
            return self._answer(read, value, options, now_ms)
        if isinstance(value, list):
            body = to_batch([message for message in value if not message.expired(wall_ms)])
            options = _options(self._settings.cloudevents_batch_format, _etag(body), max_age_s, always=notifies)
            return self._answer(read, body, options, now_ms)
        if value is None or value.expired(wall_ms):
            if read.request.condition is not None and read.request.condition.etags is not None:
                raise ProtocolError(PRECONDITION_FAILED, "there is no last value")
            raise ProtocolError(NOT_FOUND, "no message at this address")
        condition = read.request.condition
        if condition is not None and not condition.holds(self.etags(value, now_ms)):
            raise ProtocolError(PRECONDITION_FAILED, "the last value is another one")
        body, number = self._representation(value, read.request)
        if value.expires_at_ms is not None:
            max_age_s = min(max_age_s, (value.expires_at_ms - wall_ms) // 1000)
        options = _options(number, _etag(body, value.id, str(number)), max_age_s, always=notifies)
        return self._answer(read, body, options, now_ms)

    def etags(self, message: Message | None, now_ms: int) -> frozenset[bytes]:
        """Returns the ETags of a last value in each Content-Format it is given in; none where there is no value."""
        if message is None or message.expired(self.time.wall_ms(now_ms)):
            return frozenset()
        formats = (None, self._settings.cloudevents_format)
        both = [self._representation(message, CoapRequest(accept=one)) for one in formats]
        return frozenset([_etag(body, message.id, str(number)) for body, number in both])

    def _representation(self, message: Message, request: CoapRequest) -> tuple[bytes, int | None]:
        """Returns the body and Content-Format that a request will take; raises `ProtocolError` (4.06)."""
        cloudevents = self._settings.cloudevents_format
        if request.accept == cloudevents or (request.accept is None and f"ct={STRUCTURED_JSON}" in request.query):
            return to_structured(message), cloudevents
        native = (message.native or {}).get(PROTOCOL) or {}
        number: int | None = native.get("content_format")
        kind = data_type(message)
        if number is None and kind is not None:
            number = number_of(kind, message.content_encoding)
        if request.accept is not None and request.accept != number:
            has = kind if number is None else f"Content-Format {number}"
            raise ProtocolError(NOT_ACCEPTABLE, f"Accept: the message is of {has or 'no Content-Format'}")
        return message.body, number

    def _answer(self, read: Read, body: bytes, options: tuple[Option, ...], now_ms: int) -> Answer:
        """Returns 2.03 when the peer has this already, else 2.05, in blocks when it is large or they were asked for."""
        request, block = read.request, read.request.block2
        if options[0][1] in request.etags and (block is None or block.number == 0):
            return Answer(VALID, tuple([option for option in options if option[0] in {ETAG, MAX_AGE}]))
        first = Block.of_size(self.block_size)
        if block is None and len(body) <= first.size:
            size = ((SIZE2, encode_uint(len(body))),) if request.sized else ()
            return Answer(CONTENT, (*options, *size), body)
        snapshot = BodySnapshot(body=body, options=options, asked=read.payload)
        if len(body) > min(first.size, (block or first).size):
            self.snapshots.put(read.peer, request.key, snapshot, len(body) + len(snapshot.asked), now_ms)
        return self._slice(snapshot, block or first)

    def _slice(self, snapshot: BodySnapshot, block: Block) -> Answer:
        """Returns one block, no larger than asked for and no larger than ours (RFC 7959, 2.4)."""
        exponent = min(block.exponent, Block.of_size(self.block_size).exponent)
        offset, body = block.offset, snapshot.body
        if offset and offset >= len(body):
            raise ProtocolError(BAD_REQUEST, f"Block2: the body ends before block {block.number}")
        size = 16 << exponent
        sent = Block(offset // size, offset + size < len(body), exponent)
        options = (*snapshot.options, (BLOCK2, sent.encode()))
        if not offset:
            options = (*options, (SIZE2, encode_uint(len(body))))
        return Answer(CONTENT, options, body[offset : offset + size])


def _options(number: int | None, etag: bytes, max_age_s: int, *, always: bool = False) -> tuple[Option, ...]:
    """Returns ETag, Max-Age and, where there is one, Content-Format.

    Max-Age is left out where it is the default (RFC 7252, 5.4.4), but for `always`, as notifications have it (RFC 7641,
    4.3.1).
    """
    fresh: tuple[Option, ...] = ((ETAG, etag),)
    if always or max_age_s != MAX_AGE_DEFAULT_S:
        fresh = (*fresh, (MAX_AGE, encode_uint(max_age_s)))
    return fresh if number is None else (*fresh, (CONTENT_FORMAT, encode_uint(number)))


def _etag(body: bytes, *of: str) -> bytes:
    """Names one representation of one message (RFC 7252, 5.10.6): the id alone may have been used before."""
    digest = blake2b("\0".join(of).encode("utf-8", "surrogatepass"), digest_size=ETAG_BYTES)
    digest.update(body)
    return digest.digest()
