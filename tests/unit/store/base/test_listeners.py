"""Listeners: each is told until it stops, whatever becomes of the others."""

from store.base.listeners import Listeners


def test_listeners_are_told_in_the_order_in_which_they_came_until_they_stop():
    told, listeners = [], Listeners[int]("numbers")
    assert not listeners
    stop = listeners.add(lambda number: told.append(("first", number)))
    listeners.add(lambda number: told.append(("second", number)))
    listeners.tell(1)
    stop()
    stop()
    listeners.tell(2)
    assert told == [("first", 1), ("second", 1), ("second", 2)]
    assert listeners


def test_a_listener_that_fails_is_logged_and_hurts_no_other(caplog):
    told, listeners = [], Listeners[[]]("the weather")

    def fail():
        raise RuntimeError("broken on purpose")

    listeners.add(fail)
    listeners.add(lambda: told.append("rain"))
    listeners.tell()
    assert told == ["rain"]
    assert [record.message for record in caplog.records] == ["a listener on the weather has failed"]


def test_a_listener_may_stop_itself_and_others_while_all_are_told():
    told, listeners = [], Listeners[[]]("the weather")

    def stop_both():
        told.append("stopped")
        stop_first()
        stop_last()

    stop_first = listeners.add(stop_both)
    stop_last = listeners.add(lambda: told.append("last"))
    listeners.tell()
    listeners.tell()
    assert told == ["stopped", "last"]
