"""The names by which the controllers keep the numbers of a queue's lanes."""

from hashlib import blake2b
from typing import Final

from gateway.queues.model.bindings import QueueDefinition

RESERVED: Final = "amq."  # names that begin so are the gateway's
OF_MOVES: Final = f"{RESERVED}moved."  # the names of lanes in a store group that their queue was moved to begin so
_BYTES_MAX: Final = 200  # of a queue's name in that of its lane, which has a limit too


def lane_name(queue: str, priority: int, moves: int = 0) -> str:
    """Returns the name by which the number of a lane is kept, of a queue that was moved so often.

    No queue that clients declare has it, but that of a queue that has one lane and was never moved.
    """
    if not priority and not moves:
        return queue
    raw = queue.encode("utf-8", "surrogatepass")
    short = queue if len(raw) <= _BYTES_MAX else f"#{blake2b(raw, digest_size=32).hexdigest()}"
    return f"{RESERVED}lane.{priority}.{short}" if not moves else f"{OF_MOVES}{moves}.{priority}.{short}"


def former_names(definition: QueueDefinition) -> list[tuple[str, int]]:
    """Returns the names and numbers of a queue's lanes in the store group that it is being moved from."""
    move = definition.move
    if move is None or move.forgotten:
        return []
    return [(lane_name(definition.name, n, move.count - 1), number) for n, number in enumerate(move.earlier)]


def next_names(definition: QueueDefinition) -> list[str]:
    """Returns the names of a queue's lanes behind its next move, which may have been begun."""
    return [lane_name(definition.name, n, _moves(definition) + 1) for n in range(len(definition.written))]


def numbers_by_name(definition: QueueDefinition) -> list[tuple[str, int]]:
    """Returns the names and numbers of all lanes of a queue."""
    moves = _moves(definition)
    lanes = [(lane_name(definition.name, n, moves), number) for n, number in enumerate(definition.written)]
    return lanes + former_names(definition)


def _moves(definition: QueueDefinition) -> int:
    return 0 if definition.move is None else definition.move.count
