"""Idempotency-Key: a request that is sent again is stored once, and answered as it was.

See draft-ietf-httpapi-idempotency-key-header. A key is that of a user, and of a path. The log keeps it for
`idempotency_window_s`, with a fingerprint of the request and the position of the stored messages, in the same frame. So
it holds for requests at any proxy, whatever dies. Requests that were refused leave no key. Two with the same key at the
same time are stored in the log's order: the second one waits, and is answered like the first.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from adapters.http.handlers.actions import Ask, HandlerContext, Part, Store, Stored
from adapters.http.handlers.messages import idempotency_key
from adapters.http.wire.request import HttpError, HttpRequest
from adapters.http.wire.response import Response, refused
from adapters.http.wire.transport import Exchange
from gateway.domain.errors import Refusal
from gateway.domain.idempotency import IdempotencyKey, KeyRepeated, StoredRequest, digest
from gateway.port.adapter import Outcome
from gateway.port.reads import RecallKey
from store.api.message import EVENT, Message
from store.format.frame import Position

ANSWERABLE: Final = b"answerable"  # the fingerprint of an event that is a command; that of others is empty
EVENTS_MAX: Final = 1_000  # of one request, where each is stored once: each that is repeated is a question

# A request's messages depend on these of its headers; others, of proxies and traces, may differ when it is sent again.
_HEADERS: Final = frozenset({b"content-type", b"content-encoding", b"x-reply-to", b"x-correlation-data"})


def once_key(request: HttpRequest, context: HandlerContext) -> IdempotencyKey | None:
    """Returns the key of a request that stores messages; None when it has none."""
    key = idempotency_key(request)
    if not key:
        return None
    path, query = request.split_target()
    said = [name + b":" + value for name, value in request.headers if name in _HEADERS or name.startswith(b"ce-")]
    return IdempotencyKey(
        name=digest("http", context.principal.name, path, key),
        fingerprint=digest(query, request.body, *sorted(said)),
        expires_at_ms=context.now_ms + 1_000 * context.options.idempotency_window_s,
    )


def event_keys(messages: Sequence[Message], context: HandlerContext) -> Sequence[IdempotencyKey]:
    """Returns a key for each event, by its sender, address, source and id; none where repeated events are stored.

    Raises `HttpError` (413) for too many.
    """
    window_s = context.options.event_window_s
    if not window_s:
        return ()
    if any(message.deliver_at_ms is not None for message in messages):
        return ()  # the timer of a delayed message, which belongs to the request, answers it
    if any(message.native is None or EVENT not in message.native for message in messages):
        return ()
    if len(messages) > EVENTS_MAX:
        raise HttpError(413, f"a batch has at most {EVENTS_MAX} events where repeated ones are stored once")
    until_ms = context.now_ms + 1_000 * window_s
    keys: list[IdempotencyKey] = []
    for message in messages:
        assert message.native is not None
        source = message.native[EVENT]["source"]
        name = digest("event", context.principal.name, message.address, source, message.id)
        keys.append(IdempotencyKey(name=name, fingerprint=b"", expires_at_ms=until_ms))
    return keys


def answerable_key(key: IdempotencyKey) -> IdempotencyKey:
    """Returns the key of a request whose message is given an address for its answer, or a correlation.

    The message that an earlier request without `Prefer: wait` has stored under this key does not have them.
    """
    fingerprint = digest(key.fingerprint, ANSWERABLE) if key.fingerprint else ANSWERABLE
    return msgspec.structs.replace(key, fingerprint=fingerprint)


class EachOnce:
    """The messages of one request that are stored each by itself, and answered together."""

    def __init__(self, action: Store) -> None:
        self._action = action
        self._left = len(action.messages)
        self._positions: dict[int, Sequence[Position]] = {}
        self._refused: dict[int, Refusal] = {}
        self._repeated: set[int] = set()

    def parts(self) -> list[Store]:
        """Returns an action for each message; the reply of the last one is the response."""
        pairs = zip(self._action.messages, self._action.keys, strict=True)
        return [Store((message,), partial(self._stored, index), key) for index, (message, key) in enumerate(pairs)]

    def _stored(self, index: int, stored: Stored) -> Response | None:
        if 0 in stored.refused:
            self._refused[index] = stored.refused[0]
        else:
            self._positions[index] = stored.positions.get(0, ())
            if stored.repeated:
                self._repeated.add(index)
        self._left -= 1
        if self._left:
            return None
        positions = dict(sorted(self._positions.items()))
        refused_ = dict(sorted(self._refused.items()))
        return self._action.reply(Stored(positions, refused_, repeated=frozenset(self._repeated)))


def repeated(part: Part, key: IdempotencyKey, error: KeyRepeated) -> tuple[Exchange, HttpRequest, Ask]:
    """Returns a request whose key was used, and the query for the stored messages: its answer is the request's."""
    is_event = key.fingerprint in {b"", ANSWERABLE}

    def reply(recalled: StoredRequest) -> Response | None:
        if not is_event and recalled.fingerprint != key.fingerprint:
            return refused(HttpError(422, "idempotency-key: this key was used for another request"))
        if is_event and key.fingerprint and not recalled.fingerprint:
            return refused(
                HttpError(
                    422, "ce-id: this event is stored already, and says not where to answer it", attribute="ce-id"
                )
            )
        stored = Stored.of(Outcome(first=recalled.first, refused=error.refused), part.start, part.size)
        again = frozenset(stored.positions) if is_event else frozenset()
        return part.reply(stored._replace(deliver_at_ms=recalled.deliver_at_ms, repeated=again, recalled=True))

    def failed(refusal: Refusal) -> Response | None:
        return part.reply(Stored({}, dict.fromkeys(range(part.size), refusal)))

    return part.exchange, part.request, Ask(RecallKey(store_group=error.group, name=key.name), reply, failed)
