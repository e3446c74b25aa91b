"""The client's methods, made from the rows of `store.rpc.table`."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from store.base.errors import StoreError
from store.remoting.caller import nothing
from store.remoting.core import decoder
from store.rpc.table import CALLS, Kind, Row, Shape
from store.rpc.wire import failure_of, revive

T = TypeVar("T")

_handled: Callable[[Any], list[tuple[str | None, bytes | None]]] = decoder(list[tuple[str | None, bytes | None]])
_ROWS = {row.method.__qualname__: row for row in CALLS.values() if row.method is not None}


def stubs(kind: type[T]) -> type[T]:
    """Gives a class of `_remote` the methods of its protocol that it lacks, each from its row of the table.

    Methods that it has already are spelled by hand. A method that is neither stops the import.
    """
    protocol = kind.__mro__[1]
    for name, method in vars(protocol).items():
        if name.startswith("_") or name in vars(kind):
            continue
        row = _ROWS.get(f"{protocol.__name__}.{name}")
        assert row is not None, f"{protocol.__name__}.{name} needs a row in store.rpc.table, or is spelled by hand"
        assert inspect.iscoroutinefunction(method), f"{kind.__name__}.{name} has to be spelled by hand"
        setattr(kind, name, _stub(row, method))
    return kind


def _stub(row: Row, method: Callable[..., Any]) -> Callable[..., Any]:
    shape = Shape(row)
    pack, name = shape.pack, row.name
    decode = nothing if shape.answer is None else _outcomes if row.kind is Kind.HANDLED else decoder(shape.answer)

    async def call(self: Any, *given: Any, **named: Any) -> Any:
        return await self._remote.call(name, pack(given, named), decode)

    call.__name__, call.__qualname__, call.__doc__ = method.__name__, method.__qualname__, method.__doc__
    return call


def _outcomes(body: msgspec.Raw) -> list[str | StoreError | None]:
    """Decodes the outcome of each of some handles."""
    return [text if described is None else _error(described) for text, described in _handled(body)]


def _error(described: bytes) -> StoreError:
    error = revive(described)
    return error if isinstance(error, StoreError) else failure_of(described, "a handle")
