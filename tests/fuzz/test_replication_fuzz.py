"""Whatever arrives from another replica is parsed or refused, and never crashes a core."""

import random

import pytest

from store.replication.epochs import decode_epochs
from store.replication.errors import BadEpochs, BadMessage
from store.replication.messages import Ack, Confirmed, Data, Hello, Refused, Welcome, Why, decode, encode
from store.replication.replica_core import Stage
from tests.support.store.replication_kit import Following, FrameLog, Leading, frame_at

ROUNDS = 2_000


def damaged(chance: random.Random, data: bytes) -> bytes:
    bad = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        match chance.choice(["flip", "cut", "grow"]):
            case "flip" if bad:
                bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
            case "cut":
                del bad[chance.randrange(len(bad) + 1) :]
            case _:
                bad[chance.randrange(len(bad) + 1) : 0] = chance.randbytes(chance.randint(1, 8))
    return bytes(bad)


def any_offset(chance: random.Random) -> int:
    return chance.choice([0, 200, 400, 600, 800, 1 << 40, (1 << 63) - 1])


def any_message(chance: random.Random):
    said = {"session": chance.choice([102, 0, 7]), "epoch": chance.randint(0, 4)}
    first, end, other, another = (any_offset(chance) for _ in range(4))
    epochs = tuple((n, any_offset(chance)) for n in range(chance.randint(0, 3)))
    frames = frame_at(chance.choice([0, 400, 600]), chance.randint(1, 3))
    number = chance.randint(0, 3)
    match chance.choice([Hello, Welcome, Data, Confirmed, Ack, Refused]).__name__:
        case "Hello":
            return Hello(group=0, replica=2, epochs=epochs, first=first, end=end, **said)
        case "Welcome":
            snapshot = chance.random() < 0.3
            log = {"first": first, "end": end, "cut_to": other, "confirmed": another}
            return Welcome(epochs=epochs, needs_snapshot=snapshot, **log, **said)
        case "Data":
            return Data(start=first, confirmed=end, frames=frames, **said)
        case "Confirmed":
            return Confirmed(confirmed=first, sent=end, round=number, **said)
        case "Ack":
            return Ack(flushed=first, round=number, **said)
    return Refused(why=chance.choice(list(Why)), **said)


def parsed(data: bytes):
    try:
        return decode(data)
    except BadMessage:
        return None


@pytest.mark.parametrize("seed", range(4))
def test_bytes(seed):
    chance = random.Random(seed)
    for _ in range(ROUNDS):
        parsed(chance.randbytes(chance.randint(0, 80)))
        parsed(damaged(chance, encode(any_message(chance))))
        with pytest.raises(BadEpochs):
            decode_epochs(chance.randbytes(chance.randint(0, 80)))


@pytest.mark.parametrize("seed", range(4))
def test_a_replica_keeps_what_is_confirmed_whatever_a_master_says(seed):
    chance = random.Random(seed)
    for _ in range(ROUNDS // 10):
        follower = Following(2, FrameLog().fill(1, 3), [(1, 0)], promised=1, confirmed=400)
        for _ in range(20):
            if follower.core.stage is Stage.IDLE:
                follower.core.connect(chance.randint(1, 3), session=102, now_ms=0)
            data = encode(any_message(chance))
            message = parsed(damaged(chance, data) if chance.random() < 0.3 else data)
            if message is not None and not isinstance(message, Hello | Ack):
                follower.core.receive(message, now_ms=0)
            follower.work()
            assert follower.log.end >= follower.core.confirmed >= 400
            assert follower.core.flushed == follower.core.end == follower.log.end


@pytest.mark.parametrize("seed", range(4))
def test_a_master_confirms_no_more_than_it_has_whatever_a_replica_says(seed):
    chance = random.Random(seed)
    for _ in range(ROUNDS // 10):
        leading = Leading(2, FrameLog().fill(1, 2), [(1, 0)], followers=[Following(2)], min_in_sync=2)
        leading.append(2)
        for _ in range(20):
            message = parsed(encode(any_message(chance)))
            if message is not None and not isinstance(message, Welcome | Data | Confirmed):
                leading.master.receive(2, message, now_ms=0)
            leading.collect()
            assert leading.master.confirmed <= leading.master.flushed == 800
