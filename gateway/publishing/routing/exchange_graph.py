"""Routing through exchanges that are bound to each other or have an alternate (RabbitMQ's extensions of AMQP 0-9-1).

A message visits each exchange once, whatever the cycles, and each queue gets it once. An alternate exchange is visited
where no binding of its exchange matches. The graph of an address is made once; only where its bindings look at headers
is it walked for each message.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from store.api.message import Message

Predicate: TypeAlias = Callable[[Message], bool]


class Edge(NamedTuple):
    """A binding that an address matches."""

    target: int | str  # a queue's number, or an exchange's name
    predicate: Predicate | None  # of the message; None: the address says all


class ExchangeNode(NamedTuple):
    """An exchange as one address sees it."""

    edges: Sequence[Edge]
    alternate: str | None  # the exchange for messages that no edge takes


Graph: TypeAlias = Mapping[str, ExchangeNode]  # by exchange; complete for all that can be reached from its beginning


def make_graph(start: str, node_of: Callable[[str], ExchangeNode | None]) -> Graph:
    """Returns the exchanges that may be reached from `start`; `node_of` gives None for one that does not exist."""
    graph: dict[str, ExchangeNode] = {}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        node = None if name in graph else node_of(name)
        if node is None:
            continue
        graph[name] = node
        waiting += [edge.target for edge in node.edges if isinstance(edge.target, str)]
        if node.alternate is not None and all(edge.predicate is not None for edge in node.edges):
            waiting.append(node.alternate)
    return graph


class GraphWalk:
    """The walks of messages of one address through its graph: one for each message, however many queues ask."""

    __slots__ = ("_found", "_graph", "_last", "_message", "_start", "asking", "certain")

    def __init__(self, start: str, graph: Graph) -> None:
        self._start = start
        self._graph = graph
        # A node without edges always goes on to its alternate; one whose edges look at messages perhaps does not.
        self.certain = tuple(self._reach(lambda edges: [e.target for e in edges if e.predicate is None], sure=True))
        possible = {e.target: None for node in graph.values() for e in node.edges if isinstance(e.target, int)}
        uncertain = [queue for queue in possible if queue not in self.certain]
        self.asking = tuple([(queue, partial(self._wants, queue)) for queue in uncertain])
        self._last = uncertain[-1] if uncertain else None  # the queue that is asked last
        self._message: Message | None = None  # of the walk that is remembered while its queues are asked
        self._found: Mapping[int, None] = {}

    def _wants(self, queue: int, message: Message) -> bool:
        if message is not self._message:
            self._found = self._reach(
                lambda edges: [e.target for e in edges if e.predicate is None or e.predicate(message)], sure=False
            )
        self._message = None if queue == self._last else message
        return queue in self._found

    def _reach(self, targets_of: Callable[[Sequence[Edge]], list[int | str]], *, sure: bool) -> dict[int, None]:
        """Returns the queues reached; with `sure` an alternate is visited only where its exchange has no edges."""
        seen: set[str] = set()
        queues: dict[int, None] = {}
        waiting = [self._start]
        while waiting:
            name = waiting.pop()
            node = None if name in seen else self._graph.get(name)
            if node is None:
                continue
            seen.add(name)
            targets = targets_of(node.edges)
            if node.alternate is not None and not (node.edges if sure else targets):
                waiting.append(node.alternate)
            for target in targets:
                if isinstance(target, int):
                    queues[target] = None
                else:
                    waiting.append(target)
        return queues
