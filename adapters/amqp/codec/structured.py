"""CloudEvents in structured mode: the body of a message is an event in JSON, as its content type says.

The message in the log is the event, whose body is its data. By AMQP it leaves as the bytes that came: the text around
the data is kept in `native["amqp"]`, as `adapters.cloudevents.verbatim` says. Where that is too long, the message is no
event to us. Nor is one whose body is none of version 1.0: a broker for AMQP takes any.
"""

from typing import Any, Final

from msgspec.structs import replace

from adapters import cloudevents
from gateway.domain.errors import Refusal
from gateway.port.queues import SHOWN, STORED
from store.api.message import Message

STRUCTURED: Final = "structured"  # in `native["amqp"]`: the bytes before and behind the data, or all of them
_AMQP: Final = "amqp"


def read_structured(body: bytes, **fields: Any) -> Message | None:
    """Returns the message of an event; None where the body is none, or too much would have to be kept beside its data.

    `fields` are those of `from_structured`.
    """
    try:
        message = cloudevents.from_structured(body, protocol=_AMQP, **fields)
    except Refusal:
        return None
    kept = cloudevents.around(message.body, body)
    if kept is None:
        return None
    native = message.native or {}
    own = {name: value for name, value in native[_AMQP].items() if name != SHOWN}  # the event has names of its own
    return replace(message, native={**native, _AMQP: {**own, STRUCTURED: kept}})


def body_of(message: Message) -> bytes:
    """Returns the body that a message leaves with by AMQP."""
    own = message.native.get(_AMQP) if message.native else None
    if own is not None and STORED in own:  # with headers added for this delivery
        own = own[STORED]
    kept = own.get(STRUCTURED) if own else None
    if kept is None:
        return message.body
    return cloudevents.whole(kept, message.body)
