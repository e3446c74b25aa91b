"""The tests of test_store_kv.py with a store over the network."""

import pytest
import test_store_kv

from tests.support.store.remote_kit import contract

pytestmark = pytest.mark.slow

contract(test_store_kv, globals())


@pytest.fixture(params=["dispatched", "reopened"])
async def stage(request):
    """Reads in memory and on disk work in the same way."""
    return request.param
