"""Clients of the simulated cluster: producers that repeat until they know, and readers and writers of keys."""

import random

import msgspec
from cluster_world import World
from linearizability import UNKNOWN, Operation

__all__ = ["KeyClient", "Producer"]

KEYS = ("x", "y")
PAUSE_MS = (0, 60)
PATIENCE_MS = (60, 400)


class _Client:
    """One question after the other, to whoever is believed to be master; again when no answer comes."""

    def __init__(self, world: World, name: str, producer: int, replicas: list[int]) -> None:
        self.world = world
        self.name = name
        self.producer = producer
        self.replicas = replicas
        self.chance = random.Random(world.chance.random())
        self.target = self.chance.choice(replicas)
        self.sequence = 0
        self.number = 0  # of the question under way
        self.asking = None  # what is asked, until it is answered
        self.done = 0
        self.stopped = False
        world.doors[name] = self._receive
        world.after(self.chance.randint(*PAUSE_MS), self._next)

    def _next(self) -> None:
        if not self.stopped:
            self.asking = self.begin()
            self._ask()

    def _ask(self) -> None:
        self.number += 1
        kind, *rest = self.asking
        self.world.send(self.name, self.target, (kind, self.number, *rest))
        number = self.number
        self.world.after(self.chance.randint(*PATIENCE_MS), lambda: self._impatient(number))

    def _impatient(self, number: int) -> None:
        if self.asking is not None and self.number == number:
            self._elsewhere(None)

    def _elsewhere(self, hint: int | None) -> None:
        self.target = hint if hint is not None else self.chance.choice(self.replicas)
        self._ask()

    def _receive(self, source, message) -> None:
        _, number, answer = message
        if self.asking is None:
            return
        if answer[0] == "ok":
            # An answer to any time the same question was put is one.
            if number >= self.first:
                self.target = source
                self.asking = None
                self.done += 1
                self.ended(answer)
                self.world.after(self.chance.randint(*PAUSE_MS), self._next)
        elif number == self.number:
            self.number += 1
            self.world.after(self.chance.randint(1, 20), lambda again=self.number: self._again(again, answer))

    def _again(self, number: int, answer) -> None:
        if self.asking is not None and self.number == number:
            self._elsewhere(answer[1] if answer[0] == "refused" else None)

    def begin(self):
        self.first = self.number + 1
        return self.question()


class Producer(_Client):
    """Appends, and repeats every append until it is acknowledged."""

    def __init__(self, *args, on_acknowledged) -> None:
        super().__init__(*args)
        self.on_acknowledged = on_acknowledged

    def question(self):
        self.sequence += 1
        record = msgspec.msgpack.encode(["message", "." * self.chance.randint(0, 120)])
        return ("append", self.producer, self.sequence, record)

    def ended(self, answer) -> None:
        _, start, end, _ = answer
        self.on_acknowledged(self.producer, self.sequence, start, end)


class KeyClient(_Client):
    """Reads, puts, and compares and sets; what it was told is its history."""

    def __init__(self, *args, history: list[Operation], on_acknowledged) -> None:
        super().__init__(*args)
        self.history = history
        self.on_acknowledged = on_acknowledged
        self.seen = dict.fromkeys(KEYS, 0)
        self.writes = self.chance.choice([0.02, 0.5, 0.9])  # who only reads stays with a master that is none any more

    def question(self):
        self.called = self.world.now
        self.key = key = self.chance.choice(KEYS)
        self.kind = self.chance.choice(["put", "cas"]) if self.chance.random() < self.writes else "get"
        if self.kind == "get":
            return ("get", key)
        self.sequence += 1
        self.value = f"{self.producer}.{self.sequence}"
        self.expected = self.seen[key]
        what = ["put", key, self.value] if self.kind == "put" else ["cas", key, self.expected, self.value]
        return ("append", self.producer, self.sequence, msgspec.msgpack.encode(what))

    def ended(self, answer) -> None:
        if self.kind == "get":
            result = answer[1]
            self.seen[self.key] = result[1] if result is not None else 0
        else:
            _, start, end, result = answer
            self.on_acknowledged(self.producer, self.sequence, start, end)
            if isinstance(result, list):
                result = tuple(result)
            self.seen[self.key] = result[1] if isinstance(result, tuple) else result
        self._record(result, self.world.now)

    def give_up(self) -> None:
        """What is still asked may happen later, or never."""
        self.stopped = True
        if self.asking is not None and self.kind != "get":
            self._record(None, UNKNOWN)
        self.asking = None

    def _record(self, result, returned) -> None:
        argument = {"get": None, "put": getattr(self, "value", None)}.get(self.kind)
        if self.kind == "cas":
            argument = (self.expected, self.value)
        self.history.append(Operation(self.key, self.kind, argument, result, self.called, returned))
