"""Requests that read topics: the collection, all of it or by properties, and a topic resource, all of it or a part."""

from typing import Any, NamedTuple

from adapters.coap.codec.formats import LINK_FORMAT
from adapters.coap.codec.registry import (
    FETCH,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    UNSUPPORTED_CONTENT_FORMAT,
)
from adapters.coap.messages.request import CoapRequest
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.topics.topic import (
    NAME,
    Properties,
    decoded,
    id_of,
    is_collection,
    malformed,
    matches,
    path_of,
    read_properties,
    selected,
    topic_id,
)
from gateway.domain.errors import ProtocolError
from gateway.port.adapter import Request
from gateway.port.kv import GetKey, ListKeys
from store.api.keys import Entry, Page
from store.api.kv_rules import end_of_prefix

CBOR = 60  # the Content-Format of the keys of properties (2.5.2)
TOPICS_MAX = 1_000  # of one page of keys: the most that it has
TOPIC_RESOURCES = "rt=core.ps.conf"


class TopicRead(NamedTuple):
    """A request for topics: of one, or of those that have some properties."""

    id: str | None  # None: links to topic resources
    properties: Properties | None = None
    limit: int = 0  # of links
    keys: bytes | None = None  # the payload that names properties; None: all
    paths: list[str] | None = None  # of the topic resources found so far, where links are asked for


def topic_read(
    code: int, request: CoapRequest, payload: bytes, settings: CoapOptions
) -> tuple[TopicRead, Request[Any]] | None:
    """Returns a request with a topic's path or the collection's, and the question for the gateway.

    None where the collection is asked for something else: addresses, or values. Raises `ProtocolError` (4.00, 4.06,
    4.15).
    """
    fetches, id_ = code == FETCH, id_of(request.path)
    if is_collection(request.path):
        if fetches and request.content_format != settings.topic_format:
            return None  # a filter of addresses
        if not fetches and request.query and TOPIC_RESOURCES not in request.query:
            return None
    wanted = LINK_FORMAT if id_ is None else settings.topic_format
    if request.accept not in {None, wanted}:
        raise ProtocolError(NOT_ACCEPTABLE, f"Accept: this is of Content-Format {wanted}")
    namespace = settings.topics_namespace
    if id_ is None:
        properties = read_properties(payload, settings) if fetches else None
        read = TopicRead(None, properties=properties, limit=settings.list_max, paths=[])
        name = None if properties is None else properties.get(NAME)
        if not isinstance(name, str):
            return read, ListKeys(limit=TOPICS_MAX, namespace=namespace)
        only = topic_id(name)
        return read, ListKeys(start=only, end=end_of_prefix(only), limit=1, namespace=namespace)
    if fetches and request.content_format != CBOR:
        raise ProtocolError(UNSUPPORTED_CONTENT_FORMAT, f"the keys of properties are of Content-Format {CBOR}")
    return TopicRead(id_, keys=payload if fetches else None), GetKey(key=id_, namespace=namespace)


def take_page(read: TopicRead, page: Page, settings: CoapOptions) -> Request[Any] | None:
    """Takes the topics of a page that a request asks for; returns the next request, None where it has them all."""
    assert read.paths is not None
    found = [topic for entry in page.entries if (topic := decoded(entry.value, settings)) is not None]
    chosen = [topic for topic in found if read.properties is None or matches(topic, read.properties)]
    read.paths.extend(["/" + "/".join(path_of(topic.id)) for topic in chosen])
    del read.paths[read.limit :]
    if len(read.paths) == read.limit or not page.more:
        return None
    return ListKeys(after=page.entries[-1].key, limit=TOPICS_MAX, namespace=settings.topics_namespace)


def representation(read: TopicRead, entry: Entry | None, settings: CoapOptions) -> bytes:
    """Returns the representation of a topic, or of the part that is asked for.

    Raises `ProtocolError` (4.00, 4.04, 5.00).
    """
    if entry is None:
        raise ProtocolError(NOT_FOUND, "there is no such topic")
    topic = decoded(entry.value, settings)
    if topic is None:
        raise malformed()
    return topic.encoded() if read.keys is None else selected(topic, read.keys)
