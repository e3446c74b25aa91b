"""Publishes that wait until queues with gates have been counted, and later ones of the same publishers behind them.

Other processes fill and drain a queue, too. Where its gate is not sure of its length, the store is asked before the
gate decides on a message (`gateway.publishing.routing.length_gates`). Other publishers go on meanwhile. A publish
waits at most once: then its gates decide by what they know.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from gateway.domain.errors import Refusal
from gateway.port.adapter import Publish
from gateway.port.bodies import body_size
from gateway.publishing.publishing import NONE_DENIED, PublishSource
from gateway.publishing.routing.length_gates import LengthGate
from store.api.message import Message


class WaitingPublish(NamedTuple):
    """A `Publish` on its way to its frames: the arguments of its receipt."""

    publisher: PublishSource
    effect: Publish
    size_bytes: int
    denied: Mapping[int, Refusal] = NONE_DENIED
    counted: bool = False  # it has waited for counts


class PendingCounts:
    """The publishes that wait for counts. `resume` takes those that go on, of each publisher in their order."""

    def __init__(self, resume: Callable[[Sequence[WaitingPublish]], None]) -> None:
        self._resume = resume
        self.held: dict[PublishSource, list[WaitingPublish]] = {}
        self.wanted: dict[tuple[LengthGate, ...], list[PublishSource]] = {}  # since `begin`
        self._tasks: set[asyncio.Task[None]] = set()

    def hold(self, waiting: WaitingPublish, gates: Sequence[LengthGate]) -> None:
        """Keeps a publish, and those that are appended to its publisher's in `held`, until gates have counted."""
        self.held[waiting.publisher] = [waiting._replace(counted=True)]
        self.wanted.setdefault(tuple(gates), []).append(waiting.publisher)

    def begin(self) -> None:
        """Begins the counts that are wanted: one for all publishes that wait for the same gates."""
        wanted, self.wanted = self.wanted, {}
        for gates, publishers in wanted.items():
            task = asyncio.ensure_future(self._count(gates, publishers))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _count(self, gates: Sequence[LengthGate], publishers: Sequence[PublishSource]) -> None:
        await recounted(gates)
        self._resume([waiting for publisher in publishers for waiting in self.held.pop(publisher)])


async def recounted(gates: Iterable[LengthGate]) -> None:
    """Waits until the queues of some gates are counted, or cannot be."""
    await asyncio.wait([gate.recount() for gate in gates])


def unsure_gates(
    gates: Mapping[int, LengthGate], routed: Iterable[tuple[Message, Sequence[int]]]
) -> Sequence[LengthGate]:
    """Returns those of a process's gates that have to count before they decide on messages for some queues."""
    if not gates or next(iter(gates.values())).count is None:  # none counts: no other process has the queues
        return ()
    wanted: dict[LengthGate, tuple[int, int]] = {}
    for message, queues in routed:
        for queue in queues:
            if (gate := gates.get(queue)) is not None:
                count, size_bytes = wanted.get(gate, (0, 0))
                wanted[gate] = count + 1, size_bytes + (len(message.body) or body_size(message))
    return [gate for gate, (count, size_bytes) in wanted.items() if not gate.is_sure(count, size_bytes)]
