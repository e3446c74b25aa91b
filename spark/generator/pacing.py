"""Messages at the pace at which they are due, or as fast as they are taken."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from spark.generator.fleet import Reading

BATCH_MAX = 500  # messages that are sent at once
TICK_S = 0.2


@dataclass
class Sent:
    """The progress of a run."""

    messages: int = 0
    due_ms: int = 0  # of the newest message that was sent
    lag_s: float = 0.0  # the greatest, of a message behind the time at which it was due


async def send_due(
    readings: Iterable[Reading],
    send: Callable[[Sequence[Reading]], Awaitable[None]],
    sent: Sent,
    *,
    paced: bool,
    now_ms: Callable[[], int],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Sends messages in their order, those that are due together; raises the errors of `send`."""
    waiting = iter(readings)
    first = next(waiting, None)
    while first is not None:
        if paced and (ahead_ms := first.due_ms - now_ms()) > 0:
            await sleep(max(ahead_ms / 1_000, TICK_S))
        began_ms, due_ms = now_ms(), first.due_ms
        some, first = _taken(first, waiting, began_ms if paced else None)
        await send(some)
        sent.messages += len(some)
        sent.due_ms = max(sent.due_ms, some[-1].due_ms)
        sent.lag_s = max(sent.lag_s, (began_ms - due_ms) / 1_000 - TICK_S) if paced else 0.0


def _taken(first: Reading, waiting: Iterator[Reading], until_ms: int | None) -> tuple[list[Reading], Reading | None]:
    """Returns the first message and those behind it that are due until a time, and the one behind these."""
    some = [first]
    for one in waiting:
        if len(some) >= BATCH_MAX or (until_ms is not None and one.due_ms > until_ms):
            return some, one
        some.append(one)
    return some, None
