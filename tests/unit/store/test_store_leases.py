"""Leases, without a log."""

from store.leases import LeaseQueue, LeaseTable


def test_the_lowest_are_lent_first_and_only_once():
    leases = LeaseQueue()
    assert leases.lend(1, 2, 10) == [(0, 2)]
    assert leases.lend(2, 2, 10) == [(2, 4)]
    assert leases.waiting(10) == 6
    assert leases.requeue(1, [1, 3], delivered=True)
    assert leases.lend(2, 2, 10) == [(1, 2), (4, 5)]
    assert leases.held(1) == {0}
    assert leases.held(2) == {1, 2, 3, 4}


def test_deliveries_count_only_when_they_are_to():
    leases = LeaseQueue()
    leases.lend(1, 3, 3)
    leases.requeue(1, [0], delivered=True)
    leases.requeue(1, [1], delivered=False)
    assert [leases.deliveries(o) for o in range(3)] == [1, 0, 0]
    leases.lend(1, 3, 3)
    leases.requeue(1, [0, 1], delivered=True)
    assert [leases.deliveries(o) for o in range(3)] == [2, 1, 0]


def test_settled_is_never_lent_again():
    leases = LeaseQueue()
    leases.lend(1, 4, 4)
    assert leases.begin_settling(1, [0, 1, 3, 9]) == [(0, 2), (3, 4)]
    assert leases.begin_settling(1, [0]) == []
    leases.settle([(0, 2), (3, 4)])
    leases.requeue(1, [2], delivered=True)
    assert leases.lend(1, 9, 4) == [(2, 3)]
    assert leases.waiting(4) == 0


def test_what_could_not_be_settled_is_lent_again():
    leases = LeaseQueue()
    leases.lend(1, 4, 4)
    leases.restore(leases.begin_settling(1, [1, 2]), delivered=True)
    assert leases.lend(2, 9, 4) == [(1, 3)]
    assert leases.deliveries(1) == 1


def test_after_a_restart():
    leases = LeaseQueue([(0, 3), (5, 6)])
    assert leases.waiting(10) == 6
    assert leases.lend(1, 9, 10) == [(3, 5), (6, 10)]
    assert [leases.deliveries(o) for o in (3, 4, 6)] == [1, 1, 0]


def test_purge_leaves_what_is_lent():
    leases = LeaseQueue()
    leases.lend(1, 2, 10)
    assert leases.begin_purge(10) == [(2, 10)]
    assert leases.waiting(10) == 0
    leases.settle([(2, 10)])
    leases.requeue(1, [0, 1], delivered=True)
    assert leases.lend(2, 99, 10) == [(0, 2)]


def test_counts_of_settled_messages_are_forgotten():
    leases = LeaseQueue()
    leases.lend(1, 10, 10)
    leases.requeue(1, range(10), delivered=True)
    leases.settle([(0, 2)])
    leases.settle([(2, 1 << 40)])
    assert leases.deliveries(5) == 0


def test_an_owner_gives_back_everything_at_once():
    table = LeaseTable()
    for queue in (1, 2, 3):
        table.load(queue, [])
    table.lend(1, 7, 5, 5)
    table.lend(2, 7, 5, 5)
    table.lend(3, 8, 5, 5)
    table.get(1).begin_settling(7, range(5))
    assert table.release(7) == [2]
    assert table.release(7) == []
    assert table.get(2).waiting(5) == 5
    assert table.get(3).waiting(5) == 0


def test_a_deleted_queue_begins_anew():
    table = LeaseTable()
    table.load(1, [(0, 4)])
    table.forget(1)
    assert table.get(1).waiting(4) == 4
    table.settle(9, [(0, 1)])
    assert table.get(9) is None
