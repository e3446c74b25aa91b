"""CloudEvents in structured mode: the body of a message is an event in JSON, as its content type says.

The message in the log is the event, whose body is its data. By AMQP it leaves as the bytes that came: what stood around
the data, or its Base64, is kept in `native["amqp"]`. Where text has escapes the whole body is kept, unless that is too
long: then the message is no event to us. Nor is one whose body is none of version 1.0: a broker for AMQP takes any.
"""

from base64 import b64encode
from typing import Any, Final

from msgspec.structs import replace

from adapters import cloudevents
from gateway.domain.errors import Refusal
from gateway.port.queues import SHOWN, STORED
from store.api.message import Message

STRUCTURED: Final = "structured"  # in `native["amqp"]`: the bytes before and behind the data, or all of them
KEPT_BYTES_MAX: Final = 64 << 10  # of a body that are kept beside its data
_AMQP: Final = "amqp"


def read_structured(body: bytes, **fields: Any) -> Message | None:
    """Returns the message of an event; None where the body is none, or too much would have to be kept beside its data.

    `fields` are those of `from_structured`.
    """
    try:
        message = cloudevents.from_structured(body, protocol=_AMQP, **fields)
    except Refusal:
        return None
    kept = _around(message.body, body)
    if kept is None:
        return None
    native = message.native or {}
    own = {name: value for name, value in native[_AMQP].items() if name != SHOWN}  # the event has names of its own
    return replace(message, native={**native, _AMQP: {**own, STRUCTURED: kept}})


def _around(data: bytes, body: bytes) -> list[bytes] | None:
    """Returns what is kept of a body: two parts around its data, three around its Base64, or the one that it is.

    None where that is more than `KEPT_BYTES_MAX`.
    """
    kept = [body]
    if data:
        before, found, behind = body.partition(data)
        if found:
            kept = [before, behind]
        else:
            before, found, behind = body.partition(b64encode(data))
            kept = [before, b"", behind] if found else kept
    return kept if sum(map(len, kept)) <= KEPT_BYTES_MAX else None


def body_of(message: Message) -> bytes:
    """Returns the body that a message leaves with by AMQP."""
    own = message.native.get(_AMQP) if message.native else None
    if own is not None and STORED in own:  # with headers added for this delivery
        own = own[STORED]
    kept = own.get(STRUCTURED) if own else None
    if kept is None:
        return message.body
    if len(kept) == 1:
        return bytes(kept[0])
    return b"".join((kept[0], message.body if len(kept) == 2 else b64encode(message.body), kept[-1]))
