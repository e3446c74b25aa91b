"""Following keys: stock is taken when the watch has begun, and again after each break, with pauses that grow."""

import asyncio
from contextlib import suppress

import pytest

from gateway.ownership.following import below, follow_keys
from store.api.keys import Change, Changes
from store.base.errors import StoreUnreachable
from store.base.streams import Backoff


def put(key):
    return Change(key=key, kind="put", value=b"", revision=1)


class Watches:
    """A store whose watches are played from a list: changes, or the error that breaks one."""

    def __init__(self, plays, log):
        self.keys, self._plays, self._log = self, plays, log

    def watch(self, start, end):
        self._log.append(("watch", start, end))
        play = self._plays.pop(0)
        if isinstance(play, Exception):
            raise play
        return self._played(play)

    async def _played(self, play):
        try:
            for one in play:
                if isinstance(one, Exception):
                    raise one
                yield Changes(changes=[put(one)], next=1)
        finally:
            self._log.append("closed")


class Ended(Exception):
    """No more is played."""


def followed(plays, *, looks=()):
    """Returns what happened, in order, and the pauses that were taken."""
    log, pauses, looks = [], [], list(looks)
    store = Watches(plays, log)

    async def look():
        log.append("look")
        if looks and (error := looks.pop(0)) is not None:
            raise error

    async def changed(changes):
        log.extend(change.key for change in changes)

    class Noted(Backoff):
        async def pause(self, wake=None):
            pauses.append(self.next_s())
            if not plays:
                raise Ended

    backoff = Noted(1.0, 4.0, uniform=lambda _low, high: high)
    following = follow_keys(
        store, below("a"), look=look, changed=changed, trouble="cannot be read now", backoff=backoff
    )
    with suppress(Ended):
        asyncio.run(following)
    return log, pauses


BREAKS = StoreUnreachable("away")


def test_stock_is_taken_after_the_watch_has_begun_and_before_its_changes():
    log, _ = followed([["a/1", "a/2"]])
    assert log == [("watch", "a/", "a0"), "look", "a/1", "a/2", "closed"]


@pytest.mark.parametrize("broken", [["a/1", BREAKS], ["a/1"]], ids=["error", "end"])
def test_stock_is_taken_again_after_a_break(broken):
    log, pauses = followed([broken, ["a/2"]])
    assert log == [("watch", "a/", "a0"), "look", "a/1", "closed", ("watch", "a/", "a0"), "look", "a/2", "closed"]
    assert pauses == [1.0, 1.0]  # it had worked


def test_pauses_grow_while_the_store_cannot_be_watched():
    _, pauses = followed([BREAKS, BREAKS, BREAKS, BREAKS, ["a/1"]])
    assert pauses == [1.0, 2.0, 4.0, 4.0, 1.0]


def test_pauses_grow_while_stock_cannot_be_taken_and_every_watch_is_closed():
    log, pauses = followed([["a/1"], ["a/2"]], looks=[BREAKS, BREAKS])
    assert pauses == [1.0, 2.0]
    assert log.count("look") == 2
    assert not {"a/1", "a/2"} & {one for one in log if isinstance(one, str)}


def test_pauses_differ_by_chance():
    backoff = Backoff(1.0, 4.0)
    assert len({backoff.next_s() for _ in range(8)}) > 4


def test_an_error_that_is_not_the_stores_ends_it_and_the_watch_is_closed():
    closed = []

    async def changed(_changes):
        raise ZeroDivisionError

    async def look():
        await asyncio.sleep(0)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(follow_keys(Watches([["a/1"]], closed), below("a"), look=look, changed=changed, trouble="x"))
    assert closed == [("watch", "a/", "a0"), "closed"]
