"""Requests that wait, and those whose answer nobody wants any more."""

import asyncio

from gateway.base.waits import Waits


class Connection:
    gone = ended = False


def test_a_request_that_waits_is_woken_when_it_is_given_up():
    waits, connection, woken = Waits(), Connection(), asyncio.Event()
    with waits.waiting(connection, 1, woken) as wanted, waits.waiting(connection, 2, asyncio.Event()) as other:
        assert wanted()
        waits.give_up(connection, 1)
        assert woken.is_set()
        assert (wanted(), other()) == (False, True)
        connection.gone = True
        assert not other()


def test_a_request_that_is_given_up_before_it_begins_does_not_wait():
    waits, connection, woken = Waits(), Connection(), asyncio.Event()
    waits.give_up(connection, 1)
    with waits.waiting(connection, 1, woken) as wanted, waits.waiting(connection, 2, asyncio.Event()) as other:
        assert woken.is_set()
        assert (wanted(), other()) == (False, True)
    waits.answered(connection, 1)
    with waits.waiting(connection, 1, asyncio.Event()) as wanted:
        assert wanted(), "numbers may come again"
    waits.answered(connection, 1)
