import msgspec
import pytest

from store.format.frame import HEADER
from store.replication.effects import Prepare, SaveEpochs, Send, Write
from store.replication.messages import Ack, Confirmed, Data, Hello, Refused, Welcome, Why
from store.replication.pace import ReplicationPace
from store.replication.replica_core import Stage
from tests.support.store.replication_kit import Following, FrameLog, Leading, frame_at

SESSION = 102


def streaming(**kinds) -> Following:
    """Returns a replica with 400 bytes of epoch 1 that follows the master of epoch 3, whose epoch 2 was from 400 to
    800.
    """
    follower = Following(2, FrameLog().fill(1, 2), [(1, 0)], promised=1, **kinds)
    greeting(follower)
    follower.core.receive(welcome(), now_ms=0)
    follower.work()
    follower.sent.clear()
    return follower


def greeting(follower: Following) -> None:
    follower.core.connect(3, session=SESSION, now_ms=0)
    follower.work()


def welcome(**kinds) -> Welcome:
    epochs = ((1, 0), (2, 400), (3, 800))
    fields = {"first": 0, "end": 1_000, "cut_to": 400, "confirmed": 400, "needs_snapshot": False}
    return Welcome(**{"session": SESSION, "epoch": 3, "epochs": epochs} | fields | kinds)


def data(start: int = 400, epoch: int = 2, count: int = 1, **kinds) -> Data:
    frames = b"".join(frame_at(start + 200 * n, epoch) for n in range(count))
    return Data(**{"session": SESSION, "epoch": 3, "start": start, "confirmed": 0, "frames": frames} | kinds)


def refusals(follower: Following) -> list[Why]:
    return [message.why for message in follower.sent if isinstance(message, Refused)]


# ---- the handshake


def test_it_says_what_it_has_and_is_asked_to_cut_what_differs():
    follower = Following(2, FrameLog().fill(1, 4), [(1, 0)], promised=1, confirmed=200)
    follower.core.connect(3, session=SESSION, now_ms=0)
    saved, sent = follower.core.take()
    assert saved == SaveEpochs(follower.core.epochs, 3)
    hello = Hello(group=0, replica=2, session=SESSION, epoch=3, epochs=((1, 0),), first=0, end=800)
    assert sent == Send(hello)
    follower.core.receive(welcome(), now_ms=0)
    assert follower.core.stage is Stage.CUTTING
    [prepare] = follower.core.take()
    assert isinstance(prepare, Prepare)
    assert prepare.cut_to == 400
    assert prepare.epochs.entries == ((1, 0), (2, 400))
    assert follower.core.end == follower.core.flushed == 400
    follower.core.flushed_to(800)  # a sync that had begun before
    assert follower.core.flushed == 400
    assert follower.core.take() == []
    follower.core.prepared()
    assert follower.core.stage is Stage.STREAMING
    assert follower.core.take() == [Send(Ack(session=SESSION, epoch=3, flushed=400, round=0))]


def test_nothing_to_cut_and_nothing_to_save_is_ready_at_once():
    follower = Following(2, FrameLog().fill(1, 2), [(1, 0), (3, 400)], promised=3)
    greeting(follower)
    follower.core.receive(welcome(epochs=((1, 0), (3, 400))), now_ms=0)
    assert [type(effect) for effect in follower.core.take()] == [Send]


def test_a_stream_that_ends_while_the_log_is_cut_leaves_it_cut():
    follower = Following(2, FrameLog().fill(1, 4), [(1, 0)])
    greeting(follower)
    follower.core.receive(welcome(), now_ms=0)
    follower.core.close()
    assert follower.core.standing == (2, 400)
    follower.core.connect(3, session=7, now_ms=0)
    follower.work()
    assert follower.log.end == 400
    assert follower.sent[-1].end == 400
    assert follower.core.stage is Stage.GREETING


@pytest.mark.parametrize(
    "bad",
    [
        {"cut_to": 200},
        {"cut_to": 600},
        {"epochs": ((2, 0), (3, 800)), "cut_to": 200},
        {"first": 400, "epochs": ((2, 400), (3, 800))},
    ],
)
def test_a_master_that_reckons_otherwise_is_not_followed(bad):
    follower = Following(2, FrameLog().fill(1, 2), [(1, 0)])
    greeting(follower)
    follower.core.receive(welcome(**bad), now_ms=0)
    follower.work()
    assert refusals(follower) == [Why.MALFORMED]
    assert follower.core.stage is Stage.IDLE
    assert follower.log.end == 400


def test_a_second_welcome_and_one_of_another_stream_do_nothing():
    follower = streaming()
    follower.core.receive(data(), now_ms=0)
    follower.core.receive(welcome(), now_ms=0)
    follower.core.receive(welcome(session=5), now_ms=0)
    follower.work()
    assert follower.log.end == 600


def test_a_welcome_that_comes_late_does_not_cut_what_was_acknowledged_since():
    follower = streaming()
    follower.core.receive(data(), now_ms=0)
    follower.work()
    assert follower.sent[-1].flushed == 600
    follower.core.connect(3, session=9, now_ms=0)
    follower.core.receive(welcome(end=400, cut_to=400, epochs=((1, 0), (2, 400))), now_ms=0)
    follower.work()
    assert follower.core.stage is Stage.GREETING
    assert follower.log.end == 600


@pytest.mark.parametrize(("confirmed", "diverged"), [(200, True), (100, True)])
def test_what_was_confirmed_is_not_cut(confirmed, diverged):
    follower = Following(2, FrameLog().fill(1, 4), [(1, 0)], confirmed=600)
    greeting(follower)
    follower.core.receive(welcome(confirmed=confirmed), now_ms=0)
    follower.work()
    assert (follower.core.stage is Stage.DIVERGED) is diverged
    assert follower.log.end == 800


@pytest.mark.parametrize("epochs", [((1, 0), (3, 900)), ((2, 5), (3, 900))])
def test_behind_the_masters_log_it_takes_a_snapshot_that_has_what_was_confirmed_here(epochs):
    follower = Following(2, FrameLog().fill(1, 2), [(1, 0)], confirmed=400)
    greeting(follower)
    snapshot = welcome(epochs=epochs, first=600, cut_to=400, confirmed=900, needs_snapshot=True)
    follower.core.receive(snapshot, now_ms=0)
    follower.work()
    assert follower.snapshots == [3]
    follower.core.tick(now_ms=60_000)
    assert follower.core.stage is Stage.SNAPSHOT


def test_it_starts_over_only_behind_a_master_that_has_confirmed_as_much():
    follower = Following(2, FrameLog().fill(1, 2), [(1, 0)], confirmed=400)
    assert not follower.core.start_over()  # no master is followed
    greeting(follower)
    assert not follower.core.start_over()
    follower.core.receive(welcome(confirmed=300), now_ms=0)
    follower.work()
    assert follower.core.stage is Stage.STREAMING
    assert not follower.core.start_over()
    follower.core.receive(Confirmed(session=SESSION, epoch=3, confirmed=400, sent=400, round=1), now_ms=0)
    assert follower.core.start_over()
    follower.work()
    assert follower.snapshots == [3]
    assert follower.core.starting_over


@pytest.mark.parametrize("confirmed", [300, 400])
def test_epochs_that_are_guessed_are_no_reason_to_stand_still(confirmed):
    follower = Following(2, FrameLog().fill(1, 2), [(1, 200)], confirmed=400)
    follower.core._guessed = True
    greeting(follower)
    follower.core.receive(welcome(epochs=((1, 100), (3, 800)), cut_to=0, confirmed=confirmed), now_ms=0)
    follower.work()
    assert follower.snapshots == ([3] if confirmed == 400 else [])
    assert follower.core.stage is (Stage.SNAPSHOT if confirmed == 400 else Stage.IDLE)


def test_what_a_master_has_confirmed_says_nothing_of_a_log_that_is_not_its_own():
    follower = streaming()
    follower.lazy = True
    follower.core.receive(data(), now_ms=0)
    follower.work()
    follower.core.connect(5, session=9, now_ms=0)
    snapshot = welcome(session=9, epoch=5, first=800, cut_to=800, confirmed=900, needs_snapshot=True)
    follower.core.receive(msgspec.structs.replace(snapshot, epochs=((4, 700),)), now_ms=0)
    assert follower.core.stage is Stage.SNAPSHOT
    follower.core.flushed_to(600)
    assert follower.core.confirmed == 400


def test_without_a_snapshot_it_greets_again():
    follower = Following(2, FrameLog().fill(1, 2), [(1, 0)])
    greeting(follower)
    snapshot = welcome(epochs=((3, 900),), first=900, cut_to=900, confirmed=950, needs_snapshot=True)
    follower.core.receive(snapshot, now_ms=0)
    follower.core.close()
    follower.core.connect(3, session=9, now_ms=0)
    follower.work()
    assert follower.core.stage is Stage.GREETING
    assert follower.sent[-1].epochs == ((1, 0),)


def test_a_master_that_has_confirmed_less_gives_no_snapshot():
    follower = Following(2, FrameLog().fill(1, 2), [(1, 0)], confirmed=400)
    greeting(follower)
    snapshot = welcome(epochs=((2, 5), (3, 900)), first=100, cut_to=100, confirmed=200, needs_snapshot=True)
    follower.core.receive(snapshot, now_ms=0)
    assert follower.core.stage is Stage.DIVERGED


# ---- data


def test_data_are_written_as_they_came_and_acknowledged_when_synced():
    follower = streaming()
    follower.core.receive(data(count=2, confirmed=800), now_ms=0)
    saved, write = follower.core.take()
    assert saved.epochs.entries == ((1, 0), (2, 400), (3, 800))  # where the next one begins is known
    assert isinstance(write, Write)
    assert (write.start, write.end, len(write.frames)) == (400, 800, 2)
    assert follower.core.confirmed == 400
    follower.core.flushed_to(600)
    assert follower.core.confirmed == 600
    assert follower.core.take() == [Send(Ack(session=SESSION, epoch=3, flushed=600, round=0))]


@pytest.mark.parametrize(
    "bad",
    [
        data(600),  # a gap
        data(200, 1, 2),  # half of it is there
        data(400, 1),  # of an epoch that was over
        data(400, 3),
        data(400, 2, 3),  # across an epoch
        data(400, frames=frame_at(200, 2)),  # of another place
        data(400, frames=frame_at(400, 2)[:-1]),
        data(400, frames=frame_at(400, 2) + b"x"),
        data(400, frames=b"x" * 200),
    ],
)
def test_data_that_do_not_belong_end_the_stream(bad):
    follower = streaming()
    follower.core.receive(bad, now_ms=0)
    follower.work()
    assert refusals(follower) == [Why.MALFORMED]
    assert follower.closed
    assert follower.log.end == 400


@pytest.mark.parametrize("at", [HEADER.size - 1, HEADER.size, 199, 8])
def test_both_checksums_are_verified(at):
    bad = bytearray(frame_at(400, 2))
    bad[at] ^= 1
    follower = streaming()
    follower.core.receive(data(frames=bytes(bad)), now_ms=0)
    follower.work()
    assert refusals(follower) == [Why.MALFORMED]


def test_data_that_came_before_are_not_written_again():
    follower = streaming()
    for _ in range(2):
        follower.core.receive(data(), now_ms=0)
        follower.work()
    assert follower.log.end == 600
    assert not refusals(follower)


def test_a_master_that_does_not_wait_for_acknowledgements_is_stopped():
    pace = ReplicationPace(window_bytes=200)
    follower = streaming(pace=pace)
    follower.lazy = True
    follower.core.receive(data(), now_ms=0)
    follower.core.end += 1 << 30
    follower.core.receive(data(follower.core.end, 3), now_ms=0)
    follower.work()
    assert refusals(follower) == [Why.MALFORMED]


def test_it_answers_what_it_is_asked_and_notices_what_did_not_arrive():
    follower = streaming()
    heartbeat = Confirmed(session=SESSION, epoch=3, confirmed=400, sent=400, round=6)
    follower.core.receive(heartbeat, now_ms=0)
    follower.work()
    assert follower.sent == [Ack(session=SESSION, epoch=3, flushed=400, round=6)]
    follower.core.receive(msgspec.structs.replace(heartbeat, sent=600), now_ms=0)
    follower.work()
    assert refusals(follower) == [Why.MALFORMED]


def test_it_answers_a_heartbeat_that_asks_nothing_only_now_and_then():
    follower = streaming()
    heartbeat = Confirmed(session=SESSION, epoch=3, confirmed=400, sent=400, round=0)
    for now_ms in (200, 400, 600, 800, 1_000, 1_200):
        follower.core.receive(heartbeat, now_ms=now_ms)
        follower.work()
        assert len(follower.sent) == now_ms // 600
    follower.sent.clear()
    follower.core.receive(msgspec.structs.replace(heartbeat, round=1), now_ms=1_300)
    follower.core.receive(msgspec.structs.replace(heartbeat, round=1, confirmed=300), now_ms=1_400)
    follower.core.receive(msgspec.structs.replace(heartbeat, round=1), now_ms=1_500)
    follower.work()
    assert follower.sent == 2 * [Ack(session=SESSION, epoch=3, flushed=400, round=1)]


# ---- epochs


def test_a_master_of_an_older_epoch_is_told_so():
    follower = streaming()
    follower.core.promise(4)
    follower.work()
    assert refusals(follower) == [Why.SUPERSEDED]
    assert follower.sent[-1].epoch == 4
    assert follower.saved[1] == 4
    assert follower.core.stage is Stage.IDLE
    follower.core.connect(3, session=5, now_ms=0)
    follower.work()
    assert follower.core.stage is Stage.IDLE
    follower.core.connect(4, session=5, now_ms=0)
    follower.core.receive(welcome(session=5), now_ms=0)
    follower.work()
    assert refusals(follower) == [Why.SUPERSEDED] * 2


@pytest.mark.parametrize(
    "said",
    [
        lambda: welcome(epoch=5000),
        lambda: Refused(session=SESSION, epoch=5000, why=Why.SUPERSEDED),
        lambda: Refused(session=SESSION, epoch=5000, why=Why.NOT_MASTER),
    ],
)
def test_an_epoch_is_believed_of_the_controllers_alone(said):
    """Anybody may answer at the master's address: of another group, of another cluster."""
    follower = Following(2, FrameLog().fill(1, 2), [(1, 0)])
    greeting(follower)
    promised = follower.core.promised
    follower.core.receive(said(), now_ms=0)
    follower.work()
    assert follower.core.stage is Stage.IDLE
    assert follower.core.promised == follower.saved[1] == promised
    follower.core.connect(5, session=9, now_ms=0)  # as the controllers say
    follower.core.receive(welcome(epoch=5, session=9), now_ms=0)
    follower.work()
    assert follower.core.stage is Stage.STREAMING
    assert follower.saved[1] == 5


def test_only_what_is_on_disk_stands_for_election():
    follower = streaming()
    follower.lazy = True
    follower.core.receive(data(count=2), now_ms=0)
    follower.work()
    assert follower.core.standing == (2, 400)
    follower.core.flushed_to(800)
    assert follower.core.standing == (3, 800)


def test_a_silent_master_is_given_up():
    follower = streaming()
    follower.core.tick(now_ms=3_000)
    assert follower.core.stage is Stage.STREAMING
    follower.core.tick(now_ms=3_001)
    follower.work()
    assert follower.core.stage is Stage.IDLE
    assert follower.closed == ["the master is silent"]


def test_an_epoch_behind_the_end_of_what_survived_is_not_there():
    follower = Following(2, FrameLog().fill(1, 1), [(1, 0), (2, 400)], promised=2)
    assert follower.core.epochs.entries == ((1, 0),)


def test_trimming_keeps_what_is_needed_to_compare():
    follower = streaming()
    follower.core.receive(data(count=2, confirmed=800), now_ms=0)
    follower.work()
    follower.core.trimmed(600)
    assert follower.core.epochs.entries == ((2, 400), (3, 800))
    leading = Leading(4, FrameLog().fill(1, 2).fill(2, 2), [(1, 0), (2, 400)], followers=[follower], confirmed=800)
    leading.connect(2).append(2).settle()
    assert follower.log.frames == leading.log.frames
