"""Consumers of streams: what their arguments say, and the header with the offset of a message."""

from typing import Final

import msgspec

from adapters.amqp.codec.wire import PRECONDITION_FAILED, Table, Timestamp
from gateway.domain.errors import ProtocolError
from gateway.port.streams import AGO, FIRST, LAST, NEXT, OFFSET, STREAM_OFFSET, STREAMED, TIME, StreamRead, age_ms
from store.api.message import Message

X_OFFSET: Final = "x-stream-offset"
X_FILTER: Final = "x-stream-filter"
X_UNFILTERED: Final = "x-stream-match-unfiltered"
ARGUMENTS: Final = frozenset({X_OFFSET, X_FILTER, X_UNFILTERED})
FILTERS_COUNT_MAX: Final = 1_000  # values of one filter
_AMQP: Final = "amqp"


def stream_read(arguments: Table) -> StreamRead | None:
    """Returns what a consumer says of a stream; None: nothing. Raises `ProtocolError` (PRECONDITION_FAILED)."""
    if ARGUMENTS.isdisjoint(arguments):
        return None
    place, value = _place(arguments.get(X_OFFSET, NEXT))
    unfiltered = arguments.get(X_UNFILTERED, False)
    if not isinstance(unfiltered, bool):
        raise _invalid(X_UNFILTERED, unfiltered)
    said = arguments.get(X_FILTER, [])
    wanted = [said] if isinstance(said, str) else said
    if not isinstance(wanted, list) or not all(isinstance(one, str) for one in wanted):
        raise _invalid(X_FILTER, said)
    if len(wanted) > FILTERS_COUNT_MAX:
        raise ProtocolError(PRECONDITION_FAILED, f"'{X_FILTER}' has at most {FILTERS_COUNT_MAX} values")
    return StreamRead(place=place, value=value, wanted=tuple(wanted), unfiltered=unfiltered)


def _place(said: object) -> tuple[str, int]:
    """Returns the place of a `StreamRead` and its value."""
    if isinstance(said, str):
        if said in (FIRST, LAST, NEXT):
            return said, 0
        if (ago := age_ms(said)) is not None:
            return AGO, ago
    elif isinstance(said, Timestamp):
        return TIME, said * 1_000
    elif type(said) is int and said >= 0:
        return OFFSET, said
    raise _invalid(X_OFFSET, said)


def _invalid(name: str, value: object) -> ProtocolError:
    return ProtocolError(PRECONDITION_FAILED, f"invalid arg '{name}': {str(value)[:64]!r}")


def split_offset(message: Message) -> tuple[Message, int] | None:
    """Returns a message as it was stored, and its offset in the stream that it comes from; None for any other."""
    own = None if message.native is None else message.native.get(_AMQP)
    if own is None or STREAM_OFFSET not in own:
        return None
    native = {name: value for name, value in (message.native or {}).items() if name != _AMQP}
    if own[STREAMED] is not None:
        native[_AMQP] = own[STREAMED]
    return msgspec.structs.replace(message, native=native or None), own[STREAM_OFFSET]
