"""The supervisor of child processes: it starts them, waits until they are ready, starts them again, and ends them.

`headgate serve --workers` keeps its workers by one, and the cluster of `headgate cluster up` is one.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

from gateway.process.child import Child, ChildFailed, end
from store.base import logs
from store.base.process_errors import HeadgateError
from store.base.streams.backoff import Backoff

READY_POLL_S = 0.05  # between two looks at children that are not ready
WAITING_S = 5.0  # between two words on who is waited for
AGAIN_MIN_S, AGAIN_MAX_S = 0.1, 10.0  # until a child that has ended is started again
STEADY_S = 30.0  # after so long a child that ends has not failed at once

log = logs.get(__name__)


class Supervisor:
    """Children by their names; `launch` starts one. It belongs to one thread, with which the children end.

    A child that ends has `stop_s` from SIGTERM to SIGKILL.
    """

    def __init__(self, launch: Callable[[str], Child], *, stop_s: float) -> None:
        self.children: dict[str, Child] = {}  # which were started, and not stopped since
        self.stop_s = stop_s
        self._launch = launch

    # ---- up

    def start(self, name: str) -> Child:
        """Starts a child that is not running. Raises `ChildFailed`."""
        assert not self.running(name)
        child = self.children[name] = self._launch(name)
        return child

    def running(self, name: str) -> bool:
        """Returns whether a child was started and has not ended."""
        child = self.children.get(name)
        return child is not None and child.running

    def check_running(self, names: Iterable[str]) -> None:
        """Raises `ChildFailed`: one of these children has ended."""
        for name in names:
            if not self.running(name):
                raise ChildFailed(self.describe_end(name))

    def describe_end(self, name: str) -> str:
        """Returns the sentence about a child that does not run."""
        child = self.children.get(name)
        return f"{name} was not started" if child is None else child.describe_end()

    def becoming_ready(
        self,
        names: Sequence[str],
        trouble: Callable[[str], str | None],
        *,
        timeout_s: float | None,
        waiting: Callable[[Mapping[str, str]], object] = lambda left: None,
    ) -> Iterator[Sequence[str]]:
        """Yields, at each look, the children that have become ready; the caller pauses between two looks.

        `trouble` says why a child is not ready, None of one that is. Without `timeout_s` they are waited for as long as
        all live. `waiting` is called every `WAITING_S` with those that are not ready, and why. Raises `ChildFailed`:
        one has ended, or the time is over.
        """
        began_s = said_s = time.monotonic()
        left = list(names)
        while left:
            troubles = {}
            for name in left:
                if not self.running(name):
                    logged = name in self.children and self.children[name].log is not None
                    raise ChildFailed(self.describe_end(name) + ("" if logged else " before it served"))
                if (why := trouble(name)) is not None:
                    troubles[name] = why
            ready, left = [name for name in left if name not in troubles], list(troubles)
            now_s = time.monotonic()
            if left and timeout_s is not None and now_s - began_s > timeout_s:
                file = self.children[left[0]].log
                raise ChildFailed(
                    f"not ready in {timeout_s:g} s: {', '.join(left)}" + ("" if file is None else f"; see {file}")
                )
            if left and now_s - said_s >= WAITING_S:
                said_s = now_s
                waiting(troubles)
            yield ready

    # ---- again

    async def keep(
        self,
        name: str,
        *,
        ended: Callable[[int, float], Awaitable[None]],
        start: Callable[[], Awaitable[None]],
    ) -> None:
        """Starts a child again whenever it ends, later and later while it ends at once.

        `ended` gets its exit status, and the seconds until `start` is called, which may raise `HeadgateError`.
        """
        backoff = Backoff(AGAIN_MIN_S, AGAIN_MAX_S)
        while True:
            began_s = time.monotonic()
            status = await self.children[name].ended()
            if time.monotonic() - began_s >= STEADY_S:
                backoff.reset()
            again_s = backoff.next_s()
            await ended(status, again_s)
            while not self.running(name):
                await asyncio.sleep(again_s)
                try:
                    await start()
                except HeadgateError as error:
                    again_s = backoff.next_s()
                    log.error("a process cannot be started again", name=name, error=str(error), again_s=again_s)

    # ---- down

    def stop(self, *names: str, kill: bool = False) -> Sequence[Child]:
        """Ends some children together, as `end` does; with `kill` at once. Returns those that were killed."""
        ending = [child for name in names if (child := self.children.pop(name, None)) is not None]
        return end(ending, 0.0 if kill else self.stop_s)
