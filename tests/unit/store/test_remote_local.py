"""The tests of test_store_local.py with a store over the network."""

import test_store_local
from remote_kit import contract

contract(
    test_store_local,
    globals(),
    without=[
        # They look for what the store's own loop does within one turn; test_remote_store.py has their like.
        "test_listeners_see_what_comes_later_once_and_in_order",
        "test_answers_come_in_order_before_listeners_and_reads_see_them",
        "test_a_late_loop_does_not_make_a_compare_and_set_meet_itself",
    ],
)
