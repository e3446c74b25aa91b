"""Many clients that read and change a few keys at once, by any means, and the history of what they were told."""

import random
from collections.abc import Awaitable
from typing import Protocol

from tests.support.histories.linearizability import Recording

KEYS = ("x", "y", "z")


class Conflict(Exception):
    """A compare-and-set met another revision."""

    def __init__(self, actual: int) -> None:
        super().__init__(actual)
        self.actual = actual


class Kv(Protocol):
    """The operations of clients. Any other error than `Conflict` leaves the outcome unknown."""

    def get(self, key: str) -> Awaitable[tuple[bytes, int] | None]: ...

    def put(self, key: str, value: bytes, expected: int | None) -> Awaitable[int]: ...

    def delete(self, key: str, expected: int | None) -> Awaitable[bool]: ...


class KvClient:
    """One client: does one thing after the other."""

    def __init__(self, name: int, kv: Kv, recording: Recording, chance: random.Random) -> None:
        self.name, self.kv, self.recording, self.chance = name, kv, recording, chance
        self.seen = dict.fromkeys(KEYS, 0)  # the newest revision it was told of each key
        self.count = 0

    async def run(self, count: int) -> None:
        for _ in range(count):
            await self.step()

    async def step(self) -> None:
        """Makes one call of a kind drawn by chance. Raises what the call raises, unless it is a conflict."""
        self.count += 1
        key, value = self.chance.choice(KEYS), b"%d.%d" % (self.name, self.count)
        match self.chance.choice(["get", "get", "put", "cas", "cas", "cas", "delete"]):
            case "get":
                with self.recording.operation(key, "get", None) as results:
                    found = await self.kv.get(key)
                    results.append(found)
                self.seen[key] = found[1] if found is not None else 0
            case "put":
                with self.recording.operation(key, "put", value) as results:
                    results.append(await self.kv.put(key, value, None))
                self.seen[key] = results[0]
            case "cas":
                expected = self.seen[key]
                with self.recording.operation(key, "cas", (expected, value)) as results:
                    try:
                        results.append(await self.kv.put(key, value, expected))
                        self.seen[key] = results[0]
                    except Conflict as conflict:
                        results.append(("conflict", conflict.actual))
                        self.seen[key] = conflict.actual
            case "delete":
                expected = self.chance.choice([None, self.seen[key]])
                with self.recording.operation(key, "delete", expected) as results:
                    try:
                        results.append(await self.kv.delete(key, expected))
                    except Conflict as conflict:
                        results.append(("conflict", conflict.actual))
