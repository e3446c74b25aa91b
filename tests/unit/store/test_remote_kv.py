"""The tests of test_store_kv.py with a store over the network."""

import test_store_kv
from remote_kit import contract

contract(test_store_kv, globals())
