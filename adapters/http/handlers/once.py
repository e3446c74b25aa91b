"""Idempotency-Key: a request that is sent again is stored once, and answered as it was.

See draft-ietf-httpapi-idempotency-key-header. A key is that of a user, and of a path. The log keeps it for
`idempotency_window_s`, with a fingerprint of the request and the place of what it has stored, in the same frame. So it
holds for requests at any proxy, whatever dies. Requests that were refused leave no key. Two with the same key at the
same time are stored in the log's order: the second one waits, and is answered like the first.
"""

from typing import TYPE_CHECKING, Final

from adapters.http.handlers.actions import Ask, Context, Stored
from adapters.http.handlers.messages import idempotency_key
from adapters.http.wire.request import HttpError, Request
from adapters.http.wire.response import Response, refused
from adapters.http.wire.transport import Exchange
from gateway.domain.idempotency import IdempotencyKey, KeyRepeated, StoredRequest, digest
from gateway.port.adapter import Outcome, RecallKey

if TYPE_CHECKING:
    from adapters.http.handlers.waiting import Part

__all__ = ["once_key", "repeated"]

# What of a request's head its messages are made of; others, of proxies and traces, may differ when it is sent again.
_HEADERS: Final = frozenset({b"content-type", b"content-encoding", b"x-reply-to", b"x-correlation-data"})


def once_key(request: Request, context: Context) -> IdempotencyKey | None:
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


def repeated(part: "Part", key: IdempotencyKey, error: KeyRepeated) -> tuple[Exchange, Request, Ask]:
    """Returns a request whose key was used before, and the question of what was stored: its answer is the request's."""

    def reply(recalled: StoredRequest) -> Response:
        if recalled.fingerprint != key.fingerprint:
            return refused(HttpError(422, "idempotency-key: this key was used for another request"))
        stored = Stored.of(Outcome(first=recalled.first, refused=error.refused), part.start, part.size)
        return part.reply(stored._replace(deliver_at_ms=recalled.deliver_at_ms))

    return part.exchange, part.request, Ask(RecallKey(group=error.group, name=key.name), reply)
