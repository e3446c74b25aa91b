"""The tests of test_store_leasing.py with a store over the network."""

import test_store_leasing

from tests.support.store.remote_kit import contract

contract(
    test_store_leasing,
    globals(),
    without=[
        # They look for what the store does within one turn, or turn its clock while something is on the way.
        "test_the_policys_delays_grow",
        "test_deadlines_that_mean_nothing_any_more_are_forgotten",  # one after the other, ten thousand times
        "test_a_message_that_comes_back_too_often_is_given_up",
        "test_what_cannot_be_given_up_comes_again",
        "test_a_key_whose_message_is_given_up_goes_on",
    ],
)
