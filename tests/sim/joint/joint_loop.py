"""Virtual time for asyncio, in one thread: what happens next is what is due next, and nothing takes any time. Timers
ring a little before the time that was asked for, as those do that count whole milliseconds.

The product's own coroutines run on it as they are. Each belongs to a process, which is carried in the context that
asyncio hands on; when a process dies whatever it still had to do is never done. What would block a thread (a disk) is
done after as long as the process's disk takes, or, if it dies before, by chance.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial

HERE: ContextVar["Process | None"] = ContextVar("HERE", default=None)
CLOSES_MAX = 50  # awaits in the `finally` blocks of one coroutine that is thrown away
EARLY_S = 0.0005
TASKS_KEPT = 64  # that may have ended and are remembered all the same


class _Handle:
    """`asyncio.Handle`, without what is for debugging: most of what happens is one."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context")

    def __init__(self, callback, args, context) -> None:
        self._callback, self._args = callback, args
        self._context = context if context is not None else copy_context()
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None

    def cancelled(self) -> bool:
        return self._cancelled


class _Timer(_Handle):
    """`asyncio.TimerHandle`."""

    __slots__ = ("_when",)

    def __init__(self, when, callback, args, context) -> None:
        super().__init__(callback, args, context)
        self._when = when

    def when(self) -> float:
        return self._when


class _Numbered:
    """Hashes by its number, so that a set has one order in every process that plays a seed, not that of addresses."""

    number: int

    def __hash__(self) -> int:
        return self.number


class _Future(_Numbered, asyncio.Future):
    pass


class _Task(_Numbered, asyncio.Task):
    pass


class JointLoop(asyncio.BaseEventLoop):
    """Time stands in `now_s`. `after_each` is given the names of those to whom something has happened at a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.steps = 0
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, _Timer]] = []  # a heap; of the same time in order
        self._count = 0
        self.changed: dict[str, None] = {}
        self.after_each: Callable[[dict[str, None]], None] = lambda _changed: None
        self.errors: list[BaseException] = []  # that nobody has seen
        self.set_exception_handler(self._note)
        self.set_task_factory(_new_task)

    def time(self) -> float:
        return self.now_s

    @property
    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def _note(self, _loop, context) -> None:
        error = context.get("exception")
        if error is not None:
            self.errors.append(error)

    def run(self, duration_s: float) -> None:
        """Lets time pass."""
        until_s = self.now_s + duration_s
        asyncio._set_running_loop(self)
        try:
            while True:
                self._turn()
                due = self._due
                while due and due[0][2]._cancelled:
                    heapq.heappop(due)
                if not due or due[0][0] > until_s:
                    break
                when_s, _, handle = heapq.heappop(due)
                self.now_s = max(self.now_s, when_s)
                self._ready.append(handle)
            self.now_s = max(self.now_s, until_s)
        finally:
            asyncio._set_running_loop(None)

    def _turn(self) -> None:
        """Runs all that is due at this moment, and what follows from it at once."""
        ready = self._ready
        while ready:
            handle = ready.popleft()
            if handle._cancelled:
                continue
            here = handle._context.get(HERE)
            if here is not None and not here.runs:
                here.put_off(handle)
                continue
            self.steps += 1
            try:
                handle._context.run(handle._callback, *handle._args)
            except Exception as error:  # noqa: BLE001 - raised below
                self.errors.append(error)
            if self.errors:
                raise self.errors.pop()
        if self.changed:
            changed, self.changed = self.changed, {}
            self.after_each(changed)

    def create_future(self) -> _Future:
        future = _Future(loop=self)
        future.number = next(self._numbers)
        return future

    def task_of(self, coroutine, name, context) -> _Task:
        """Begins a task that has a number."""
        task = _Task.__new__(_Task)
        task.number = next(self._numbers)  # first: what begins is put into a set
        task.__init__(coroutine, loop=self, name=name, context=context)
        return task

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(self, when, callback, *args, context=None):
        if when - self.now_s > 2 * EARLY_S:  # for the little that is left then, somebody may wait once more
            when -= EARLY_S
        timer = _Timer(when, callback, args, context)
        self._count += 1
        heapq.heappush(self._due, (when, self._count, timer))
        return timer

    def call_soon(self, callback, *args, context=None):
        handle = _Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def at_once(self, handles: list[_Handle]) -> None:
        """Runs now what was put off."""
        self._ready.extend(handles)

    def _timer_handle_cancelled(self, _handle) -> None:
        pass

    def run_in_executor(self, _executor, function, *args):
        """Runs a blocking function in one step, after the time that this process's disk takes."""
        here = HERE.get()
        assert here is not None
        future = self.create_future()
        call = partial(function, *args)
        number = here.begin(call)

        def work() -> None:
            here.done(number)
            self.changed[here.name] = None
            if future.cancelled():
                with suppress(Exception):  # a thread goes on although nobody waits any more
                    call()
                return
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(here.disk_s(), work)
        return future

    def forget(self) -> None:
        """Forgets all that is to happen."""
        self._ready.clear()
        self._due.clear()
        self.close()

    async def shutdown_default_executor(self) -> None:
        pass


class Process:
    """A process of a simulated machine, from its start until it dies. `disk_s` is how long its disk takes for a thing.

    `runs` is looked at before anything of it is done.
    """

    def __init__(self, loop: JointLoop, name: str, disk_s: Callable[[], float] = lambda: 0.0) -> None:
        self.loop = loop
        self.name = name
        self.alive = self.runs = True
        self.disk_s = disk_s
        self._put_off: list[_Handle] = []  # while it was frozen
        self.context: Context = copy_context()
        self.context.run(HERE.set, self)
        self._tasks: list[asyncio.Task] = []
        self._purge_at = TASKS_KEPT
        self._doing: dict[int, Callable[[], object]] = {}  # things that the disk was given and that are not done
        self._number = 0

    def run(self, coroutine, name: str | None = None) -> asyncio.Task:
        """Begins a task in this process."""
        return self.context.copy().run(partial(self.loop.create_task, coroutine, name=name))

    def soon(self, function, *args) -> None:
        """Calls a function in this process on the next turn."""
        self.loop.call_soon(function, *args, context=self.context)

    def later(self, delay_s: float, function, *args) -> None:
        """Calls a function in this process later, unless the process dies before."""
        self.loop.call_later(delay_s, function, *args, context=self.context)

    def freeze(self) -> None:
        """Freezes the process as SIGSTOP does: time passes, and it does nothing."""
        self.runs = False

    def thaw(self) -> None:
        """Lets the process go on, which then handles all that has come meanwhile."""
        if self.alive:
            self.runs = True
            self.loop.at_once(self._put_off)
        self._put_off = []

    def put_off(self, handle: _Handle) -> None:
        if self.alive:
            self._put_off.append(handle)

    def adopt(self, task: asyncio.Task) -> None:
        self._tasks.append(task)
        if len(self._tasks) > self._purge_at:
            self._tasks = [one for one in self._tasks if not one.done()]
            self._purge_at = max(TASKS_KEPT, 2 * len(self._tasks))

    def begin(self, call: Callable[[], object]) -> int:
        self._number += 1
        self._doing[self._number] = call
        return self._number

    def done(self, number: int) -> None:
        self._doing.pop(number, None)

    def die(self) -> list[Callable[[], object]]:
        """Ends the process, and returns what the disk was about to do."""
        self.alive = self.runs = False
        self._put_off = []
        doing, self._doing = list(self._doing.values()), {}
        tasks, self._tasks = self._tasks, []
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(self.loop)
        try:
            for task in tasks:
                if not task.done():
                    self.context.copy().run(_throw_away, task)
        finally:
            asyncio._set_running_loop(running)
        return doing


def _new_task(loop, coroutine, *, name=None, context=None):
    task = loop.task_of(coroutine, name, context)
    here = HERE.get() if context is None else context.get(HERE)
    if here is not None:
        here.adopt(task)
        if not here.alive:
            _throw_away(task)
    return task


class _Death(BaseException):
    """Thrown into the coroutines of a dead process; nobody catches it."""


def _throw_away(task) -> None:
    """Ends a task of a dead process, which never continues and must not wait for the garbage collector."""
    task._log_destroy_pending = False
    coroutine = task.get_coro()
    for _ in range(CLOSES_MAX):
        try:
            coroutine.throw(_Death())  # the coroutine yields when it waits in a `finally`
        except BaseException:  # noqa: BLE001 - whatever it raises now, nobody is there to see it
            return
    raise AssertionError(f"{task.get_name()} cannot be ended")
