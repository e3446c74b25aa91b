"""The tests of test_store_waiting.py with a store over the network."""

import test_store_waiting

from tests.support.store.remote_kit import contract

contract(
    test_store_waiting,
    globals(),
    without=[
        # It looks at the store's own memory.
        "test_many_wait_and_some_give_up",
    ],
)
