"""Keys and values at the port: requests that adapters make by `Call`, and why they are refused.

A namespace is one of the users': a letter or digit, then letters, digits and `. _ -`, up to 28 in all. Others are
refused with MALFORMED, and those that the gateway keeps for itself with FORBIDDEN.

A watch is opened by `WatchKeys` and read by `NextChanges`, one at a time, whenever there is room for the answer.
"""

from collections.abc import Mapping, Sequence

import msgspec

from gateway.domain.errors import Cause, Refusal
from gateway.domain.keys import DEFAULT_NAMESPACE
from gateway.port.adapter import Request
from store.api.keys import EXISTS, Changes, Delete, Entry, Page, Put, Transacted


class KeyConflict(Refusal):
    """A compare that did not hold: `revision` is the key's, 0 when it is not there."""

    def __init__(self, key: str, revision: int) -> None:
        where = f"is at revision {revision}" if revision else "is not there"
        super().__init__(Cause.PRECONDITION, f"{key!r} {where}")
        self.key, self.revision = key, revision


class Compacted(Refusal):
    """A revision that is not kept any more; `earliest` is."""

    def __init__(self, detail: str, earliest: int) -> None:
        super().__init__(Cause.NOT_FOUND, detail)
        self.earliest = earliest


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """The condition on a key for a change of it (RFC 9110, 13.1.1 and 13.1.2); an empty tuple demands nothing.

    0 stands for a key that does not exist, `store.api.keys.EXISTS` for one that does.
    """

    any_of: tuple[int, ...] = ()  # its revision is one of these
    none_of: tuple[int, ...] = ()  # and none of these

    def holds(self, revision: int) -> bool:
        """Returns whether a key at this revision, 0 where there is none, is as demanded."""
        return (not self.any_of or _is_one_of(revision, self.any_of)) and not _is_one_of(revision, self.none_of)


def _is_one_of(actual: int, revisions: tuple[int, ...]) -> bool:
    return actual in revisions or (actual != 0 and EXISTS in revisions)


class GetKey(Request[Entry | None], frozen=True, kw_only=True):
    """Asks for one entry."""

    key: str
    namespace: str = DEFAULT_NAMESPACE


class StoreKey(Request[Transacted], frozen=True, kw_only=True):
    """Stores a value, for `ttl_ms` if given. Refused with `KeyConflict`, QUOTA."""

    key: str
    value: bytes
    ttl_ms: int | None = None
    match: Match = Match()
    namespace: str = DEFAULT_NAMESPACE


class RemoveKey(Request[bool], frozen=True, kw_only=True):
    """Removes a key. Answers whether it was there. Refused with `KeyConflict`."""

    key: str
    match: Match = Match()
    namespace: str = DEFAULT_NAMESPACE


class TransactKeys(Request[Transacted], frozen=True, kw_only=True):
    """Compares revisions, then does all or nothing. Refused with `KeyConflict`, QUOTA, TOO_LARGE."""

    compares: Mapping[str, int]
    operations: Sequence[Put | Delete]
    namespace: str = DEFAULT_NAMESPACE


class ListKeys(Request[Page], frozen=True, kw_only=True):
    """Asks for a page of a range. Refused with `Compacted` for a revision that is not held."""

    start: str = ""
    end: str | None = None
    after: str | None = None
    limit: int = 1_000
    at_revision: int | None = None
    namespace: str = DEFAULT_NAMESPACE


class CountKeys(Request[int], frozen=True, kw_only=True):
    """Asks how many keys a range has."""

    start: str = ""
    end: str | None = None
    namespace: str = DEFAULT_NAMESPACE


class HoldKeys(Request[int], frozen=True, kw_only=True):
    """Keeps the state as it is for `ListKeys`, as `KeyCalls.hold` says. Answers its revision."""


class ReleaseKeys(Request[None], frozen=True, kw_only=True):
    """Releases a state that this connection holds."""

    revision: int


class WatchKeys(Request[int], frozen=True, kw_only=True):
    """Begins to watch a range from a revision on (None, or one that is not there yet: from now).

    Refused with `Compacted`, QUOTA.

    Returns the revision behind which it begins: a watch from the next one on has the same changes.
    """

    watch: int  # chosen by the adapter; unique in its connection
    start: str = ""
    end: str | None = None
    from_revision: int | None = None
    namespace: str = DEFAULT_NAMESPACE


class NextChanges(Request[Changes], frozen=True, kw_only=True):
    """Asks for the changes since the last answer, and waits for one.

    Refused with `Compacted`, and with UNAVAILABLE when the watch ends meanwhile.
    """

    watch: int


class UnwatchKeys(Request[None], frozen=True, kw_only=True):
    """Ends a watch."""

    watch: int
