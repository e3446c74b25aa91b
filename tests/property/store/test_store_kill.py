"""A process that is killed while it writes: everything it acknowledged is there when the directory is opened again."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from store.local.local import LocalStore
from tests.support.store.store_kit import append, bodies, frame

SEEDS = range(5)


async def write(data_dir: Path, seed: int) -> None:
    """Appends, puts, leases and settles until it is killed, and prints one line for each acknowledgement."""
    chance = random.Random(seed)
    linger = chance.choice([0.001, 0.05])
    store = await LocalStore.open(data_dir, linger_s=linger, segment_size_bytes=20_000)

    def say(line: str) -> None:
        os.write(1, f"{line}\n".encode())

    async def publish(queue: int) -> None:
        n = (await store.queues.bounds(queue)).next
        while True:
            count = chance.randint(1, 30)
            await append(store, frame(*((queue, b"%d" % (n + i), queue) for i in range(count))))
            n += count
            say(f"append {queue} {n}")

    async def put() -> None:
        found = await store.keys.get("n")
        n, revision = (int(found.value), found.revision) if found is not None else (0, 0)
        while True:
            n += 1
            revision = await store.keys.put("n", b"%d" % n, expected_revision=revision)
            say(f"put n {n}")

    async def settle() -> None:
        while True:
            leases = await store.leases.take(20, 1, max_count=chance.randint(1, 50))
            if not leases:
                await asyncio.sleep(0.001)
                continue
            await store.leases.settle(20, 1, [lease.offset for lease in leases])
            say(f"settled 20 {leases[-1].offset + 1}")

    say("open 0 0")
    await asyncio.gather(publish(20), publish(21), put(), settle())


def killed(data_dir: Path, seed: int) -> dict[tuple[str, str], int]:
    """Runs `write` for a while and kills it; returns the last of each kind of acknowledgement."""
    command = [sys.executable, __file__, str(data_dir), str(seed)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        time.sleep(random.Random(seed).uniform(0.05, 0.4))  # the moment of death is the experiment
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    last = {}
    for line in lines:
        if line.endswith(b"\n"):
            kind, name, number = line.decode().split()
            last[kind, name] = int(number)
    return last


async def check(data_dir: Path, acknowledged: dict[tuple[str, str], int]) -> None:
    async with await LocalStore.open(data_dir, segment_size_bytes=20_000) as store:
        assert not store.corruptions
        for queue in (20, 21):
            found = await bodies(store, queue)
            assert len(found) >= acknowledged.get(("append", str(queue)), 0)
            assert found == [b"%d" % n for n in range(len(found))]
            if found:
                assert await store.log.read(await store.log.last(queue)) == found[-1]
        if ("put", "n") in acknowledged:
            assert int((await store.keys.get("n")).value) >= acknowledged["put", "n"]
        following = (await store.queues.bounds(20)).next
        assert await store.leases.waiting(20) <= following - acknowledged.get(("settled", "20"), 0)
        leases = await store.leases.take(20, 1, max_count=1)
        assert not leases or leases[0].offset >= acknowledged.get(("settled", "20"), 0)


@pytest.mark.slow
def test_killed_and_opened_again_and_again(tmp_path):
    total = 0
    for seed in SEEDS:
        acknowledged = killed(tmp_path, seed)
        total += len(acknowledged)
        asyncio.run(check(tmp_path, acknowledged))
    assert total > len(SEEDS)


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1]), int(sys.argv[2])))
