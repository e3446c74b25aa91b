"""Sender-selected distribution: the headers CC and BCC, which name more routing keys (RabbitMQ's extension).

Both are arrays of texts. A message is routed by all keys together, and stored once. BCC is taken out before any
consumer sees it.
"""

from typing import Any, Final

import msgspec

from adapters.amqp.codec.property_fields import edited
from adapters.amqp.codec.wire import PRECONDITION_FAILED, Table
from gateway.domain.errors import ProtocolError
from gateway.port.queues import COPY_KEYS, PROPERTIES, address_of, routing_of
from store.api.message import COPIES, Message

CC: Final = "CC"
BCC: Final = "BCC"
COPIES_COUNT_MAX: Final = 1_000  # routing keys of one message: each costs a look at the bindings
_AMQP: Final = "amqp"


def copy_keys(headers: Table) -> tuple[str, ...]:
    """Returns the routing keys that headers name, without repeats.

    Values of an array that are no text are skipped, as in RabbitMQ. Raises `ProtocolError` (PRECONDITION_FAILED).
    """
    keys: dict[str, None] = {}
    for name in (CC, BCC):
        said = headers.get(name, ())
        if not isinstance(said, list | tuple):
            raise ProtocolError(
                PRECONDITION_FAILED, f"invalid message: unacceptable type in header {name!r}: it is an array of texts"
            )
        keys.update(dict.fromkeys(key for key in said if isinstance(key, str)))
    if len(keys) > COPIES_COUNT_MAX:
        raise ProtocolError(
            PRECONDITION_FAILED, f"invalid message: {CC} and {BCC} name {len(keys)} keys; {COPIES_COUNT_MAX} are taken"
        )
    return tuple(keys)


def take_copies(raw: bytes, headers: Table, native: dict[str, Any]) -> tuple[str, ...]:
    """Returns the routing keys that headers name, and takes BCC out of them and out of the properties in `native`.

    `raw` is the property flags and fields. Raises as `copy_keys` does.
    """
    if CC not in headers and BCC not in headers:
        return ()
    keys = copy_keys(headers)
    if CC in headers:
        native[COPY_KEYS] = [key for key in headers[CC] if isinstance(key, str)]
    if headers.pop(BCC, None) is not None:
        native[PROPERTIES] = edited(raw, removed=(BCC,))
    return keys


def with_copies(message: Message, keys: tuple[str, ...]) -> Message:
    """Returns a message that is routed by more keys of its exchange."""
    exchange, _ = routing_of(message.address)
    native = message.native or {}
    copies = [address for key in keys if (address := address_of(exchange, key)) != message.address]
    return msgspec.structs.replace(message, native={**native, _AMQP: {**native.get(_AMQP, {}), COPIES: copies}})
