"""The repairer and replicas that lie, hang or go away: nothing wrong is written, and the next one is asked."""

import asyncio
import logging
from types import SimpleNamespace

import grpc
import pytest

from controller.api.client import Group, GroupConfig, Replica
from store.base.errors import StoreUnreachable
from store.disk.files import OsFiles
from store.format.frame import HEADER, Header, LogOffset
from store.log.log import CommitLog
from store.node.repair import fetching
from store.node.repair.agreement import Agreement
from store.node.repair.repairer import Repairer
from store.node.replica.identity import ReplicaIdentity
from store.replication.epochs import EpochList
from store.rpc import replica_wire as wire
from store.rpc.replica_wire import RangeEnd, RangePart, RangeRequest, SealsAnswer, SealsRequest
from tests.support.process.waiting import until
from tests.support.store.replica_kit import log_bytes, open_replica
from tests.support.store.store_kit import frame

pytestmark = pytest.mark.anyio

SEGMENT_BYTES = 2_000
HONEST, LIAR = 2, 3


def write(directory, count=40):
    """Writes a closed log of an epoch, and returns its frames as they are on disk."""
    log = CommitLog(OsFiles(), directory / "log", segment_size_bytes=SEGMENT_BYTES)
    list(log.recover(0))
    placed = [log.place(frame((16, b"%03d" % n + bytes(100))), epoch=1, stored_at_ms=n) for n in range(count)]
    log.flush()
    log.close()
    return {one.start: one.data for one in placed}


def changed(data, at, mask=1):
    spoilt = bytearray(data)
    spoilt[at] ^= mask
    return bytes(spoilt)


def of_epoch(data, epoch):
    """Returns a sound frame of another epoch."""
    header = Header(*HEADER.unpack_from(data))
    made = frame((16, data[-103:]))
    return (
        made.header(log_offset=header.log_offset, epoch=epoch, stored_at_ms=header.stored_at_ms) + data[HEADER.size :]
    )


class Call:
    def __init__(self, messages):
        self.messages = messages

    async def read(self):
        message = next(self.messages, grpc.aio.EOF)
        if message is None:
            await asyncio.Event().wait()
        if isinstance(message, Exception):
            raise message
        return message if message is grpc.aio.EOF else wire.encode(message)


class RepairerRig:
    """A replica with a damaged log, and replicas that answer as a test says."""

    def __init__(self, store, epochs):
        self.asked = []  # (replica, start, end)
        self.answers = {}
        self.compared = []  # replicas that were asked for their seals
        self.digests = {}
        self.changes = 0
        replicas = tuple(Replica(id=id_, node=f"n{id_}", address=f"n{id_}") for id_ in (1, LIAR, HONEST))
        self.group = Group(number=0, config=GroupConfig(), replicas=replicas, master=LIAR, sync_set=(LIAR, HONEST))
        self.disk = SimpleNamespace(store=store, epochs=epochs, log="log", unusable=None)
        self.context = SimpleNamespace(
            group=0,
            replica=1,
            identity=ReplicaIdentity(0, 1, "check", "cluster"),
            disk=self.disk,
            known=lambda: self.group,
            now_ms=lambda: int(asyncio.get_running_loop().time() * 1000),
            dial=self.dial,
            repairing=None,
        )
        self.repairer = self.context.repairing = Repairer(self.disk, self.change)

    def change(self):
        self.changes += 1

    def dial(self, address):
        def unary_stream(path):
            def call(request):
                if path == wire.path(wire.SEALS):
                    return Call(compared(request))
                asked = wire.decode(request, RangeRequest)
                replica = int(address[1:])
                self.asked.append((replica, asked.start, asked.end))
                return Call(iter(self.answers[replica](asked)))

            return call

        def compared(request):
            self.compared.append(int(address[1:]))
            asked = wire.decode(request, SealsRequest)
            yield SealsAnswer(tuple(self.digests[int(address[1:])](one) for one in asked.segments))

        async def close():
            pass

        return SimpleNamespace(unary_stream=unary_stream, close=close)


@pytest.fixture
async def rig(tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "SILENCE_S", 0.05)
    frames = write(tmp_path)
    before = log_bytes(tmp_path)
    path = sorted((tmp_path / "log").iterdir())[1]
    path.write_bytes(changed(path.read_bytes(), 70))
    store = await open_replica(tmp_path, segment_size_bytes=SEGMENT_BYTES)
    log = store.core.engine.log
    for found in log.scan(log.first, log.end):
        if not hasattr(found, "data"):
            log.damaged(found, "scrub")
    rig = RepairerRig(store, EpochList.of([(1, 0)]))
    rig.frames, rig.same = frames, lambda: log_bytes(tmp_path) == before

    def honest(asked):
        some = b"".join(data for at, data in frames.items() if asked.start <= at < asked.end)
        return [RangePart(asked.start, some), RangeEnd(store.replication.end)]

    rig.honest = honest
    rig.answers = {HONEST: honest, LIAR: honest}
    yield rig
    await rig.repairer.close()
    await store.close()


LIES = {
    "flipped": lambda rig, asked: [RangePart(asked.start, changed(rig.frames[asked.start], -1))],
    "header": lambda rig, asked: [RangePart(asked.start, changed(rig.frames[asked.start], 9))],
    "cut": lambda rig, asked: [RangePart(asked.start, rig.frames[asked.start][:-1])],
    "elsewhere": lambda rig, asked: [RangePart(asked.start, rig.frames[0])],
    "before": lambda rig, asked: [RangePart(0, rig.frames[0])],
    "behind": lambda rig, asked: [RangePart(asked.end, rig.frames[asked.end])],
    "too much": lambda rig, asked: [RangePart(asked.start, rig.frames[asked.start] + rig.frames[asked.end])],
    "epoch": lambda rig, asked: [RangePart(asked.start, of_epoch(rig.frames[asked.start], 2))],
    "nothing": lambda rig, asked: [RangeEnd(asked.end)],
    "hangs": lambda rig, asked: [None],
    "closes": lambda rig, asked: [],
    "away": lambda rig, asked: [StoreUnreachable("UNAVAILABLE")],
    "noise": lambda rig, asked: [b"noise"],
}


@pytest.mark.parametrize("lie", list(LIES))
async def test_a_replica_that_is_of_no_use_spoils_nothing_and_the_next_one_is_asked(rig, lie):
    rig.answers[LIAR] = lambda asked: LIES[lie](rig, asked)
    assert rig.disk.store.is_damaged
    rig.repairer.begin(rig.context)
    assert rig.repairer.needs_repair
    await until(lambda: not rig.disk.store.is_damaged)
    await until(lambda: not rig.repairer.needs_repair)
    assert [replica for replica, *_ in rig.asked] == [LIAR, HONEST]
    assert rig.same()
    assert rig.repairer.describe() == ""


@pytest.mark.slow
async def test_replicas_that_all_lie_are_asked_seldom_and_complained_of_once(rig, caplog):
    rig.answers = dict.fromkeys((HONEST, LIAR), lambda asked: LIES["flipped"](rig, asked))
    with caplog.at_level(logging.INFO):
        rig.repairer.begin(rig.context)
        await until(lambda: len(rig.asked) >= 6)
        began_s = asyncio.get_running_loop().time()
        await until(lambda: len(rig.asked) >= 8)
    assert asyncio.get_running_loop().time() - began_s > 0.5  # the pauses grow
    complaints = [one for one in caplog.records if "does not help with the repair" in one.getMessage()]
    assert [one.levelname for one in complaints] == ["ERROR", "ERROR"]
    assert rig.repairer.needs_repair
    await until(lambda: "waiting for a replica to repair from" in rig.repairer.describe())
    assert not rig.same()


async def test_what_no_replica_has_is_lost_and_nobody_has_to_stand_aside_for_it(rig, caplog):
    rig.answers = dict.fromkeys((HONEST, LIAR), lambda asked: [RangeEnd(asked.end)])
    rig.repairer.begin(rig.context)
    await until(lambda: rig.repairer.lost_bytes)
    assert not rig.repairer.needs_repair
    [damage] = rig.repairer.status
    assert damage.lost
    assert rig.repairer.describe().endswith("of them lost, as no replica has them")
    assert [one.levelname for one in caplog.records if "readers get an error" in one.getMessage()] == ["CRITICAL"]
    await until(lambda: rig.repairer.repairing_from is None)
    assert len(rig.asked) == 2


@pytest.mark.slow
async def test_between_two_roles_the_repair_waits_until_the_store_is_open_again(rig, caplog):
    looked, now_ms, store = 0, rig.context.now_ms, rig.disk.store

    def counted_ms():
        nonlocal looked
        looked += 1
        if looked > 1_000:
            raise RuntimeError("the repair goes round without a pause")
        return now_ms()

    rig.repairer.begin(rig.context)
    rig.context.now_ms, rig.disk.store = counted_ms, None
    began_s = asyncio.get_running_loop().time()
    await until(lambda: asyncio.get_running_loop().time() - began_s > 0.1)
    assert "the repair goes round" not in caplog.text
    assert not rig.asked
    rig.disk.store = store
    await until(lambda: not store.is_damaged)
    assert rig.same()


async def test_the_status_says_from_whom_and_since_when(rig):
    rig.answers[LIAR] = lambda asked: [None]
    fetching.SILENCE_S = 5.0
    rig.repairer.begin(rig.context)
    await until(lambda: rig.repairer.repairing_from == LIAR)
    [damage] = rig.repairer.status
    assert (damage.repairing_from, damage.lost) == (LIAR, False)
    assert 0 <= damage.since_s < 60
    assert rig.repairer.describe() == f"damaged: 1 ranges, {damage.end - damage.start} bytes, repairing from replica 3"
    assert rig.repairer.blocks(damage.start)
    assert not rig.repairer.blocks(damage.end)
    assert not rig.repairer.blocks(LogOffset(damage.start - 1))


@pytest.fixture
async def sealed(rig):
    """Returns the rig, repaired, with the seals of all closed segments."""
    store = rig.disk.store
    rig.repairer.begin(rig.context)
    await until(lambda: not rig.repairer.needs_repair)
    store.replication.confirm(store.replication.end)
    await until(lambda: store.log.confirmed == store.replication.end)
    await until(lambda: store.seals() and store.seals()[-1].end == store.core.engine.log.sealed)
    rig.own = {(seal.start, seal.end): seal.digest for seal in store.seals()}
    rig.asked.clear()
    rig.agreement = Agreement(rig.context)
    return rig


@pytest.mark.slow
async def test_seals_that_agree_are_compared_once(sealed, caplog):
    sealed.digests = dict.fromkeys((LIAR, HONEST), lambda one: sealed.own[one])
    await sealed.agreement.look()
    assert sealed.compared == [LIAR, HONEST]
    await sealed.agreement.look()
    assert len(sealed.compared) == 2
    assert not [one for one in caplog.records if one.levelname == "CRITICAL"]


@pytest.mark.slow
async def test_a_segment_of_which_the_others_have_other_frames_is_repaired_and_sealed_again(sealed, caplog):
    store = sealed.disk.store
    other = next(iter(sealed.own))
    sealed.digests = dict.fromkeys((LIAR, HONEST), lambda one: b"x" * 16 if one == other else sealed.own[one])
    await sealed.agreement.look()
    assert store.is_damaged
    assert sealed.repairer.needs_repair
    await until(lambda: not store.is_damaged)
    assert [(start, end) for _, start, end in sealed.asked] == [other]
    assert "the other replicas have other frames than this one" in caplog.text
    await until(lambda: {(one.start, one.end): one.digest for one in store.seals()} == sealed.own)
    sealed.digests = dict.fromkeys((LIAR, HONEST), lambda one: sealed.own[one])
    await sealed.agreement.look()
    assert not store.is_damaged
    assert sealed.same()


@pytest.mark.slow
async def test_who_is_right_repairs_nothing_and_says_so_once(sealed, caplog):
    other = next(iter(sealed.own))
    sealed.digests = {LIAR: lambda one: b"x" * 16 if one == other else sealed.own[one], HONEST: sealed.own.get}
    await sealed.agreement.look()
    await sealed.agreement.look()
    assert not sealed.disk.store.is_damaged
    assert caplog.text.count("it repairs it from this one") == 1


@pytest.mark.slow
async def test_nothing_is_decided_before_all_have_answered(sealed, caplog):
    def away(_one):
        raise StoreUnreachable("away")

    other = next(iter(sealed.own))
    sealed.digests = {LIAR: lambda one: b"x" * 16 if one == other else sealed.own[one], HONEST: away}
    await sealed.agreement.look()
    assert not sealed.disk.store.is_damaged
    assert "is decided when all have answered" in caplog.text
