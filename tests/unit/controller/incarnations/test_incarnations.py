"""Controllers that have lost their memory, got an old one back, or are two with one id: none of them votes with it."""

import asyncio
import shutil
from pathlib import Path

import lmdb
import msgspec
import pytest

from controller.api.client import ControllerError
from controller.api.commands import ClusterLimits, CreateTopic
from controller.api.requests import AddMember
from controller.incarnations import operator_texts
from controller.incarnations.memory_check import MemoryCheck, MemoryDoubt
from controller.raft import Membership, MemoryStorage, RaftMember, first_snapshot
from controller.raft.lmdb_storage import LmdbStorage
from tests.support.controller.controllers import Controllers, Network
from tests.support.process.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
ONE_QUEUE = ClusterLimits(default_queues=1)


@pytest.fixture
async def three(tmp_path):
    async with Controllers(tmp_path, limits=ONE_QUEUE) as controllers:
        yield controllers


def voters(controllers, id_):
    return {one.id: one.incarnation for one in controllers.nodes[id_].membership.members if not one.learner}


async def ready(controllers):
    """Waits until all controllers have a leader and know each other."""
    await controllers.leader()
    await until(
        lambda: all(
            len(node.membership.voters) == len(controllers.nodes)
            and node.is_member
            and not node.memory.reasons
            and len(node.members()) == len(controllers.nodes)
            for node in controllers.nodes.values()
        )
    )


async def create(controllers, name):
    remote = controllers.remote(limits=ONE_QUEUE)
    await remote.ready()
    return await remote.do(CreateTopic(name=name))


def wipe(controllers, id_):
    shutil.rmtree(controllers.directory / str(id_))


async def test_a_cluster_is_begun_once_though_its_disk_takes_longer_than_the_next_look():
    network = Network(())
    try:
        driver = network.add(1, storage=MemoryStorage(incarnation="a"))
        first = Membership.of(RaftMember(id=1, address="here", incarnation="a"))
        driver.form(first)
        assert driver.status.fresh
        driver.form(first)
        await until(lambda: driver.status.membership == first)
        driver.form(first)
        assert driver.status.last_index == 1
    finally:
        await network.close()


async def test_two_of_three_of_which_one_forgot_elect_nobody_and_lose_nothing(three):
    await ready(three)
    await three.stop(2)
    topic = await create(three, "committed")
    await three.stop(1, 3)
    wipe(three, 3)
    await three.start(2, 3)
    empty = operator_texts.EMPTY.format(cluster=three.nodes[2].cluster)
    lost = operator_texts.LOST.format(id=3, address=three.addresses[3])
    await until(lambda: [three.nodes[id_].memory.reasons for id_ in (3, 2)] == [(empty,), (lost,)])
    until_term = three.nodes[2].term
    await asyncio.sleep(0)
    assert not any(node.has_leader for node in three.nodes.values())
    await three.start(1)
    await ready(three)
    await until(lambda: all(node.topic("committed") == topic for node in three.nodes.values()))
    other = await create(three, "another")
    assert not set(other.queues) & set(topic.queues)
    assert three.nodes[2].term >= until_term


async def test_one_with_an_empty_directory_is_added_again_by_the_leader(three):
    await ready(three)
    before = voters(three, 1)
    lost = (await three.followers())[0]
    await three.stop(lost)
    wipe(three, lost)
    topic = await create(three, "meanwhile")
    await three.start(lost)
    await ready(three)
    after = voters(three, await three.leader())
    assert after.keys() == before.keys()
    assert [id_ for id_ in after if after[id_] != before[id_]] == [lost]
    await until(lambda: three.nodes[lost].topic("meanwhile") == topic)


def test_what_a_controller_says_is_what_the_documentation_says():
    text = (Path(__file__).parents[4] / "docs" / "cluster.md").read_text("utf-8").replace("`", "")
    shown = {"cluster": "X", "id": "N", "address": "HOST:PORT", "missing": "N at HOST:PORT", "index": "I"}
    for name in filter(str.isupper, vars(operator_texts)):
        assert getattr(operator_texts, name).replace("`", "").format(**shown) in text, name


async def test_a_new_cluster_begins_when_all_its_first_members_are_there(tmp_path):
    late = Controllers(tmp_path)
    try:
        await late.start(2)
        await late.start(1)
        missing = operator_texts.MISSING.format(missing=f"3 at {late.addresses[3]}")
        await until(lambda: late.nodes[1].memory.reasons == (missing,))
        assert all(node.membership.members == () for node in late.nodes.values())
        await late.start(3)
        await ready(late)
    finally:
        await late.stop()


async def test_a_second_one_of_an_id_is_refused_while_the_first_is_alive(three):
    await ready(three)
    other = (await three.followers())[0]
    leader = three.nodes[await three.leader()]
    for node in three.nodes.values():
        node.driver.ticks.tick_s = 1.0  # however busy the machine is, nobody is taken for dead, and nobody stands
    await until(lambda: leader.driver.status.progress[other].active)
    with pytest.raises(ControllerError) as refused:
        await leader.ask_membership(AddMember(id=other, address="127.0.0.1:1", incarnation="another"))
    assert str(refused.value) == operator_texts.ANOTHER.format(id=other, address=three.addresses[other])


async def test_a_backup_that_is_restored_joins_as_another_one(three, tmp_path):
    await ready(three)
    lost = (await three.followers())[0]
    await three.stop(lost)
    shutil.copytree(tmp_path / str(lost), tmp_path / "backup")
    await three.start(lost)
    await ready(three)
    topic = await create(three, "after the backup")
    await until(lambda: three.nodes[lost].topic("after the backup") is not None)
    before = voters(three, lost)
    await three.stop(lost)
    wipe(three, lost)
    shutil.copytree(tmp_path / "backup", tmp_path / str(lost))
    await three.start(lost)
    await until(lambda: three.nodes[lost].topic("after the backup") == topic)
    await ready(three)
    after = voters(three, await three.leader())
    assert [id_ for id_ in after if after[id_] != before[id_]] == [lost]


async def test_an_old_copy_and_one_that_lags_elect_nobody_without_the_third(three, tmp_path):
    """As with an empty directory: the copy could vote for one that lacks what it had itself."""
    await ready(three)
    await three.stop(3)
    shutil.copytree(tmp_path / "3", tmp_path / "backup")
    await three.start(3)
    await ready(three)
    await three.stop(2)
    topic = await create(three, "committed")
    await three.stop(1, 3)
    wipe(three, 3)
    shutil.copytree(tmp_path / "backup", tmp_path / "3")
    await three.start(2, 3)
    await until(lambda: three.nodes[3].memory.reasons == (operator_texts.COPIED,))
    assert not any(node.has_leader for node in three.nodes.values())
    await three.start(1)
    await ready(three)
    await until(lambda: all(node.topic("committed") == topic for node in three.nodes.values()))


async def test_controllers_that_were_all_copied_go_on(three, tmp_path):
    await ready(three)
    topic = await create(three, "moved")
    await until(lambda: all(node.topic("moved") == topic for node in three.nodes.values()))
    await three.stop()
    for id_ in three.addresses:
        (tmp_path / str(id_)).rename(tmp_path / f"old{id_}")
        shutil.copytree(tmp_path / f"old{id_}", tmp_path / str(id_))
    await three.start()
    await ready(three)
    assert voters(three, 1).keys() == {1, 2, 3}  # one that is slow finds a leader, and joins as another
    await until(lambda: all(node.topic("moved") == topic for node in three.nodes.values()))
    await until(lambda: not any(node.storage.copied for node in three.nodes.values()))


async def test_a_copy_of_the_only_controller_counts_at_once(tmp_path):
    one = Controllers(tmp_path / "now", count=1, limits=ONE_QUEUE)
    async with one:
        await ready(one)
        topic = await create(one, "kept")
        await one.stop()
        (tmp_path / "now").rename(tmp_path / "old")
        shutil.copytree(tmp_path / "old", tmp_path / "now")
        await one.start()
        await ready(one)
        assert one.nodes[1].topic("kept") == topic
        await until(lambda: not one.nodes[1].storage.copied)


async def test_a_directory_that_went_back_unseen_is_found_by_the_others(three, tmp_path):
    """Its files are the same ones, with what they held before, as after a volume was reset to a snapshot."""
    await ready(three)
    lost = (await three.followers())[0]
    await three.stop(lost)
    files = [path for path in (tmp_path / str(lost) / "raft").iterdir() if path.is_file()]
    old = {path: path.read_bytes() for path in files}
    await three.start(lost)
    await ready(three)
    topic = await create(three, "later")
    await until(lambda: three.nodes[lost].topic("later") is not None)
    before = voters(three, lost)
    await three.stop(lost)
    for path, data in old.items():
        path.write_bytes(data)
    await three.start(lost)
    await until(lambda: three.nodes[lost].topic("later") == topic)
    await until(lambda: voters(three, 1).get(lost) not in {None, before[lost]})
    await ready(three)


@pytest.mark.parametrize("down", [False, True])
async def test_a_directory_put_back_twice_joins_though_the_others_are_other_ones_too(three, tmp_path, down):
    """The others remember nothing of an incarnation that they have replaced, and the leader is a stranger to it."""
    await ready(three)
    lost = (await three.followers())[0]
    others = [id_ for id_ in three.addresses if id_ != lost]
    await three.stop(lost)
    files = [path for path in (tmp_path / str(lost) / "raft").iterdir() if path.is_file()]
    old = {path: path.read_bytes() for path in files}
    await three.start(lost)
    await ready(three)
    for id_ in others:
        await three.stop(id_)
        wipe(three, id_)
        await three.start(id_)
        await ready(three)

    async def put_back(*stopped):
        topic = await create(three, f"later{len(stopped)}")
        await until(lambda: three.nodes[lost].topic(topic.name) is not None)
        before = voters(three, others[0])[lost]
        await three.stop(lost, *stopped)
        for path, data in old.items():
            path.write_bytes(data)
        await three.start(lost)
        if stopped:
            await until(lambda: three.nodes[lost].driver.raft.node.proven)
            await three.start(*stopped)
        await until(lambda: three.nodes[lost].topic(topic.name) == topic)
        await until(lambda: voters(three, others[0]).get(lost) not in {None, before})
        await ready(three)

    await put_back()
    await put_back(*(others if down else ()))


async def test_an_old_copy_that_is_trusted_before_there_is_a_leader_joins_when_there_is_one(three, monkeypatch):
    """None of the others knows this incarnation, and the one that they are about to elect sends nothing to it."""
    await ready(three)
    lost = (await three.followers())[0]
    others = [id_ for id_ in three.addresses if id_ != lost]
    await three.stop(lost)
    shutil.copytree(three.directory / str(lost), three.directory / "old")
    wipe(three, lost)
    await three.start(lost)
    await ready(three)
    named = voters(three, others[0])[lost]
    await three.stop()
    wipe(three, lost)
    shutil.copytree(three.directory / "old", three.directory / str(lost))
    with monkeypatch.context() as patch:
        identify = MemoryCheck.identify
        patch.setattr(MemoryCheck, "identify", lambda *asked: msgspec.structs.replace(identify(*asked), led=False))
        await three.start()
        await until(lambda: three.nodes[lost].memory._doubt is MemoryDoubt.WAITS)
    await until(lambda: voters(three, others[0]).get(lost) not in {None, named})
    await ready(three)


async def test_directories_from_before_there_were_incarnations_are_named(tmp_path):
    old = Controllers(tmp_path)
    members = Membership.of(*(RaftMember(id=id_, address=at) for id_, at in old.addresses.items()))
    for id_ in old.addresses:
        LmdbStorage.open(tmp_path / str(id_) / "raft", id_, first=first_snapshot(members)).close()
        with lmdb.open(str(tmp_path / str(id_) / "raft")) as env, env.begin(write=True) as txn:
            assert all(txn.delete(key) for key in (b"I", b"T"))
        (tmp_path / str(id_) / "raft" / "raft.seal").unlink()
    async with old:
        await ready(old)
        await until(lambda: all(voters(old, 1).values()))
        await old.stop(1)
        await old.start(1)
        await ready(old)
        assert voters(old, 1) == {id_: node.storage.incarnation() for id_, node in old.nodes.items()}
