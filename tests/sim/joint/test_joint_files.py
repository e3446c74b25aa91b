"""Files of controllers and small files of replicas that are damaged in a whole cluster: by chance, and as stories."""

import random
import shutil

import pytest

from controller.raft import HardState, Ready
from tests.sim.joint.joint_cluster import GROUP_COUNT, End
from tests.sim.joint.joint_history import BLOCK, FIRST_SEED, SEEDS, play, steady
from tests.sim.joint.joint_raft_files import FiledDisk, RaftFileHarm
from tests.sim.joint.joint_small_files import EPOCHS, SmallFileHarm, SmallFiles

PATIENCE_S = 10.0
ELECTED_S = 4.0  # a failover at worst
FILE_SEEDS = max(SEEDS // 10, 1)  # they take longer


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + FILE_SEEDS, BLOCK))
def test_what_is_acknowledged_is_there_whatever_files_are_damaged(first):
    failed: dict[int, Exception] = {}
    for seed in range(first, min(first + BLOCK, FIRST_SEED + FILE_SEEDS)):
        try:
            play(seed, files=True)
        except Exception as error:  # noqa: BLE001 - all that fail are named
            failed[seed] = error
    if failed:
        error = next(iter(failed.values()))
        error.add_note(f"seeds that fail with damaged files: {', '.join(map(str, failed))}")
        raise error


def filed(directory, incarnation="c1.0"):
    """Returns a controller's disk with some votes."""
    directory.mkdir()
    disk = FiledDisk(directory, 1, None, incarnation, random.Random(1))
    for term in range(1, 9):
        disk.save(Ready(hard_state=HardState(term=term, vote=2, commit=0), must_sync=True))
    return disk


def test_a_directory_that_is_taken_for_sound_and_holds_an_older_state_is_found_out(tmp_path):
    """The check is real: database and seal of before, both, are what no storage can tell from the newest."""
    disk = filed(tmp_path / "a")
    older = disk.files()
    disk.save(Ready(hard_state=HardState(term=9, vote=3, commit=0), must_sync=True))
    disk.harmed = lambda _harm, _data, _name: (
        (disk.directory / "raft.seal").write_bytes(older["raft.seal"]) and (older["data.mdb"])
    )
    with pytest.raises(AssertionError, match="takes damaged files for sound"):
        disk.harm(RaftFileHarm.LOST, "data.mdb")


def test_files_that_hold_less_than_was_saved_are_found_out_when_the_controller_falls(tmp_path):
    disk = filed(tmp_path / "a")
    disk.save = super(FiledDisk, disk).save
    disk.save(Ready(hard_state=HardState(term=9, vote=3, commit=0), must_sync=True))
    with pytest.raises(AssertionError, match="other files than it wrote"):
        disk.fall(power=False)
    disk.close()
    shutil.rmtree(tmp_path / "a")


def refused(history, controller):
    """Damages the files of a controller that is down so that it does not start."""
    controller.crash(End.DARK)
    assert controller.disk.harm(RaftFileHarm.SHORTENED, "raft.seal") is not None
    while not controller.is_refused:
        controller.disk.harm(RaftFileHarm.ZEROED, "data.mdb")
    controller.start()
    assert not controller.up


@pytest.mark.parametrize("leads", [True, False])
def test_a_controller_whose_files_are_damaged_does_not_start_until_its_directory_is_emptied(leads):
    with steady(21, files=True) as history:
        cluster = history.cluster
        chosen = next(one for one in cluster.controllers if (one is cluster.leader()) == leads)
        before = history.watch.acknowledgements
        refused(history, chosen)
        assert cluster.run(ELECTED_S, lambda: cluster.leader() not in {None, chosen})
        cluster.master(0).crash(End.KILLED)
        assert cluster.run(ELECTED_S, lambda: cluster.master(0) is not None)
        assert not chosen.up
        assert history.watch.acknowledgements > before
        history.replace(chosen)
        assert cluster.run(PATIENCE_S, lambda: chosen.remembers(cluster.leader().node.membership))
        history.heal()


def test_two_controllers_of_which_one_is_damaged_elect_nobody():
    """The damaged one would have to vote."""
    with steady(22, files=True) as history:
        cluster = history.cluster
        one, damaged, left = cluster.controllers
        refused(history, damaged)
        one.crash(End.DARK)
        cluster.run(3)
        assert left.node.leading is None
        one.start()
        assert cluster.run(PATIENCE_S, lambda: cluster.leader() is not None)
        history.heal()  # which empties the directory of the damaged one


def test_a_controller_whose_disk_takes_nothing_ends_and_is_started_again():
    with steady(23, files=True) as history:
        cluster = history.cluster
        for controller in cluster.controllers:
            lives, controller.disk.failing = controller.lives, True

            def is_back(controller=controller, lives=lives) -> bool:
                asked = cluster.operator.controller
                return controller.lives > lives and controller.up and asked is not None

            for _ in range(20):
                history.order("transfer")
                history.order("move")
                if cluster.run(1, is_back):
                    break
            assert is_back()
        history.heal()


@pytest.mark.parametrize("names", [["epochs"], ["epochs.copy"], EPOCHS, ["replica"], ["replica.copy"], ["group"]])
def test_a_replica_with_a_damaged_small_file_is_in_the_set_again(names):
    with steady(21, files=True) as history:
        cluster = history.cluster
        for number, harm in enumerate(SmallFileHarm):
            if harm is SmallFileHarm.LOST and len(names) > 1:
                continue  # two writes
            chosen = next(one for one in cluster.voters if one.group == 0 and one.serving == bool(number % 2))
            id_ = chosen.id
            chosen.crash(End.DARK)
            assert cluster.run(PATIENCE_S, lambda: cluster.master(0) is not None)
            chosen.small_files.harm(harm, *names)
            chosen.start()
            assert cluster.run(PATIENCE_S, history.all_in_sync), harm
            assert chosen.id == id_
        history.heal()


@pytest.mark.parametrize("serves", [True, False])
@pytest.mark.parametrize("trimmed", [True, False])
def test_a_replica_with_damaged_views_makes_them_anew(serves, trimmed):
    """From its log or, where that has lost its beginning, from the master's. No wrong value is told meanwhile."""
    with steady(27, files=True) as history:
        cluster = history.cluster

        def chosen():
            return next(one for one in cluster.voters if one.group == 0 and one.serving == serves)

        assert cluster.run(PATIENCE_S, lambda: len(chosen().platter.views.keys) > 3)
        replica = chosen()
        if trimmed:
            replica.platter.log.trim(replica.platter.log.boundary(replica.platter.views.applied))
        views = replica.platter.views
        views.spoiled.update(dict.fromkeys(views.keys))
        assert cluster.run(2 * PATIENCE_S, lambda: replica.platter.views is not views and history.all_in_sync())
        assert not replica.platter.views.spoiled
        if serves:
            assert cluster.master(0) is not replica
        history.heal()


def test_a_replica_in_the_set_that_begins_anew_for_its_epochs_is_not_elected_with_an_empty_log(monkeypatch, caplog):
    """Its log has lost its beginning and nobody knows its epochs, so it has nothing in common with the master's."""
    monkeypatch.setattr(SmallFiles, "of_the_epochs", lambda *_: EPOCHS)
    play(2662001043, files=True)
    assert "starts over from the snapshot" in caplog.text


@pytest.mark.parametrize("seed", [3350200199, 3350201041])
def test_an_older_list_of_epochs_is_not_taken_for_the_log_s(seed, monkeypatch):
    """A disk had lost a write of it: the replica said that the group lacked frames, and stood aside."""
    monkeypatch.setattr(SmallFiles, "of_the_epochs", lambda *_: EPOCHS[:1])
    play(seed, files=True)


def test_a_replica_that_meets_an_error_of_its_disk_between_two_roles_ends():
    """Its store was being opened again, for damaged views, and no role heard of it: it went on, out of the set."""
    play(2700000046, files=True)


def test_a_replica_that_meets_an_error_of_its_disk_is_started_again():
    with steady(25, files=True) as history:
        cluster = history.cluster
        for group in range(GROUP_COUNT):
            replica = next(one for one in cluster.voters if one.group == group and not one.serving)
            lives = replica.lives
            replica.small_files.fail()
            cluster.master(group).crash(End.KILLED)  # so that epochs are written
            assert cluster.run(PATIENCE_S, lambda replica=replica, lives=lives: replica.lives > lives)
            for machine in cluster.replicas:
                machine.start()
            assert cluster.run(PATIENCE_S, history.all_in_sync)
        history.heal()


def test_one_sound_controller_of_three_agrees_on_nothing_alone():
    """Beyond what is promised: nothing that was agreed on is given up either."""
    with steady(26, files=True) as history:
        cluster = history.cluster
        before = dict(history.watch.masters)
        for controller in cluster.controllers[:2]:
            refused(history, controller)
        cluster.master(0).crash(End.DARK)
        cluster.run(5)
        assert cluster.controllers[2].node.leading is None
        assert history.watch.masters == before
