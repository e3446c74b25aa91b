"""The tests of test_store_kv_watch.py with a store over the network."""

import test_store_kv_watch

from tests.support.store.remote_kit import contract

contract(
    test_store_kv_watch,
    globals(),
    without=[
        # They look at the store's own memory, or for a refusal before the first changes are asked for.
        "test_what_is_past_and_what_is_new",
        "test_many_watchers_see_the_same",
        "test_retention_has_taken_it",
    ],
)
