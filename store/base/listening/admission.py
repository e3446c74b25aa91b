"""Admission: a connection is unauthenticated until a service has understood it.

gRPC tells its handlers nothing of the connection in front of it but the name of the socket by which it came, so each
connection that is passed on to gRPC has a name of its own, which no other process can know.
"""

from collections.abc import Callable
from typing import Any

_WAITING: dict[str, Callable[[], object]] = {}  # name -> admits it; <= the places of connections that are not admitted


def admit(context: Any) -> None:
    """Admits the connection that a call or a stream came by; `context` is gRPC's, or a pipe's. Again does nothing."""
    own = getattr(context, "admit", None)
    if own is not None:
        own()
        return
    peer = getattr(context, "peer", None)
    admitted = None if peer is None else _WAITING.pop(peer(), None)
    if admitted is not None:
        admitted()


class waiting_under:  # noqa: N801 - a context manager reads as a phrase
    """While it is entered, `admit` finds a connection by its name."""

    def __init__(self, name: str, admitted: Callable[[], object]) -> None:
        self._name, self._admitted = name, admitted

    def __enter__(self) -> None:
        _WAITING[self._name] = self._admitted

    def __exit__(self, *_: object) -> None:
        _WAITING.pop(self._name, None)
