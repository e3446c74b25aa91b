"""CloudEvents in structured mode: the body of a message is an event in JSON, as its content type says.

The message in the log is the event, whose body is its data. By AMQP it leaves as the bytes that came: what stood around
the data is kept in `native["amqp"]`, or the whole body where the data is encoded in it, as Base64 or with escapes.
"""

from typing import Any, Final

from msgspec.structs import replace

from adapters import cloudevents
from gateway.port.queues import STORED
from store.api.message import Message

STRUCTURED: Final = "structured"  # in `native["amqp"]`: the bytes before and behind the data, or all of them
_AMQP: Final = "amqp"


def read_structured(body: bytes, **fields: Any) -> Message:
    """Returns the message of an event; `fields` are those of `from_structured`. Raises `Refusal` (MALFORMED)."""
    message = cloudevents.from_structured(body, protocol=_AMQP, **fields)
    before, data, behind = body.partition(message.body) if message.body else (body, b"", b"")
    kept = [before, behind] if data else [body]
    native = message.native or {}
    return replace(message, native={**native, _AMQP: {**native[_AMQP], STRUCTURED: kept}})


def body_of(message: Message) -> bytes:
    """Returns the body that a message leaves with by AMQP."""
    own = message.native.get(_AMQP) if message.native else None
    if own is not None and STORED in own:  # with headers added for this delivery
        own = own[STORED]
    kept = own.get(STRUCTURED) if own else None
    if kept is None:
        return message.body
    return b"".join([kept[0], message.body, kept[1]]) if len(kept) > 1 else bytes(kept[0])
