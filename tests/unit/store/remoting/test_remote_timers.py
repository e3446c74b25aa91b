"""The tests of test_store_timers.py with a store over the network."""

import test_store_timers

from tests.support.store.remote_kit import contract

contract(
    test_store_timers,
    globals(),
    without=[
        "test_after_a_crash_while_firing_it_has_fired_once",  # many stores, of which nothing more is asked
        # They look for what the store does within one turn of the loop.
        "test_a_cancelled_timer_never_fires",
        "test_what_the_views_hold_is_remembered_by_nobody_else",
    ],
)
