"""Consumers of streams: the meaning of their arguments."""

from typing import Final

from adapters.amqp.codec.wire import PRECONDITION_FAILED, Table, Timestamp
from gateway.domain.errors import ProtocolError
from gateway.port.queues import field_type
from gateway.port.streams import AGO, FIRST, LAST, NEXT, OFFSET, OFFSET_HEADER, TIME, StreamRead, age_ms

PREFIX: Final = "x-stream-"
X_OFFSET: Final = OFFSET_HEADER
X_FILTER: Final = "x-stream-filter"
X_UNFILTERED: Final = "x-stream-match-unfiltered"
ARGUMENTS: Final = frozenset({X_OFFSET, X_FILTER, X_UNFILTERED})
FILTERS_COUNT_MAX: Final = 1_000  # values of one filter


def stream_read(arguments: Table) -> StreamRead | None:
    """Returns the stream arguments of a consumer; None: nothing. Raises `ProtocolError` (PRECONDITION_FAILED)."""
    if ARGUMENTS.isdisjoint(arguments):
        return None
    place, value = _place(arguments.get(X_OFFSET, NEXT))
    unfiltered = arguments.get(X_UNFILTERED, False)
    if not isinstance(unfiltered, bool):
        raise _invalid(X_UNFILTERED, unfiltered)
    given = arguments.get(X_FILTER, [])
    values = [given] if isinstance(given, str) else given
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise _invalid(X_FILTER, given)
    if len(values) > FILTERS_COUNT_MAX:
        raise ProtocolError(PRECONDITION_FAILED, f"'{X_FILTER}' has at most {FILTERS_COUNT_MAX} values")
    return StreamRead(place=place, value=value, wanted=tuple(values), unfiltered=unfiltered)


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
    given = f"'{value[:64]}'" if isinstance(value, str) else f"a value of type {field_type(value)}"
    return ProtocolError(PRECONDITION_FAILED, f"invalid arg '{name}': {given} is not understood")
