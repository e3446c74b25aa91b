"""Masters that the controllers hear and nobody else reaches: when they are replaced, by whom, and how often."""

import itertools
import random

import msgspec
import pytest

from controller.api.client import ControllerOverloaded, NotElectable, ReplicaInSync
from controller.complaints import ledger
from controller.complaints.ledger import BACKOFF_MIN_MS, CALM_MS, LEASE_MS
from controller.complaints.messages import COMPLAIN_MS, PROXY_COMPLAIN_MS, Complaint, Report
from controller.complaints.policy import LONE_PROXY_MS, SLOW_MS
from controller.elections.registry import TICK_MS
from controller.elections.serving import Serving
from controller.wire.wire import decode_request, encode
from tests.support.cluster.grey_rig import GreyRig
from tests.support.controller.elections_rig import ElectionsRig

pytestmark = pytest.mark.slow

SOON_MS = PROXY_COMPLAIN_MS + 1_500  # an interval of reports, and some ticks
NET_S = 600  # of failing links in the simulation
ELECTIONS_COUNT_MAX = 2 + NET_S // 60  # in that time: the back-off doubles up to two minutes


# ---- who is replaced


@pytest.mark.parametrize("acknowledge", ["all_in_sync", "quorum"])
def test_a_master_that_only_the_controllers_reach_is_succeeded(acknowledge):
    rig = GreyRig(acknowledge=acknowledge)
    rig.isolate(1)
    rig.run(SOON_MS)
    assert rig.group.master in {2, 3}
    rig.run(20_000)
    assert rig.reached()
    assert rig.group.master_epoch <= 3  # by quorum it takes two


@pytest.mark.parametrize("both", [True, False])
def test_replicas_that_are_cut_off_from_a_master_that_proxies_reach_replace_it_when_it_cannot_write(both):
    rig = GreyRig()
    for id_ in (2, 3):
        rig.cut |= {(1, id_), (id_, 1)} if both else {(1, id_)}
    rig.run(SOON_MS)
    assert rig.group.master in {2, 3}
    assert rig.reached()


def test_replicas_alone_do_not_replace_a_master_that_goes_on_writing_for_the_proxies():
    rig = GreyRig(min_in_sync=1)
    rig.isolate(1, others=[2, 3])
    rig.run(20_000)
    assert rig.group.master == 1


def test_one_replica_of_two_does_not_replace_its_master():
    rig = GreyRig()
    rig.isolate(1, others=[2])
    rig.run(20_000)
    assert not rig.commands


def test_a_replica_that_reaches_nobody_is_cut_off_itself():
    rig = GreyRig(2)
    rig.isolate(2)
    rig.run(20_000)
    assert not rig.commands


def test_proxies_that_reach_a_replica_and_not_the_master_replace_it_although_replicas_reach_it():
    rig = GreyRig(proxies=3)
    rig.isolate(1, others=["p1", "p2"])
    rig.run(SOON_MS)
    assert rig.group.master in {2, 3}
    assert rig.reached()


def test_a_minority_of_the_proxies_replaces_nobody():
    rig = GreyRig(proxies=3)
    rig.isolate(1, others=["p1"])
    rig.run(20_000)
    assert not rig.commands


def test_the_only_proxy_is_believed_later_when_replicas_contradict():
    rig = GreyRig(proxies=1)
    rig.isolate(1, others=["p1"])
    rig.run(LONE_PROXY_MS - 1_000)
    assert not rig.commands
    rig.run(3_000)
    assert rig.group.master in {2, 3}


def test_nobody_is_elected_whom_those_that_complain_do_not_reach():
    rig = GreyRig()
    rig.isolate(1, others=["p1", "p2"])
    rig.isolate(2, others=["p1", "p2"])
    rig.run(SOON_MS)
    assert rig.group.master == 3
    other = GreyRig()
    for id_ in (1, 2, 3):
        other.isolate(id_, others=["p1", "p2"])  # it is the proxies that are cut off
    other.run(60_000)
    assert not other.commands


def test_a_new_leader_waits_until_all_proxies_have_reported():
    rig = GreyRig(proxies=3)
    rig.isolate(1, others=["p1", "p2"])
    rig.run(1_000)
    rig.elections.began(rig.now)
    rig.run(SOON_MS - 1_500)
    assert not rig.commands
    rig.run(4_000)
    assert rig.group.master != 1


# ---- what complaints are worth


def test_a_complaint_about_an_epoch_that_is_over_counts_for_nothing():
    rig = GreyRig(proxies=2)
    old = Complaint(group=0, epoch=rig.group.master_epoch - 1, silent_ms=60_000, reaches=(2, 3))
    for proxy in rig.proxies:
        rig.registry.complaints.take(Report(proxy=proxy, complaints=(old,)), rig.now)
    rig.up(2, 3, complaint=old)
    ElectionsRig.tick(rig)
    assert not rig.commands


def test_complaints_end_by_themselves():
    rig = GreyRig()
    rig.isolate(1, others=["p1", "p2"])
    rig.run(COMPLAIN_MS)
    rig.proxies = []  # they are gone, and with them nobody is left who complains
    rig.run(LEASE_MS)
    assert rig.registry.route(0, rig.group, rig.now).trouble is None


def test_reports_are_bounded(monkeypatch):
    monkeypatch.setattr(ledger, "PROXIES_MAX", 2)
    reports = ledger.Reports()
    reports.take(Report(proxy="a"), 0)
    reports.take(Report(proxy="b"), 1_000)
    reports.take(Report(proxy="a"), 2_000)
    with pytest.raises(ControllerOverloaded, match="limit of 2 reporting proxies"):
        reports.take(Report(proxy="c"), 2_000)
    reports.take(Report(proxy="c"), 1_000 + LEASE_MS)
    assert reports.in_force(1_000 + LEASE_MS).keys() == {"a", "c"}


def test_a_report_travels_and_what_no_proxy_says_is_refused():
    report = Report(proxy="p", complaints=(Complaint(group=1, epoch=2, silent_ms=3, reaches=(1, 2)),))
    assert decode_request(encode(report)) == report
    many = msgspec.structs.replace(report.complaints[0], reaches=tuple(range(17)))
    for wrong in (Report(proxy=""), Report(proxy="p", complaints=(many,))):
        with pytest.raises(Exception, match="not what is expected"):
            decode_request(encode(wrong))


def test_an_operator_sees_who_complains_and_why_the_master_stays():
    rig = GreyRig()
    rig.isolate(1)
    rig.up(2, 3, full=True)
    rig.run(SOON_MS)
    trouble = rig.registry.route(0, rig.group, rig.now).trouble
    assert (trouble.replicas, trouble.replicas_heard, trouble.proxies, trouble.proxies_heard) == (2, 2, 2, 2)
    assert trouble.silent_ms >= COMPLAIN_MS
    assert trouble.stays == "no other replica in sync is within reach of those that complain, with room on its disk"


def test_a_group_whose_master_nobody_reaches_is_not_said_to_be_served():
    rig = GreyRig()
    serving = Serving(rig.registry)
    assert serving.ask(0, rig.group, rig.now).served
    rig.isolate(1)
    rig.up(2, 3, full=True)
    rig.run(SOON_MS)
    assert not serving.ask(0, rig.group, rig.now).served


def test_replicas_that_live_stay_in_the_set_while_the_master_may_be_cut_off_itself():
    """With a set of the master alone nobody could be elected in its place."""
    rig = GreyRig(min_in_sync=1)
    rig.isolate(1)
    rig.run(1_000)
    with pytest.raises(ReplicaInSync, match=r"\[2, 3\] are alive, and most of the replicas do not reach the master"):
        rig.alter((1,))
    rig.run(SOON_MS)
    assert rig.group.master in {2, 3}
    other = GreyRig(min_in_sync=1)
    other.isolate(1, others=[2])
    other.run(3_000)
    assert 2 not in other.group.sync_set


# ---- slow disks


def test_a_master_with_a_slow_disk_is_succeeded_by_one_whose_disk_is_not():
    rig = GreyRig()
    rig.up(1, slow=True)
    rig.up(2, slow=True)
    rig.run(SLOW_MS - TICK_MS)
    assert not rig.commands
    rig.run(3 * TICK_MS)
    assert rig.group.master == 3


def test_where_all_disks_are_slow_the_master_stays():
    rig = GreyRig()
    rig.up(1, 2, 3, slow=True)
    rig.run(60_000)
    assert not rig.commands


# ---- damping


def test_the_next_election_by_complaint_waits_longer_each_time_until_all_is_calm():
    rig = GreyRig()
    moved = []
    for _ in range(4):
        before, rig.cut = rig.group.master, set()
        rig.run(3_000)  # all are in sync
        rig.isolate(before)
        since = rig.now
        while rig.group.master == before:
            rig.run(TICK_MS)
            assert rig.now - since < CALM_MS
        moved.append(rig.now)
    waits = [later - earlier for earlier, later in itertools.pairwise(moved)]
    assert all(wait >= BACKOFF_MIN_MS << n for n, wait in enumerate(waits))
    rig.cut = set()
    rig.run(CALM_MS + 1_000)
    before = rig.group.master
    rig.isolate(before)
    rig.run(SOON_MS)
    assert rig.group.master != before


@pytest.mark.slow
def test_what_does_not_help_is_not_tried_for_ever():
    """Complainers who say that they reach a replica, and do not when it is master."""
    rig = GreyRig()
    honest = rig.complaint

    def complaint(who):
        found = honest(who)
        return found if found is None else msgspec.structs.replace(found, reaches=(1, 2, 3))

    rig.complaint = complaint
    for id_ in (1, 2, 3):
        rig.isolate(id_, others=["p1", "p2"])
    rig.run(600_000)
    assert 1 <= len(rig.commands) <= 4
    late = len(rig.commands)
    rig.run(600_000)
    assert len(rig.commands) == late


@pytest.mark.parametrize("seed", range(20))
def test_links_that_fail_one_way_by_chance_make_few_elections(seed):
    chance = random.Random(seed)
    rig = GreyRig(chance.choice([3, 3, 5]), proxies=chance.choice([1, 2, 4]))
    everybody = [*rig.said, *rig.proxies]
    reached = 0
    for _ in range(NET_S):
        if chance.random() < 0.2:
            rig.cut.add(tuple(chance.sample(everybody, 2)))
        if rig.cut and chance.random() < 0.25:
            rig.cut.remove(chance.choice(sorted(rig.cut, key=str)))
        rig.run(1_000)
        reached += rig.reached()
    assert len(rig.commands) <= ELECTIONS_COUNT_MAX
    rig.cut.clear()
    rig.run(5_000)
    assert rig.reached()


# ---- by an operator


@pytest.mark.parametrize("acknowledge", ["all_in_sync", "quorum"])
def test_elect_without_a_name_always_elects_another_one(acknowledge):
    """A master that hangs and is heard: the command had no effect, and was done."""
    rig = ElectionsRig(in_sync=3, acknowledge=acknowledge)
    rig.up(1, log_end=100)  # of a majority it has the longest log
    rig.state.apply(rig.elections.decide(0, None, rig.now, 0, master_epoch=1))
    rig.run(TICK_MS)
    assert rig.group.master in {2, 3}
    epoch = rig.group.master_epoch
    assert rig.elections.decide(0, None, rig.now, 0, master_epoch=1) is None  # the answer was lost
    assert rig.group.master_epoch == epoch


def test_elect_says_why_not():
    rig = ElectionsRig(in_sync=1)
    with pytest.raises(NotElectable, match=r"replica 1 stays master in epoch 1.*behind: \[2, 3\]"):
        rig.elections.decide(0, None, rig.now, 0)
    with pytest.raises(NotElectable, match="replica 1 is already master of store group 0 in epoch 1; name another"):
        rig.elections.decide(0, 1, rig.now, 0)


def test_an_unclean_election_that_an_operator_accepts_is_for_when_nobody_in_sync_is_left(caplog):
    rig = ElectionsRig(in_sync=2)
    with pytest.raises(NotElectable, match=r"nothing needs to be lost, as replicas in sync are alive \(1, 2\)"):
        rig.elections.decide(0, 3, rig.now, 0, unclean=True)
    rig.down(1, 2)
    rig.run(3_000)
    with pytest.raises(NotElectable, match="not in sync"):
        rig.elections.decide(0, 3, rig.now, 0)
    rig.state.apply(rig.elections.decide(0, None, rig.now, 0, unclean=True))
    assert (rig.group.master, rig.group.sync_set) == (3, (3,))
    assert any(record.levelname == "CRITICAL" for record in caplog.records)
