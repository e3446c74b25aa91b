"""kill -9 under load: what was acknowledged is there, in order, and a torn tail is cut."""

import random
from pathlib import Path

import pytest

from tests.support.cluster.senders import KINDS as EVERYWHERE
from tests.support.cluster.senders import Http1Sender, stored

pytestmark = pytest.mark.slow

CYCLES = 20
KINDS = {**EVERYWHERE, "http1": Http1Sender}  # which says no key, by which a cluster keeps its order


def tear(data_dir: Path, chance: random.Random) -> None:
    """Imitates a power failure: appends the beginning of a frame, whole or damaged, behind the last one."""
    segment = max((data_dir / "log").iterdir())
    data = segment.read_bytes()
    torn = bytearray(data[: chance.randrange(1, min(len(data), 5000))])
    if chance.random() < 0.5:
        torn = bytearray(chance.randbytes(len(torn)))
    with segment.open("ab") as file:
        file.write(torn)


def test_nothing_acknowledged_is_lost_by_kill_9(new_gateway):
    gateway = new_gateway()
    following = dict.fromkeys(KINDS, 0)
    acked = {name: [] for name in KINDS}
    for seed in range(CYCLES):
        chance = random.Random(seed)
        gateway.start()
        senders = [kind(gateway, name, following[name]) for name, kind in KINDS.items()]
        for sender in senders:
            sender.start()
        enough = chance.randrange(200, 3000)
        while sum(len(sender.acked) for sender in senders) < enough or not all(sender.acked for sender in senders):
            assert all(sender.is_alive() for sender in senders), f"seed {seed}"
            senders[chance.randrange(len(senders))].join(chance.random() * 0.02)
        gateway.kill()
        for sender in senders:
            sender.join(90)
            assert not sender.is_alive()
            following[sender.name] = sender.next
            acked[sender.name] += sender.acked
        if seed % 2:
            tear(gateway.data_dir, chance)
    gateway.start()
    found = stored(gateway)
    for name in KINDS:
        numbers = found[f"kill/{name}/n"]
        assert numbers == sorted(set(numbers)), f"{name}: out of order or doubled"
        lost = set(acked[name]) - set(numbers)
        assert not lost, f"{name}: {len(lost)} of {len(acked[name])} acknowledged messages are lost: {sorted(lost)[:5]}"
