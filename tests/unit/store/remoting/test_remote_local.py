"""The tests of test_store_local.py with a store over the network."""

import asyncio

import pytest
import test_store_local

from tests.support.store.remote_kit import ServedStore, contract

pytestmark = pytest.mark.slow

contract(
    test_store_local,
    globals(),
    without=[
        # They look for what the store's own loop does within one turn; test_remote_faults.py has their like.
        "test_listeners_see_what_comes_later_once_and_in_order",
        "test_answers_come_in_order_before_listeners_and_reads_see_them",
        "test_a_late_loop_does_not_make_a_compare_and_set_meet_itself",
        # It looks into the store's views, behind an error of which clients wait for another store.
        "test_records_that_the_views_cannot_decide_leave_no_hole_in_them",
    ],
)


@pytest.fixture(autouse=True)
def trimmed(monkeypatch):
    """Lets dispatched records go on a later turn of the store's loop; here many pass in between."""
    settle = test_store_local.StoreStages.settle

    async def settled(stores):
        while stores.stage == "dispatched" and stores.store.core.recent.runs():
            await asyncio.sleep(0.002)
        return await settle(stores)

    monkeypatch.setattr(test_store_local.StoreStages, "settle", settled)


@pytest.fixture(autouse=True)
def impatient(request, monkeypatch):
    """Shortens the wait for a store whose disk has failed: it never comes back."""
    if request.node.name == "test_a_failed_disk":
        monkeypatch.setattr(ServedStore, "WAIT_S", 1.0)


@pytest.fixture(params=["dispatched", "reopened"])
async def stage(request):
    """Reads in memory and on disk work in the same way."""
    return request.param
