"""A replica's id is its own, whenever it crashes."""

import asyncio
import errno
import threading
from types import SimpleNamespace

import msgspec
import pytest

from controller.api.client import Group, GroupConfig, KnownMetadata, Replica, UnknownGroup
from controller.api.commands import AddGroup, CreateTopic, ForgetReplica, RegisterReplica
from controller.api.requests import Elect
from controller.node.local import LocalController
from store.base.errors import (
    ForeignCluster,
    ForeignLog,
    MetadataWentBack,
    StoreFailed,
    StoreFull,
    ViewsDamaged,
    WrongGroup,
)
from store.disk.files import OsFiles
from store.disk.small_file import read_small_file, write_small_file
from store.engine.identity import log_id, name_log
from store.format.frame import origin_of
from store.local.local import LocalStore
from store.log.segment import segment_name
from store.node.replica.disk import Disk
from store.node.replica.identity import register, why_retired
from store.node.replica.metadata_mark import MetadataMark
from store.replication.epoch_file import EPOCH_FILES, EpochFile
from store.replication.epochs import EpochList
from tests.support.process.waiting import until
from tests.support.store.store_kit import append, frame

pytestmark = pytest.mark.anyio

GROUP = 3
FILES = ("replica", "replica.copy")


class Crash(Exception):
    """The process ends here."""


class CrashingFiles(OsFiles):
    """Ends the process before its n-th change, or right after it."""

    def __init__(self, at, *, after=False):
        self.at, self.after, self.count = at, after, 0

    def _step(self, call, *arguments, **options):
        self.count += 1
        if self.count == self.at and not self.after:
            raise Crash
        result = call(*arguments, **options)
        if self.count == self.at:
            raise Crash
        return result

    def open(self, path, *, create=False):
        return self._step(super().open, path, create=create) if create else super().open(path)

    def rename(self, source, target):
        self._step(super().rename, source, target)

    def unlink(self, path):
        self._step(super().unlink, path)

    def sync_directory(self, path):
        self._step(super().sync_directory, path)


class CrashingController:
    """Loses the answer to one command, or the command."""

    def __init__(self, controller, lost):
        self.controller, self.lost = controller, lost

    def __getattr__(self, name):
        return getattr(self.controller, name)

    async def do(self, request):
        assert isinstance(request, RegisterReplica)
        if self.lost == "command":
            raise Crash
        found = await self.controller.do(request)
        if self.lost == "answer":
            raise Crash
        return found


def about(address="host:1"):
    return lambda id_, check: Replica(id=id_, node="n", address=address, check=check)


@pytest.fixture
async def controller(tmp_path):
    found = LocalController.open(tmp_path / "controller", now_ms=lambda: 0)
    await found.do(AddGroup(number=GROUP, config=GroupConfig(replicas=3)))
    yield found
    await found.close()


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    return path


async def test_an_id_is_given_once_and_every_start_says_where_the_node_is(controller, home):
    first, group = await register(controller, home, GROUP, about())
    assert (first.id, group.replica(1).address) == (1, "host:1")
    again, group = await register(controller, home, GROUP, about("host:2"))
    assert again == first
    assert [one.address for one in group.replicas] == ["host:2"]
    assert sorted(path.name for path in home.iterdir()) == ["replica", "replica.copy"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, 9))
async def test_a_crash_at_any_step_gives_no_second_id(controller, home, step, after):
    files = CrashingFiles(step, after=after)
    with pytest.raises(Crash):
        await register(controller, home, GROUP, about(), files=files)
    found, group = await register(controller, home, GROUP, about())
    assert found.id == 1
    assert [one.id for one in group.replicas] == [1]
    assert (await register(controller, home, GROUP, about()))[0] == found


@pytest.mark.parametrize("lost", ["command", "answer"])
async def test_a_crash_around_the_command_gives_no_second_id(controller, home, lost):
    with pytest.raises(Crash):
        await register(CrashingController(controller, lost), home, GROUP, about())
    found, group = await register(controller, home, GROUP, about())
    assert found.id == 1
    assert [one.id for one in group.replicas] == [1]


async def test_after_a_crash_somebody_else_may_have_got_the_id(controller, home, tmp_path):
    with pytest.raises(Crash):
        await register(CrashingController(controller, "command"), home, GROUP, about())
    other = tmp_path / "other"
    other.mkdir()
    assert (await register(controller, other, GROUP, about()))[0].id == 1
    found, group = await register(controller, home, GROUP, about())
    assert found.id == 2
    assert [one.id for one in group.replicas] == [1, 2]


async def test_nodes_that_begin_together_get_different_ids(controller, tmp_path):
    homes = [tmp_path / f"h{i}" for i in range(5)]
    for home in homes:
        home.mkdir()
    found = await asyncio.gather(*(register(controller, home, GROUP, about()) for home in homes))
    assert sorted(identity.id for identity, _ in found) == [1, 2, 3, 4, 5]


async def test_a_replica_that_was_forgotten_gets_another_id(controller, home):
    await register(controller, home, GROUP, about())
    await controller.do(ForgetReplica(group=GROUP, replica=1))
    found, group = await register(controller, home, GROUP, about())
    assert found.id == 2
    assert [one.id for one in group.replicas] == [2]


@pytest.mark.parametrize("asked_too", [False, True])
async def test_a_damaged_file_is_as_good_as_none(controller, home, asked_too):
    await register(controller, home, GROUP, about())
    for name in FILES:
        (home / name).write_bytes(b"nonsense")
    if asked_too:
        with pytest.raises(Crash):
            await register(CrashingController(controller, "answer"), home, GROUP, about())
    assert (await register(controller, home, GROUP, about()))[0].id == 2
    assert (await register(controller, home, GROUP, about()))[0].id == 2


async def test_what_is_not_a_replica_of_this_group_is_refused(controller, home):
    await register(controller, home, GROUP, about())
    await controller.do(AddGroup(number=4, config=GroupConfig()))
    with pytest.raises(WrongGroup, match="replica 1 of store group 3"):
        await register(controller, home, 4, about())
    with pytest.raises(UnknownGroup):
        await register(controller, home.parent, 9, about())


# ---- directories with a log


def give_log(home, size=100):
    (home / "log").mkdir(parents=True)
    (home / "log" / segment_name(origin_of(GROUP))).write_bytes(bytes(size))


async def test_a_log_comes_back_as_the_replica_it_is_known_as(controller, home):
    found, _ = await register(controller, home, GROUP, about())
    give_log(home)
    assert (await register(controller, home, GROUP, about("host:2")))[0] == found


async def test_a_log_may_be_brought_to_a_group_that_never_had_a_master(controller, home, tmp_path):
    first = tmp_path / "first"
    first.mkdir()
    await register(controller, first, GROUP, about())
    give_log(home)
    assert (await register(controller, home, GROUP, about()))[0].id == 2


@pytest.mark.parametrize("had_id", [False, True])
async def test_a_log_of_elsewhere_does_not_join_others(controller, home, tmp_path, had_id):
    """Its first epoch would look like theirs, and what it holds be served as what they have."""
    if had_id:
        elsewhere = LocalController.open(tmp_path / "elsewhere", now_ms=lambda: 0)
        await elsewhere.do(AddGroup(number=GROUP, config=GroupConfig()))
        for other in (tmp_path / "b", home):
            other.mkdir(exist_ok=True)
            identity, _ = await register(elsewhere, other, GROUP, about())
        assert identity.id == 2
        await elsewhere.close()
        write_small_file(OsFiles(), home / "replica", msgspec.structs.replace(identity, cluster=""))  # an older version
    give_log(home)
    first = tmp_path / "first"
    first.mkdir()
    await register(controller, first, GROUP, about())
    await controller.do(Elect(group=GROUP, candidate=1))
    with pytest.raises(ForeignLog, match="another cluster's"):
        await register(controller, home, GROUP, about())
    assert [one.id for one in controller.group(GROUP).replicas] == [1]


DAMAGES = [lambda path: path.write_bytes(b"nonsense"), lambda path: path.unlink()]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_log_with_one_sound_file_of_identity_registers_again_and_has_both(controller, home, damage, name):
    first, _ = await register(controller, home, GROUP, about())
    give_log(home)
    await controller.do(Elect(group=GROUP, candidate=1))
    damage(home / name)
    found, group = await register(controller, home, GROUP, about("host:2"))
    assert found == first
    assert [one.address for one in group.replicas] == ["host:2"]
    assert (home / FILES[0]).read_bytes() == (home / FILES[1]).read_bytes()


async def test_a_copy_of_an_identity_that_was_forgotten_goes_with_it(controller, home):
    await register(controller, home, GROUP, about())
    await controller.do(ForgetReplica(group=GROUP, replica=1))
    (home / "replica").unlink()
    assert (await register(controller, home, GROUP, about()))[0].id == 2
    assert (home / FILES[0]).read_bytes() == (home / FILES[1]).read_bytes()


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_log_whose_files_of_identity_are_damaged_is_refused_by_that_name(controller, home, damage):
    await register(controller, home, GROUP, about())
    give_log(home)
    await controller.do(Elect(group=GROUP, candidate=1))
    for name in FILES:
        damage(home / name)
    sentence = "or its file 'replica' and the copy 'replica.copy' are damaged or gone; name an empty directory"
    with pytest.raises(ForeignLog, match=sentence):
        await register(controller, home, GROUP, about())


async def test_a_log_without_a_frame_is_none(controller, home, tmp_path):
    first = tmp_path / "first"
    first.mkdir()
    await register(controller, first, GROUP, about())
    give_log(home, 0)
    assert (await register(controller, home, GROUP, about()))[0].id == 2


# ---- the ids of clusters and logs


def held(directory):
    """Returns the contents of a directory, byte for byte."""
    return {str(one.relative_to(directory)): one.read_bytes() for one in directory.rglob("*") if one.is_file()}


def give_id(home, log):
    name_log(OsFiles(), home, GROUP, log)


async def test_a_replica_keeps_of_which_cluster_it_is(controller, home):
    found, _ = await register(controller, home, GROUP, about())
    assert found.cluster == controller.cluster
    assert found.cluster.encode() in (home / "replica").read_bytes()


async def test_a_replica_of_an_older_version_is_told_its_cluster(controller, home):
    found, _ = await register(controller, home, GROUP, about())
    write_small_file(OsFiles(), home / "replica", msgspec.structs.replace(found, cluster=""))
    give_log(home)
    await controller.do(Elect(group=GROUP, candidate=found.id))
    assert (await register(controller, home, GROUP, about()))[0] == found
    assert log_id(OsFiles(), home) == controller.group(GROUP).log == f"{found.cluster}.{GROUP}"
    assert (await register(controller, home, GROUP, about()))[0] == found


@pytest.mark.parametrize("with_log", [False, True])
async def test_a_replica_of_another_cluster_is_refused_and_left_as_it_is(controller, home, tmp_path, with_log):
    elsewhere = LocalController.open(tmp_path / "elsewhere", now_ms=lambda: 0)
    await elsewhere.do(AddGroup(number=GROUP, config=GroupConfig()))
    await register(elsewhere, home, GROUP, about())
    other = elsewhere.cluster
    await elsewhere.close()
    if with_log:
        give_log(home)
        give_id(home, "theirs")
    before = held(home)
    with pytest.raises(ForeignCluster, match=f"cluster {other}, .* cluster {controller.cluster}"):
        await register(controller, home, GROUP, about())
    assert held(home) == before
    assert controller.group(GROUP).replicas == ()


async def test_of_two_logs_of_single_nodes_one_becomes_the_groups(controller, home, tmp_path):
    """Before the first election too: otherwise the other one would follow it, having other messages at its offsets."""
    second = tmp_path / "second"
    second.mkdir()
    for directory, log in ((home, "first"), (second, "second")):
        give_log(directory)
        give_id(directory, log)
    found, group = await register(controller, home, GROUP, about())
    assert group.replica(found.id).log == "first"
    with pytest.raises(ForeignLog, match="is first, and that of node n is second"):
        await register(controller, second, GROUP, about())
    assert log_id(OsFiles(), second) == "second"
    await controller.do(Elect(group=GROUP, candidate=found.id))
    assert controller.group(GROUP).log == "first"
    before = held(second)
    with pytest.raises(ForeignLog, match=f"has log second, and that of store group {GROUP} is first"):
        await register(controller, second, GROUP, about())
    assert held(second) == before


async def test_the_log_of_an_older_single_node_gets_an_id_when_it_joins(controller, home):
    give_log(home)
    found, group = await register(controller, home, GROUP, about())
    log = log_id(OsFiles(), home)
    assert log
    assert group.replica(found.id).log == log
    await controller.do(Elect(group=GROUP, candidate=found.id))
    assert controller.group(GROUP).log == log
    assert (await register(controller, home, GROUP, about()))[0] == found


async def test_a_directory_without_a_frame_takes_the_id_of_its_group(controller, home):
    give_log(home, 0)
    give_id(home, "empty")
    found, _ = await register(controller, home, GROUP, about())
    await controller.do(Elect(group=GROUP, candidate=found.id))
    disk = Disk(home, GROUP, {"disk_reserve_bytes": 0})
    await disk.open_replica()
    await disk.belong("")
    assert log_id(OsFiles(), home) == "empty"
    await disk.belong("theirs")
    assert log_id(OsFiles(), home) == disk.log == "theirs"
    await disk.close()


async def test_a_log_with_frames_does_not_become_another_one(home):
    store = await LocalStore.open(home, group=GROUP, disk_reserve_bytes=0)
    await append(store, frame((16, b"mine")))
    await store.close()
    mine = log_id(OsFiles(), home)
    assert mine, "a single node's log has an id from the beginning"
    disk = Disk(home, GROUP, {"disk_reserve_bytes": 0})
    await disk.open_replica()
    with pytest.raises(ForeignLog, match=f"has log {mine}, and that of store group {GROUP} is theirs"):
        await disk.belong("theirs")
    await disk.belong(mine)
    await disk.close()
    assert log_id(OsFiles(), home) == mine


@pytest.fixture
async def with_damaged_epochs(home):
    """Makes a data directory with two frames of epoch 1, whose file of epochs is damaged."""
    store = await LocalStore.open(home, group=GROUP, disk_reserve_bytes=0)
    for body in (b"a", b"b"):
        await append(store, frame((16, body)))
    await store.close()
    for name in EPOCH_FILES:
        (home / name).write_bytes(b"damaged")
    return home


async def test_a_damaged_file_of_epochs_is_written_anew_once_the_log_has_told_them(with_damaged_epochs, caplog):
    disk = Disk(with_damaged_epochs, GROUP, {"disk_reserve_bytes": 0})
    await disk.open_replica()
    await disk.close()
    assert EpochFile(OsFiles(), with_damaged_epochs).load() == (EpochList.of([(1, origin_of(GROUP))]), 1)
    caplog.clear()
    await disk.open_replica()
    await disk.close()
    assert "damaged" not in caplog.text


@pytest.mark.parametrize("name", EPOCH_FILES)
async def test_a_list_of_epochs_whose_newest_write_a_disk_has_lost_is_not_taken_for_the_log_s(home, name):
    """The replica said that its group lacked confirmed frames, and stood aside until it was emptied."""
    disk, lists = Disk(home, GROUP, {"disk_reserve_bytes": 0}), [EpochList.of([(epoch, 0)]) for epoch in (1, 2)]
    await disk.open_replica()
    await disk.save(lists[0], 1)
    before = (home / name).read_bytes()
    await disk.save(lists[1], 2)
    await disk.close()
    (home / name).write_bytes(before)
    again = Disk(home, GROUP, {"disk_reserve_bytes": 0})
    await again.open_replica()
    await again.close()
    assert (again.epochs, again.promised) == (lists[1], 2)
    file = EpochFile(OsFiles(), home)
    assert (file.load(), file.whole) == ((lists[1], 2), True)


async def test_a_save_whose_end_is_not_known_is_repeated(home, monkeypatch):
    """It may be on disk, and the list in force would contradict it."""
    disk = Disk(home, GROUP, {"disk_reserve_bytes": 0})
    await disk.open_replica()
    lists = [EpochList.of([(epoch, 0)]) for epoch in (1, 2)]
    await disk.save(lists[0], 1)
    save, begun, go_on = EpochFile.save, threading.Event(), threading.Event()

    def slow(file, *saved, **more):
        begun.set()
        assert go_on.wait(60)
        save(file, *saved, **more)

    monkeypatch.setattr(EpochFile, "save", slow)
    saving = asyncio.ensure_future(disk.save(lists[1], 2))
    await until(begun.is_set)
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    again = asyncio.ensure_future(disk.save(lists[0], 1))
    go_on.set()
    await again
    assert EpochFile(OsFiles(), home).load() == (lists[0], 1)

    def fails(file, *saved, **more):
        save(file, *saved, **more)
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(EpochFile, "save", fails)
    with pytest.raises(StoreFull):
        await disk.save(lists[1], 2)
    monkeypatch.setattr(EpochFile, "save", save)
    await disk.save(lists[0], 1)
    assert EpochFile(OsFiles(), home).load() == (lists[0], 1)
    await disk.close()


async def test_a_role_that_begins_is_told_that_the_disk_has_failed_since_the_one_before(home):
    """A file beside the log could not be written while no role was there."""
    disk, told = Disk(home, GROUP, {}), []
    role, error = SimpleNamespace(failed=told.append), StoreFailed("EIO")
    disk.failed(ViewsDamaged("they are made anew when the store is opened"))
    disk.listener = role
    assert told == []
    disk.listener = None
    disk.failed(error)
    assert disk.failed_for_good
    disk.listener = role
    assert told == [error]


async def test_a_full_disk_keeps_no_replica_with_a_damaged_file_of_epochs_closed(with_damaged_epochs, monkeypatch):
    def save(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(EpochFile, "save", save)
    disk = Disk(with_damaged_epochs, GROUP, {"disk_reserve_bytes": 0})
    await disk.open_replica()
    assert disk.epochs.newest == 1
    await disk.close()


async def test_controllers_that_have_forgotten_an_epoch_are_not_believed(controller, home):
    await register(controller, home, GROUP, about())
    EpochFile(OsFiles(), home).save(EpochList(), 7)
    with pytest.raises(MetadataWentBack, match=f"store group {GROUP} was at epoch 7 .* and is at 0"):
        await register(controller, home, GROUP, about())
    for name in EPOCH_FILES:
        (home / name).write_bytes(b"damaged")  # which is found out elsewhere
    assert (await register(controller, home, GROUP, about()))[0].id == 1


async def test_metadata_that_a_directory_has_seen_and_controllers_have_not_is_not_believed(controller, home):
    await register(controller, home, GROUP, about())
    there = controller.known()
    await register(controller, home, GROUP, about(), known=there)
    for seen in (
        KnownMetadata(there.index + 100, b"", 0),
        KnownMetadata(0, b"", there.next_queue + 1),
        KnownMetadata(there.index, b"another", 0),
    ):
        with pytest.raises(MetadataWentBack, match=f"have forgotten committed metadata: .*{home}"):
            await register(controller, home, GROUP, about(), known=seen)


async def test_a_log_that_is_not_the_groups_is_refused_for_that_and_not_for_what_it_holds(controller, home, tmp_path):
    """A single node's log has records of queues that the controllers have given no numbers."""
    member = tmp_path / "member"
    member.mkdir()
    found, _ = await register(controller, member, GROUP, about())
    await controller.do(Elect(group=GROUP, candidate=found.id))
    give_log(home)
    before = held(home)
    seen = KnownMetadata(next_queue=controller.known().next_queue + 100)
    with pytest.raises(ForeignLog, match=f"has a log that store group {GROUP} knows nothing of"):
        await register(controller, home, GROUP, about(), known=seen)
    assert held(home) == before


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_directory_knows_the_greatest_number_of_a_queue_by_its_file_and_by_its_records(home, damaged):
    async with await LocalStore.open(home, group=GROUP) as store:
        await append(store, frame((77, b"a")))
    async with await LocalStore.open(home, group=GROUP) as store:
        mark = MetadataMark(OsFiles(), home)
        await mark.load(store)
        assert mark.known.next_queue == 78
        write_small_file(OsFiles(), home / "metadata", KnownMetadata(9, b"d", 99))
        if damaged:
            (home / "metadata").write_bytes(b"damaged")
        await mark.load(store)
        assert mark.known == (KnownMetadata(next_queue=78) if damaged else KnownMetadata(9, b"d", 99))


async def test_the_file_of_seen_metadata_follows_the_controllers(controller, home):
    mark = MetadataMark(OsFiles(), home)
    mark.follow(controller, pytest.fail)
    for number in range(3):
        await controller.do(CreateTopic(name=f"t{number}", queues=1))
    await mark.close()
    assert read_small_file(OsFiles(), home / "metadata", KnownMetadata) == controller.known() == mark.known
    assert mark.known.next_queue == 19


@pytest.mark.parametrize(("number", "fails"), [(errno.ENOSPC, False), (errno.EIO, True)])
async def test_a_disk_that_fails_below_the_file_of_seen_metadata_is_reported(
    controller, home, monkeypatch, number, fails
):
    def write(*_):
        raise OSError(number, "on purpose")

    monkeypatch.setattr("store.node.replica.metadata_mark.write_small_file", write)
    mark, failed = MetadataMark(OsFiles(), home), []
    mark.follow(controller, failed.append)
    await mark.close()
    assert len(failed) == fails


def test_a_group_that_is_known_from_before_a_replica_was_registered_does_not_say_that_it_was_retired():
    one = Replica(id=1, node="a", address="a:1")
    before = Group(number=GROUP, config=GroupConfig(), replicas=(one,), next_replica=2)
    registered = msgspec.structs.replace(before, replicas=(one, Replica(id=2, node="b", address="b:1")), next_replica=3)
    retired = msgspec.structs.replace(registered, replicas=(one,))
    assert [bool(why_retired(group, 2)) for group in (before, registered, retired)] == [False, False, True]
