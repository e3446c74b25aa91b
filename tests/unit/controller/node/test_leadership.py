"""A leader refuses a change for good only by metadata that has all that its own log has."""

from types import SimpleNamespace

import pytest

from controller.api.client import GroupConfig, NotElectable, Replica
from controller.api.commands import AddGroup, AlterSyncSet, ElectMaster, RegisterReplica
from controller.elections.registry import Registry
from controller.metadata.state import MetadataState
from controller.node.leadership import Leadership
from controller.wire.wire import NotLeading

pytestmark = pytest.mark.anyio

ALTER = AlterSyncSet(group=0, master=1, master_epoch=1, sync_epoch=1, new_set=(1, 2))


class SlowDriver:
    """A leader's driver, and its changes. `in_flight` are commands in its log that a barrier does not wait for."""

    def __init__(self, state, *in_flight):
        self.state = state
        self.in_flight = list(in_flight)
        self.status = SimpleNamespace(last_index=10, leader=None)
        self.barriers = 0

    async def barrier(self):
        self.barriers += 1

    @property
    def applied(self):
        return self.status.last_index - len(self.in_flight)

    async def next(self, _timeout_s):
        """Applies one, as the changes that are waited for."""
        self.state.apply(self.in_flight.pop(0))

    def propose(self, _data, *, term):
        done = SimpleNamespace(term=term)

        async def answer():
            return done

        return answer()


def leading(*in_flight):
    """Returns a leader of a group of two replicas, of which 1 is the master and 2 is silent."""
    state = MetadataState()
    state.apply(AddGroup(number=0, config=GroupConfig(replicas=2)))
    for id_ in (1, 2):
        replica = Replica(id=id_, node=f"n{id_}", address=f"n{id_}:1", check=str(id_))
        state.apply(RegisterReplica(group=0, replica=replica))
    state.apply(ElectMaster(group=0, candidate=1, master_epoch=0, sync_epoch=0))
    driver = SlowDriver(state, *in_flight)
    clock = {"clock_ms": lambda: 60_000, "now_ms": lambda: 60_000}
    leadership = Leadership(driver, SimpleNamespace(state=state), None, Registry(0), driver, **clock)
    leadership.term = 3
    return leadership, driver


async def test_a_replica_that_is_silent_is_not_taken_into_the_set():
    leadership, driver = leading()
    with pytest.raises(NotElectable, match="sends no heartbeats"):
        await leadership._apply(ALTER)
    assert driver.barriers == 1


async def test_a_change_that_its_first_copy_is_about_to_make_is_not_refused_for_good():
    """The master would go on without the replica, which is electable once the first copy is committed."""
    leadership, driver = leading(ALTER)
    await leadership._apply(ALTER)
    assert driver.state.groups[0].sync_set == (1, 2)


async def test_one_that_leads_no_more_does_not_wait_for_what_its_log_may_have_lost():
    leadership, driver = leading(ALTER)

    async def lose(_timeout_s):
        leadership.term = None

    driver.next = lose
    with pytest.raises(NotLeading):
        await leadership._apply(ALTER)
