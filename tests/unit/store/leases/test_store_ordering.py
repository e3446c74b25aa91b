"""Keys in order, without messages."""

import random

from store.leases.ordering import KeyOrder


def test_one_message_of_a_key_is_out_at_a_time():
    order = KeyOrder()
    assert [order.meet(offset, key) for offset, key in enumerate((7, 8, 7, 7, 0, 0))] == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]
    assert (order.passed_over, order.waiting) == (2, 2)
    assert order.take(9) == []
    order.settle([(0, 1)])
    assert order.take(9) == [2]
    assert (order.passed_over, order.waiting) == (1, 1)
    order.settle([(1, 2)])
    assert order.take(9) == []
    assert order.come_back(2)
    assert order.take(9) == [2]
    order.settle([(0, 1 << 40)])
    assert (order.passed_over, order.waiting) == (0, 0)
    assert not order.come_back(2)
    assert not order.come_back(4)


def test_the_lowest_come_first():
    order = KeyOrder()
    for offset in range(20):
        order.meet(offset, 1 + offset % 10)
    order.settle([(3, 7)])
    assert order.take(2) == [13, 14]
    order.come_back(14)
    assert order.take(9) == [14, 15, 16]


def test_one_that_was_not_looked_at_before_comes_in_front():
    order = KeyOrder()
    order.meet(5, 7)
    order.meet(6, 7)
    order.come_back(5)
    assert not order.meet(3, 7)
    assert order.take(9) == [3]
    order.settle([(3, 4)])
    assert order.take(9) == [5]


def test_claims():
    order = KeyOrder()
    for offset in range(3):
        order.meet(offset, 7)
    order.come_back(0)
    assert order.claim(0)
    assert order.take(9) == []
    assert order.claim(0)
    assert order.claim(2)
    assert 2 not in order
    assert not order.claim(9)
    order.settle([(0, 1)])
    assert order.take(9) == [1]


def test_all_that_wait_can_be_taken_away():
    order = KeyOrder()
    for offset in range(6):
        order.meet(offset, 1 + offset % 3)
    order.come_back(1)
    assert order.remove_waiting() == [1, 3, 4, 5]
    assert order.waiting == 0
    order.settle([(0, 1)])
    assert order.take(9) == []
    assert order.meet(9, 1)


def test_against_a_plain_list():
    """Whatever happens, the lowest unsettled message of a key is the one that is out, or may be leased."""
    chance = random.Random(3)
    for _ in range(200):
        order, keys, out = KeyOrder(), {}, set()
        for _ in range(60):
            match chance.choice(["meet", "take", "back", "settle"]):
                case "meet":
                    offset, key = len(keys), chance.randint(1, 4)
                    free = not any(k == key for k in keys.values() if k)
                    keys[offset] = key
                    assert order.meet(offset, key) is free
                    if free:
                        out.add(offset)
                case "take":
                    busy = {keys[offset] for offset in out}
                    firsts = {}
                    for offset, key in keys.items():
                        if key:
                            firsts.setdefault(key, offset)
                    expected = sorted(offset for key, offset in firsts.items() if key not in busy)[:2]
                    assert order.take(2) == expected
                    out.update(expected)
                case "back" if out:
                    offset = chance.choice(sorted(out))
                    out.remove(offset)
                    assert order.come_back(offset)
                case "settle" if out:
                    offset = chance.choice(sorted(out))
                    out.remove(offset)
                    keys[offset] = 0
                    order.settle([(offset, offset + 1)])
            known = [offset for offset, key in keys.items() if key]
            assert order.waiting == len(known) - len(out)
