"""Errors on their way to a peer: a gRPC status with a text, and the error itself under the trailing metadata key."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NoReturn, TypeVar

import grpc
import msgspec

ERROR_KEY = "headgate-error-bin"
OWN_FAULTS = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS})

ErrorT = TypeVar("ErrorT", bound=Exception)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, str | tuple[int | str | None, ...]]).decode


class ErrorTable(Generic[ErrorT]):
    """The errors of one protocol: the classes that a peer knows, and the gRPC status of each.

    `root` is the class of all errors that may end a call, `unreachable` makes the one of a peer that does not answer,
    or that has refused a call with an error of none of `kinds`.
    `statuses` must name a class above every error that is refused. `fields` has the attributes that an error is made
    from, where that is more than its text, and `makers` the functions that make it from them, where its class does not.

    An error travels as MessagePack `(class name, (value, ...))`, or with `text_chars_max` as `(class name, text)`, with
    a text of so many characters at most.
    """

    def __init__(
        self,
        root: type[Exception],
        kinds: Iterable[type[ErrorT]],
        statuses: Mapping[type[Exception], grpc.StatusCode],
        *,
        unreachable: Callable[[str], Exception],
        fields: Mapping[type[ErrorT], Sequence[str]] | None = None,
        makers: Mapping[type[ErrorT], Callable[..., ErrorT]] | None = None,
        text_chars_max: int | None = None,
    ) -> None:
        self.root, self.unreachable = root, unreachable
        self._kinds = {kind.__name__: kind for kind in kinds}
        self.statuses, self._fields, self._makers = statuses, fields or {}, makers or {}
        self._text_chars_max = text_chars_max

    def status_of(self, error: Exception) -> grpc.StatusCode:
        """Returns the gRPC status of an error: that of the nearest of its classes that has one."""
        return next(self.statuses[kind] for kind in type(error).__mro__ if kind in self.statuses)

    def describe(self, error: Exception) -> bytes:
        """Returns an error as it travels: the name of the nearest of its classes that a peer knows, and its values.

        An error whose root alone a peer knows travels under its own name, which says more.
        """
        known = (kind for kind in type(error).__mro__ if self._kinds.get(kind.__name__) is kind)
        kind: Any = next(known, self.root)
        kind = type(error) if kind is self.root else kind
        names = self._fields.get(kind)
        values = [_sound(str(error))] if names is None else [getattr(error, name) for name in names]
        if self._text_chars_max is None:
            return _encode((kind.__name__, values))
        return _encode((kind.__name__, _sound(values[0])[: self._text_chars_max]))

    def revive(self, described: bytes | memoryview | msgspec.Raw) -> ErrorT | None:
        """Returns the error that `describe` was given; None when its class is not known here."""
        try:
            name, values = _decode(described)
            kind = self._kinds[name]
            values = (values,) if isinstance(values, str) else values
            if len(values) != len(self._fields.get(kind, ("text",))):
                return None
            return self._makers.get(kind, kind)(*values)
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
            return None

    def text_of(self, described: bytes | memoryview | msgspec.Raw) -> str:
        """Returns the text of an error that `revive` does not know."""
        try:
            name, values = _decode(described)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return "an error that cannot be read"
        return f"{name}: {values if isinstance(values, str) else ', '.join(map(str, values))}"

    def ended_with(self, metadata: Any) -> Exception | None:
        """Returns the error that the trailing metadata of a call carry; None when there is none of this protocol."""
        for key, described in metadata or ():
            if key == ERROR_KEY and isinstance(revived := self.revive(described), self.root):
                return revived
        return None

    async def refuse(self, context: Any, error: Exception, *, logger: logging.Logger | None = None) -> NoReturn:
        """Ends a call with an error. `logger` gets those that are this process's own fault."""
        status, text = self.status_of(error), f"{type(error).__name__}: {error}"
        if logger is not None and status in OWN_FAULTS:
            logger.error("a call failed: %s", text)
        await context.abort(status, text, trailing_metadata=((ERROR_KEY, self.describe(error)),))
        raise AssertionError("abort raises")


def _sound(text: str) -> str:
    return text.encode(errors="replace").decode()
