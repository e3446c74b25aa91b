"""Leases, without a log."""

from store.api.handle import Grant
from store.format.records import GroupDeleted, QueueDeleted, Settled
from store.leases.leases import LeaseQueue
from store.leases.table import LeaseTable


def test_the_lowest_are_leased_first_and_only_once():
    leases = LeaseQueue()
    assert leases.lease(1, 2, 10) == [(0, 2)]
    assert leases.lease(2, 2, 10) == [(2, 4)]
    assert leases.waiting(10) == 6
    assert leases.requeue(1, [1, 3], delivered=True)
    assert leases.lease(2, 2, 10) == [(1, 2), (4, 5)]
    assert leases.held(1) == {0}
    assert leases.held(2) == {1, 2, 3, 4}


def test_deliveries_count_only_when_they_are_to():
    leases = LeaseQueue()
    leases.lease(1, 3, 3)
    leases.requeue(1, [0], delivered=True)
    leases.requeue(1, [1], delivered=False)
    assert [leases.deliveries(o) for o in range(3)] == [1, 0, 0]
    leases.lease(1, 3, 3)
    leases.requeue(1, [0, 1], delivered=True)
    assert [leases.deliveries(o) for o in range(3)] == [2, 1, 0]


def test_settled_is_never_leased_again():
    leases = LeaseQueue()
    leases.lease(1, 4, 4)
    assert leases.begin_settling(1, [0, 1, 3, 9]) == [(0, 2), (3, 4)]
    assert leases.begin_settling(1, [0]) == []
    leases.settle([(0, 2), (3, 4)])
    leases.requeue(1, [2], delivered=True)
    assert leases.lease(1, 9, 4) == [(2, 3)]
    assert leases.waiting(4) == 0


def test_what_could_not_be_settled_is_leased_again():
    leases = LeaseQueue()
    leases.lease(1, 4, 4)
    leases.restore(leases.begin_settling(1, [1, 2]), delivered=True)
    assert leases.lease(2, 9, 4) == [(1, 3)]
    assert leases.deliveries(1) == 1


def test_after_a_restart():
    leases = LeaseQueue([(0, 3), (5, 6)])
    assert leases.waiting(10) == 6
    assert leases.lease(1, 9, 10) == [(3, 5), (6, 10)]
    assert [leases.deliveries(o) for o in (3, 4, 6)] == [1, 1, 0]


def test_purge_leaves_what_is_leased():
    leases = LeaseQueue()
    leases.lease(1, 2, 10)
    assert leases.begin_purge(10) == [(2, 10)]
    assert leases.waiting(10) == 0
    leases.settle([(2, 10)])
    leases.requeue(1, [0, 1], delivered=True)
    assert leases.lease(2, 99, 10) == [(0, 2)]


def test_counts_of_settled_messages_are_forgotten():
    leases = LeaseQueue()
    leases.lease(1, 10, 10)
    leases.requeue(1, range(10), delivered=True)
    leases.settle([(0, 2)])
    leases.settle([(2, 1 << 40)])
    assert leases.deliveries(5) == 0


def test_an_owner_gives_back_everything_at_once():
    table = LeaseTable()
    one, two, three = (table.load(queue, []) for queue in (1, 2, 3))
    for leases, owner in ((one, 7), (two, 7), (three, 8)):
        leases.lease(owner, 5, 5)
        table.note(owner, leases)
    one.begin_settling(7, range(5))
    assert table.release(7) == [two]
    assert table.release(7) == []
    assert two.waiting(5) == 5
    assert three.waiting(5) == 0


def test_what_was_leased_for_a_time_outlives_its_owner():
    table = LeaseTable()
    leases = table.load(1, [])
    grant = Grant(queue=1, group="", owner=7, lease=1, leased_at=0, visible_at_ms=100, key=b"k")
    table.note(7, leases)
    leases.lease(7, 2, 9, grant)
    assert table.release(7) == []
    assert leases.lease(8, 9, 2) == []
    table.note(7, leases)
    leases.lease(7, 3, 9)
    assert table.release(7) == [leases]
    assert leases.lease(8, 9, 9) == [(2, 9)]
    assert table.expire(100) == ([leases], [leases])
    assert leases.lease(8, 9, 9) == [(0, 2)]
    assert [leases.deliveries(offset) for offset in (0, 2)] == [1, 1]


def test_a_deleted_queue_begins_anew():
    table = LeaseTable()
    table.load(1, [(0, 4)])
    table.load(1, [(0, 3)], "g")
    table.follow(QueueDeleted(1))
    assert table.get(1).waiting(4) == 4
    assert table.get(1, "g").waiting(4) == 4
    table.follow(Settled(9, ((0, 1),)))
    assert table.get(9) is None


def test_groups_are_leased_the_same_messages():
    table = LeaseTable()
    one, other = table.load(1, []), table.load(1, [(0, 2)], "g")
    assert one.lease(5, 9, 4) == [(0, 4)]
    assert other.lease(5, 9, 4) == [(2, 4)]
    table.follow(Settled(1, ((0, 4),), "g"))
    assert (one.waiting(9), other.waiting(9)) == (5, 5)
    table.follow(GroupDeleted("g"))
    assert table.get(1, "g").waiting(9) == 9
    table.follow(GroupDeleted(""))
    assert table.get(1) is one
