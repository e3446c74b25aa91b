"""Threads that run one at a time, in an order drawn from a seed and in virtual time.

`Scheduler.patched` puts stand-ins for `threading.Thread`, `queue.SimpleQueue` and their kind into the modules of a
package. Each thread is a real one, but only the one that holds the baton runs; it hands it on where it would wait, and
now and then where it could be interrupted. So a program with threads has as many histories as there are seeds, and each
can be had again. Time passes only when everybody waits, and as `elapse` says.
"""

import asyncio
import concurrent.futures
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue

HANDOVER_TIMEOUT_S = 60  # of real time: a thread that waits for something real instead of handing the baton on
PATIENCE_S = 20_000  # of virtual time without `progress`
SWITCH_CHANCE = 0.3  # at a place where a thread could be interrupted


class PowerLoss(BaseException):
    """Ends a thread where it stands. Nothing that catches `Exception` sees it."""


class Deadlock(AssertionError):
    """Every thread waits, and for nothing that time could bring."""


class _Task:
    def __init__(self, name: str) -> None:
        self.name = name
        self.baton = threading.Lock()
        self.baton.acquire()
        self.ready: Callable[[], bool] | None = None  # None: it could go on
        self.deadline_s: float | None = None
        self.done = False


class Scheduler:
    """The scheduler of threads and of time. Belongs to the thread that made it, which is the first of its threads."""

    def __init__(self, chance: random.Random, *, switch_chance: float = SWITCH_CHANCE) -> None:
        self.chance = chance
        self.now_s = 0.0
        self.errors: list[BaseException] = []  # errors that ended threads, or that the loop was told
        self.steps = 0  # places passed where a thread could be interrupted
        self.off = False  # the power is: threads end where they are, one after the other
        self.off_at: int | None = None  # the step at which it will be
        self.on_power_loss: Callable[[], None] = lambda: None
        self._switch_chance = switch_chance
        self._progress_s = 0.0
        self._main = self._current = _Task("main")
        self._tasks = [self._main]

    # ---- the baton

    def interrupt(self) -> None:
        """Marks a place where a thread could be interrupted, and sometimes switches to another one."""
        self.steps += 1
        if self.off_at is not None and self.steps >= self.off_at:
            self.cut_power()
        if self.off:
            self._end_here()
        elif self.chance.random() < self._switch_chance:
            self._switch()

    def block(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Waits until a condition holds, and returns whether it did in time."""
        if self.off and self._current is not self._main:
            raise PowerLoss
        if ready():
            return True
        task = self._current
        task.ready = ready
        task.deadline_s = None if timeout_s is None else self.now_s + max(timeout_s, 0)
        self._switch()
        task.ready = task.deadline_s = None
        if self.off:
            raise PowerLoss
        return ready()

    def elapse(self, seconds: float) -> None:
        """Lets this much time pass while the current thread works."""
        self.now_s += seconds

    def progress(self) -> None:
        """Reports progress to the first thread, whose wait fails when this is not called for long."""
        self._progress_s = self.now_s

    def cut_power(self) -> None:
        """Cuts the power: nothing is done from now on."""
        if not self.off:
            self.off, self.off_at = True, None
            self.on_power_loss()

    def _end_here(self) -> None:
        if self._current is not self._main:
            raise PowerLoss

    def _runnable(self) -> list[_Task]:
        now = self.now_s
        return [
            task
            for task in self._tasks
            if task.ready is None or (task.deadline_s is not None and task.deadline_s <= now) or task.ready()
        ]

    def _switch(self) -> None:
        """Lets another thread go on, or the current one where chance says so."""
        if self.off:
            following = self._main
        else:
            found = self._runnable()
            if not found:
                times = [task.deadline_s for task in self._tasks if task.deadline_s is not None]
                if not times or min(times) > self._progress_s + PATIENCE_S:
                    self.errors.append(Deadlock(f"all wait: {[task.name for task in self._tasks]}"))
                    self.cut_power()
                    found = [self._main]
                else:
                    self.now_s = min(times)
                    found = self._runnable()
            following = found[0] if len(found) == 1 else self.chance.choice(found)
        self._hand_to(following)

    def _hand_to(self, following: _Task) -> None:
        task = self._current
        if following is task:
            return
        self._current = following
        following.baton.release()
        if not task.done:
            self._wait_for_baton(task)

    @staticmethod
    def _wait_for_baton(task: _Task) -> None:
        if not task.baton.acquire(timeout=HANDOVER_TIMEOUT_S):
            raise RuntimeError(f"thread {task.name!r} was never given the baton back")

    # ---- threads

    def start(self, target: Callable[[], object], name: str) -> _Task:
        """Begins a thread, which runs when its turn comes."""
        task = _Task(name)

        def run() -> None:
            self._wait_for_baton(task)
            try:
                if not self.off:
                    target()
            except PowerLoss:
                pass
            except BaseException as error:  # noqa: BLE001 - whatever it is, the history has failed
                self.errors.append(error)
            task.done = True
            self._tasks.remove(task)
            self._switch()

        threading.Thread(target=run, name=name, daemon=True).start()
        self._tasks.append(task)
        return task

    def unwind(self) -> None:
        """Ends all threads but the first, which calls this with the power off."""
        assert self.off
        while len(self._tasks) > 1:
            self._hand_to(self._tasks[-1])

    def power_on(self) -> None:
        """Lets threads run again."""
        assert len(self._tasks) == 1
        self.off = False

    # ---- stand-ins

    @contextmanager
    def patched(self, package: str) -> Iterator[None]:
        """Puts this scheduler's threads in place of the system's, in the loaded modules of a package."""
        stand_ins = {
            id(threading.Thread): partial(_Thread, self),
            id(threading.Event): partial(_Event, self),
            id(threading.Lock): partial(_Lock, self),
            id(threading.RLock): partial(_RLock, self),
            id(threading.Condition): partial(_Condition, self),
            id(SimpleQueue): partial(_SimpleQueue, self),
            id(concurrent.futures.ThreadPoolExecutor): partial(_Executor, self),
            id(time.monotonic): lambda: self.now_s,
            id(time.perf_counter): lambda: self.now_s,
            id(time.sleep): lambda seconds: self.block(lambda: False, seconds),
        }
        replaced = []
        for module_name, module in list(sys.modules.items()):
            if module_name == package or module_name.startswith(package + "."):
                for name, value in list(vars(module).items()):
                    stand_in = stand_ins.get(id(value))
                    if stand_in is not None:
                        replaced.append((module, name, value))
                        setattr(module, name, stand_in)
        try:
            yield
        finally:
            for module, name, value in replaced:
                setattr(module, name, value)


class _Thread:
    def __init__(self, sim, *, target, name="thread", args=(), daemon=None):
        self._sim, self._call, self.name, self.daemon = sim, partial(target, *args), name, daemon
        self._task = None

    def start(self):
        self._task = self._sim.start(self._call, self.name)
        self._sim.interrupt()

    def join(self, timeout=None):
        self._sim.block(lambda: self._task.done, timeout)

    def is_alive(self):
        return self._task is not None and not self._task.done


class _Event:
    def __init__(self, sim):
        self._sim, self._set = sim, False

    def is_set(self):
        return self._set

    def set(self):
        self._set = True
        self._sim.interrupt()

    def clear(self):
        self._set = False

    def wait(self, timeout=None):
        return self._sim.block(self.is_set, timeout)


class _Lock:
    def __init__(self, sim):
        self._sim, self._held = sim, False

    def locked(self):
        return self._held

    def acquire(self, blocking=True, timeout=-1):
        if self._held and not (blocking and self._sim.block(lambda: not self._held, timeout if timeout >= 0 else None)):
            return False
        self._held = True
        return True

    def release(self):
        assert self._held
        self._held = False

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


class _RLock:
    def __init__(self, sim):
        self._sim, self._owner, self._count = sim, None, 0

    def acquire(self, blocking=True, timeout=-1):
        me = self._sim._current
        if self._owner not in {None, me} and not (
            blocking and self._sim.block(lambda: self._owner is None, timeout if timeout >= 0 else None)
        ):
            return False
        self._owner = me
        self._count += 1
        return True

    def release(self):
        assert self._owner is self._sim._current
        self._count -= 1
        if not self._count:
            self._owner = None

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


class _Condition:
    def __init__(self, sim, lock=None):
        self._sim, self._lock = sim, lock if lock is not None else _RLock(sim)
        self._waiting = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self):
        return self._lock.__enter__()

    def __exit__(self, *_):
        self._lock.__exit__()

    def wait(self, timeout=None):
        told = []
        self._waiting.append(told)
        self._lock.release()
        try:
            return self._sim.block(lambda: bool(told), timeout)
        finally:
            self._lock.acquire()

    def wait_for(self, predicate, timeout=None):
        deadline = None if timeout is None else self._sim.now_s + timeout
        while not (found := predicate()):
            left = None if deadline is None else deadline - self._sim.now_s
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n=1):
        for _ in range(min(n, len(self._waiting))):
            self._waiting.popleft().append(True)

    def notify_all(self):
        self.notify(len(self._waiting))


class _SimpleQueue:
    def __init__(self, sim):
        self._sim, self._items = sim, deque()

    def put(self, item, block=True, timeout=None):
        self._items.append(item)
        self._sim.interrupt()

    def get(self, block=True, timeout=None):
        if not self._items:
            if block:
                self._sim.block(lambda: bool(self._items), timeout)
            else:
                self._sim.interrupt()
            if not self._items:
                raise Empty
        return self._items.popleft()

    def get_nowait(self):
        return self.get(block=False)

    def put_nowait(self, item):
        self.put(item)

    def empty(self):
        return not self._items

    def qsize(self):
        return len(self._items)


class _Executor(concurrent.futures.Executor):
    def __init__(self, sim, max_workers=2, thread_name_prefix="pool", **_):
        self._sim, self._name, self._max = sim, thread_name_prefix, max_workers
        self._jobs, self._workers, self._idle = _SimpleQueue(sim), [], 0

    def submit(self, fn, /, *args, **kwargs):
        future = concurrent.futures.Future()
        if not self._idle and len(self._workers) < self._max:
            worker = _Thread(self._sim, target=self._work, name=f"{self._name}-{len(self._workers)}")
            self._workers.append(worker)
            worker.start()
        self._jobs.put((future, partial(fn, *args, **kwargs)))
        return future

    def _work(self):
        while True:
            self._idle += 1
            job = self._jobs.get()
            self._idle -= 1
            if job is None:
                return
            future, call = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - it is for the one who waits
                future.set_exception(error)
            else:
                future.set_result(result)

    def shutdown(self, wait=True, *, cancel_futures=False):
        for _ in self._workers:
            self._jobs.put(None)
        if wait:
            for worker in self._workers:
                worker.join()
        self._workers = []


class ThreadedLoop(asyncio.BaseEventLoop):
    """An event loop without sockets that waits as the scheduler's first thread, in its time."""

    def __init__(self, sim: Scheduler) -> None:
        super().__init__()
        self._sim = sim
        self._selector = self
        self._woken = False
        self._pool = _Executor(sim, 2, "loop")
        self.set_exception_handler(self._failed)

    def _failed(self, loop, context):
        error = context.get("exception")
        if not isinstance(error, PowerLoss) and "never retrieved" not in context["message"]:  # told by who is deleted
            self._sim.errors.append(error or AssertionError(context["message"]))

    def time(self) -> float:
        """Returns the virtual time."""
        return self._sim.now_s

    def select(self, timeout: float | None) -> tuple[()]:
        """Waits for a thread or for the time."""
        if self._sim.off:
            raise PowerLoss
        if timeout is not None and timeout <= 0:
            self._sim.interrupt()
        else:
            self._sim.block(lambda: self._woken, timeout)
        self._woken = False
        if self._sim.off:
            raise PowerLoss
        return ()

    def _process_events(self, events):
        pass

    def _write_to_self(self):
        self._woken = True

    def run_in_executor(self, executor, func, *args):
        """Runs a function in a thread of the scheduler."""
        return asyncio.wrap_future((executor or self._pool).submit(func, *args), loop=self)

    def end(self) -> None:
        """Closes the loop and its threads; with the power off its tasks are left where they are."""
        if self._sim.off:
            for task in asyncio.all_tasks(self):
                task._log_destroy_pending = False
                with suppress(RuntimeError):
                    task.get_coro().close()
        else:
            self._pool.shutdown()
        self.close()
