"""Sender-selected distribution: the headers CC and BCC, which name more routing keys (RabbitMQ's extension).

Both are arrays of texts. A message is routed by all keys together, and stored once. BCC is taken out before anybody
sees it.
"""

from typing import Any, Final

import msgspec

from adapters.amqp.wire import (
    PRECONDITION_FAILED,
    Table,
    field_spans,
    read_short_string,
    read_table,
)
from gateway.domain.errors import ProtocolError
from gateway.port.queues import COPY_KEYS, PROPERTIES, address_of, routing_of
from store.api.message import COPIES, Message

CC: Final = "CC"
BCC: Final = "BCC"
COPIES_COUNT_MAX: Final = 1_000  # routing keys of one message: each costs a look at the bindings
_BEFORE: Final = (15, 14)  # the bits of the fields in front of it: short strings
_AMQP: Final = "amqp"


def copy_keys(headers: Table) -> tuple[str, ...]:
    """Returns the routing keys that headers name, without repeats.

    What is no text in an array is passed over, as RabbitMQ does. Raises `ProtocolError` (PRECONDITION_FAILED).
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
        native[PROPERTIES] = without_header(raw, BCC)
    return keys


def without_header(raw: bytes, name: str) -> bytes:
    """Returns property flags and fields, which have been read before, without one header."""
    flags, at = int.from_bytes(raw[:2], "big"), 2
    for bit in _BEFORE:
        if flags >> bit & 1:
            _, at = read_short_string(raw, at)
    _, end = read_table(raw, at)
    table = b"".join([raw[a:b] for a, b in field_spans(raw, at) if read_short_string(raw, a)[0] != name])
    return b"".join((raw[:at], len(table).to_bytes(4, "big"), table, raw[end:]))


def with_copies(message: Message, keys: tuple[str, ...]) -> Message:
    """Returns a message that is routed by more keys of its exchange."""
    exchange, _ = routing_of(message.address)
    native = message.native or {}
    copies = [address for key in keys if (address := address_of(exchange, key)) != message.address]
    return msgspec.structs.replace(message, native={**native, _AMQP: {**native.get(_AMQP, {}), COPIES: copies}})
