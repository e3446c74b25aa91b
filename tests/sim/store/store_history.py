"""One seeded history of a store: what is asked of it, how its disk fails, when the power does; and what must be true.

The store runs as it is, its threads included, on `cooperative.Scheduler` and `faulty_files.Disk`. LMDB needs a real
directory: a power failure leaves the views as of the newest transaction or of the one before it, as LMDB without
metasync may, or takes them away altogether.
"""

import asyncio
import errno
import logging
import random
import shutil
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from store.api.keys import Delete, Put
from store.api.log import Appended, IndexKind
from store.base.errors import (
    AppendOutcomeUnknown,
    OffsetOutOfRange,
    SequenceOutOfOrder,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreOverloaded,
)
from store.engine.engine import Engine
from store.format.frame import FRAME_ASYNC, ROW, ROW_EXTRA, ROW_INDEX_ADDRESS, ROW_INDEX_KEY, UnplacedFrame
from store.format.records import TIMERS_QUEUE, TimerSet, encode
from store.format.timer_key import TimerKey
from store.local import local as local_module
from store.local.local import LocalStore
from store.log.retention import UNLIMITED, RetentionLimits
from store.log.segment import segment_name
from store.views import Views
from tests.sim.cooperative import PowerLoss, Scheduler, ThreadedLoop
from tests.sim.store.faulty_files import Disk
from tests.sim.store.followed_log import FollowedLog, frames_of
from tests.support.store.store_kit import bodies

QUEUES = (16, 17, 300)
KEYS = ("a", "a/1", "b", "ü")
NAMESPACES = ("", "n")
GROUPS = ("g", "h")
ADDRESSES = ("x", "x/y", "z")
PRODUCERS = (7, 8)
OWNERS = (1, 2)
DAY_MS = 86_400_000
START_MS = 1_700_000_000_000
IN_FLIGHT_MAX = 8
TRIMS_CHANCE = 0.2
REPLICATED_CHANCE = 0.3
LATE_S_MAX = 0.02  # until other replicas have what the master has
OFF_STEPS_MAX = (10, 50, 400)  # from when a power failure is decided until it comes
REFUSED = (StoreFailed, StoreFull, StoreOverloaded, StoreClosed, SequenceOutOfOrder)
UNKNOWN_OR_REFUSED = (AppendOutcomeUnknown, *REFUSED)

# The steps, and how often each is chosen.
STEPS = {
    "append": 14,
    "retry": 4,
    "put": 8,
    "delete": 2,
    "transact": 3,
    "get": 4,
    "limit": 1,
    "commit": 3,
    "forget_group": 1,
    "note": 2,
    "set_timer": 4,
    "cancel_timer": 2,
    "take": 5,
    "settle": 5,
    "requeue": 2,
    "release": 1,
    "purge": 1,
    "forget_queue": 1,
    "fetch": 5,
    "pause": 8,
    "set_clock": 2,
    "check": 3,
    "flip": 2,
    "fault": 2,
    "fill": 1,
    "make_room": 2,
    "restart": 1,
    "crash": 3,
}


class Others:
    """Hooks of a master whose other replicas confirm a little later what it has on disk."""

    def __init__(self, sim):
        self.sim = sim
        self.confirm = lambda end: None

    def written(self, end):
        pass

    def flushed(self, end):
        asyncio.get_running_loop().call_later(self.sim.chance.random() * LATE_S_MAX, lambda: self.confirm(end))

    def damaged(self):
        pass

    def lost(self, at):
        return False

    def failed(self, error):
        pass


class StoreHistory:
    """A store, a disk, a model of what the log says, and chance."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.chance = random.Random(seed)
        self.sim = Scheduler(random.Random(self.chance.random()), switch_chance=self.chance.choice([0.02, 0.1, 0.4]))
        self.disk = Disk(random.Random(self.chance.random()))
        self.disk.on_operation = self._operation
        self.disk.short_chance = self.chance.choice([0, 0, 0.2])
        self.directory = directory
        self.path = directory / "data"
        self.path.mkdir()  # for what is not the log: the views and the lock
        self.trims = self.chance.random() < TRIMS_CHANCE  # old segments are deleted
        self.views_before = directory / "views before"
        self.disk.mount(directory)
        self.model = FollowedLog()
        self.log = bytearray()  # all bytes that the model has seen
        self.allowed: Counter = Counter()  # frames that may be in the log, each so often
        self.stored: Counter = Counter()  # those that are
        self.reported: dict = {}  # the outcomes of records, as the store reported them
        self.numbers = self.skew_ms = 0
        self.counts: Counter = Counter()
        self.sequences: dict = {producer: [] for producer in PRODUCERS}  # [sequence, frame, "sent" or outcome]
        self.busy_producers: set = set()
        self.store: LocalStore | None = None
        self.engine: Engine | None = None
        self.flying: set = set()
        self.forget()

    def forget(self) -> None:
        """Drops what does not outlive a process."""
        self.model.restart()
        self.deleting = self.deletions = 0
        self.cancelling: set = set()
        self.failed = False
        self.store = None
        self.flying = set()

    def number(self) -> bytes:
        self.numbers += 1
        return b"%d" % self.numbers

    def now_ms(self) -> int:
        """Returns the wall clock's time, which may be set."""
        now_ms = START_MS + self.skew_ms + int(self.sim.now_s * 1000)
        self.model.latest_ms = max(self.model.latest_ms, now_ms)
        return now_ms

    def _operation(self, operation: str) -> None:
        if operation == "sync":
            self.sim.elapse(self.sim.chance.random() * 0.002)
        self.sim.interrupt()

    # ---- one process after the other

    def run(self, steps: int) -> None:
        """Plays this many steps, over as many processes as they take, and then compares everything."""
        logging.disable(logging.CRITICAL)
        try:
            self.left = steps
            while self.left > 0:
                self._process(self._live)
            self.disk.heal()
            self.disk.short_chance = 0
            while not self._process(self._check_and_close):
                self.disk.heal()
            self._check_rebuild()
        finally:
            logging.disable(logging.NOTSET)

    def _process(self, live) -> bool:
        """Runs a process from its start to its end, and returns whether it closed the store."""
        self.ending = "kill"
        loop = ThreadedLoop(self.sim)
        closed = False
        with self._watched(), self.sim.patched("store"):
            try:
                closed = loop.run_until_complete(live())
            except PowerLoss:
                pass
            except (OSError, StoreFull) as error:  # the store did not open
                if (isinstance(error, OSError) and error.errno != errno.EIO) or self.store is not None:
                    raise
                self.counts["unopened"] += 1
                self.disk.heal()
            finally:
                waiting = [str(task) for task in asyncio.all_tasks(loop)]
                if not closed:
                    self.sim.cut_power()
                    self.sim.unwind()
                    self._dig_out()
                self.sim.off_at = None
                loop.end()
                if self.sim.off:
                    self.sim.power_on()
        self.forget()
        if self.sim.errors:
            raise AssertionError(f"a thread or a task has failed; at that time: {waiting}") from self.sim.errors[0]
        if not closed:
            self._after_crash()
        return closed

    @contextmanager
    def _watched(self):
        history = self

        class Watched(Engine):
            def __init__(self, *args, **options):
                history.engine = self
                super().__init__(*args, **options)

            def append(self, frame, done, **how):
                super().append(frame, history.submitted(frame, done), **how)

            def append_own(self, frame, done):
                if isinstance(frame, UnplacedFrame):
                    super().append_own(frame, history.submitted(frame, done))
                    return
                answers = []

                def late():
                    made = frame()
                    answers.append(history.submitted(made, done))
                    return made

                super().append_own(late, lambda outcome: answers[0](outcome) if answers else done(outcome))

        def apply(views, runs, apply=Views.apply):
            if views.path.exists():
                shutil.copytree(views.path, history.views_before, dirs_exist_ok=True)
            apply(views, runs)

        with mock.patch.object(local_module, "Engine", Watched), mock.patch.object(Views, "apply", apply):
            yield

    async def _open(self) -> None:
        chance = self.chance
        self.engine = None
        others = Others(self.sim) if chance.random() < REPLICATED_CHANCE else None
        store = await LocalStore.open(
            self.path,
            replication=others,
            files=self.disk,
            now_ms=self.now_ms,
            linger_s=chance.choice([0.0005, 0.1, 3600]),
            segment_size_bytes=chance.choice([2_000, 10_000]),
            cache_bytes_max=chance.choice([0, 1500, 1 << 20]),
            disk_reserve_bytes=chance.choice([0, 1_000]),
            map_size_bytes=1 << 28,
            pending_bytes_max=chance.choice([4_000, 1 << 20]),
            retention=RetentionLimits(size_bytes=2_000) if self.trims else UNLIMITED,
            retention_interval_s=1,
        )
        if others is not None:
            others.confirm = store.replication.confirm
        recorder, report = store.core.recorder, store.core.recorder.report

        def remember(outcomes):
            self.reported.update(outcomes)
            report(outcomes)

        recorder.report = remember
        self.store = store
        self.check_log()

    async def _live(self) -> bool:
        await self._open()
        names, weights = list(STEPS), list(STEPS.values())
        refused = self.counts["StoreFull"]
        while self.left > 0:
            self.left -= 1
            self.sim.progress()
            step = self.chance.choices(names, weights)[0]
            self.counts[step] += 1
            if step == "crash":
                self._decide_crash()
            elif step == "restart":
                return await self._check_and_close(opened=True)
            else:
                await self._step(step)
            full = self.counts["StoreFull"]
            if full > refused and self.chance.random() < 0.1:
                self._decide_crash()  # refused records must not be there afterwards
            refused = full
            if self.failed and self.chance.random() < 0.3:
                await self._check_refusing()
                self._decide_crash()
                self.sim.cut_power()
        return await self._check_and_close(opened=True)

    async def _step(self, step: str) -> None:
        task = asyncio.create_task(self._tolerant(getattr(self, step)), name=step)
        self.flying.add(task)
        task.add_done_callback(self.flying.discard)
        if step in AWAITED or self.chance.random() < 0.5:
            await task
        while len(self.flying) > IN_FLIGHT_MAX:
            await asyncio.wait(self.flying, return_when=asyncio.FIRST_COMPLETED)

    async def _tolerant(self, doing) -> None:
        """Runs a step, which the store may refuse but not get wrong."""
        try:
            await doing()
        except UNKNOWN_OR_REFUSED as error:
            self.counts[type(error).__name__] += 1
            if isinstance(error, AppendOutcomeUnknown | StoreFailed):
                self.failed = True
        except BaseException as error:
            if isinstance(error, Exception):
                self._wrong(error)
            raise

    def _wrong(self, error: Exception) -> None:
        """Ends the history with an error."""
        self.sim.errors.append(error)
        self.sim.cut_power()

    async def _quiet(self) -> None:
        """Waits until no operation is in flight."""
        while self.flying - {asyncio.current_task()}:
            await asyncio.wait(self.flying - {asyncio.current_task()})

    async def _check_and_close(self, *, opened: bool = False) -> bool:
        if not opened:
            await self._open()
        await self._quiet()
        if not self.failed:
            await self.check()
        await self.store.close()
        self.advance()
        return True

    def _decide_crash(self) -> None:
        self.ending = self.chance.choice(["power", "power", "power", "kill"])
        self.sim.off_at = self.sim.steps + self.chance.randint(1, self.chance.choice(OFF_STEPS_MAX))

    def _dig_out(self) -> None:
        """Closes what the process has left open."""
        opened = getattr(self.engine, "_opened", None)
        if opened is not None:
            self.advance()
            opened.close()
        self.engine = None

    def _after_crash(self) -> None:
        self.counts["crash by " + self.ending] += 1
        for sent in self.sequences.values():
            for entry in sent:
                if entry[2] == "sent":
                    entry[2] = "unknown"
        self.busy_producers = set()
        if self.ending == "kill":
            self.disk.heal()
            return
        self.disk.lose_power()
        views, fate = self.path / "views", self.chance.random()
        if fate < 0.1 and not self._segments()[0]:
            shutil.rmtree(views, ignore_errors=True)
        elif fate < 0.4 and self.views_before.exists():
            shutil.rmtree(views, ignore_errors=True)
            shutil.copytree(self.views_before, views)

    # ---- appends as the engine sees them

    def submitted(self, frame: UnplacedFrame, done):
        """Notes an appended frame, and returns the function to call instead of `done`."""
        key = (frame.rows, frame.payload, frame.producer_id, frame.sequence)
        self.allowed[key] += 1

        def answered(outcome):
            try:
                self._answered(frame, key, outcome)
            except Exception as error:  # noqa: BLE001 - the store would only log it
                self._wrong(error)
            done(outcome)

        return answered

    def _answered(self, frame: UnplacedFrame, key: tuple, outcome: Appended | StoreError) -> None:
        if isinstance(outcome, Appended):
            self._acknowledged(frame, outcome)
            self.allowed[key] -= outcome.duplicate
        elif isinstance(outcome, AppendOutcomeUnknown):
            self.failed = True
        else:
            assert isinstance(outcome, REFUSED), repr(outcome)
            self.failed = self.failed or isinstance(outcome, StoreFailed)
            self.allowed[key] -= 1

    def _acknowledged(self, frame: UnplacedFrame, outcome: Appended) -> None:
        """Checks that an acknowledged frame is on disk, whole, and where its acknowledgement says, unless it is
        async.
        """
        waited = (
            self.store is not None and self.store.replication.gate is not None
        )  # for others, with it on disk before
        assert outcome.duplicate or waited or not self.failed, "acknowledged after the store has failed"
        if frame.flags & FRAME_ASYNC or outcome.frame < self._segments()[0]:
            return
        start = max(s for s in self._segments() if s <= outcome.frame)
        data = self.disk.durable(self.path / "log" / segment_name(start))[outcome.frame - start :]
        found = next(frames_of(data, outcome.frame), None)
        assert found is not None, f"acknowledged and not on disk: {outcome}"
        assert (found.rows, found.payload) == (frame.rows, frame.payload)

    def _segments(self) -> list[int]:
        return [int(name[:20]) for name in self.disk.names(self.path / "log") if name.endswith(".log")]

    def _log_bytes(self, start: int, end: int) -> bytes:
        """Returns the bytes of the files between two log offsets."""
        starts = self._segments()
        found = bytearray()
        for first, following in zip(starts, [*starts[1:], 1 << 62], strict=True):
            if first < end and following > start:
                data = self.disk.data(self.path / "log" / segment_name(first))
                found += data[max(start - first, 0) : min(following, end) - first]
        return bytes(found)

    def advance(self) -> None:
        """Brings the model to the end of what readers may see, and compares the outcomes of the records."""
        # The offset that the store's loop has taken in, or, where that has ended, the one up to which readers could
        # have seen.
        model = self.model
        confirmed = self.engine.log.confirmed if self.store is None or self.sim.off else self.store.log.confirmed
        if confirmed <= model.at:
            return
        data = self._log_bytes(model.at, confirmed)
        for frame in frames_of(data, model.at):
            key = (frame.rows, frame.payload, *frame.producer)
            self.stored[key] += 1
            assert self.stored[key] <= self.allowed[key], f"refused or never appended, and stored: {frame}"
            model.apply(frame)
            self.log += frame.data
        assert model.at == confirmed, f"no whole frame at {model.at}, which is confirmed up to {confirmed}"
        for at in [at for at in self.reported if at.frame < model.at]:
            said, expected = self.reported.pop(at), model.outcomes.get(at)
            assert repr(said) == repr(expected), f"{at}: the store says {said!r}, the model {expected!r}"

    def check_log(self) -> None:
        """Checks after a start that all that was reported is there unchanged, and that no frame is there in part."""
        assert not self.store.corruptions, self.store.corruptions
        confirmed = self.store.log.confirmed
        assert confirmed >= self.model.at, f"readers had seen up to {self.model.at}, now there is only {confirmed}"
        first = self._segments()[0]
        assert self._log_bytes(first, self.model.at) == bytes(self.log[first:]), "the log has changed"
        self.advance()
        assert first <= self.model.first, "deleted before the log said so"
        for producer, sent in self.sequences.items():
            for entry in sent:
                if entry[2] == "stored" and (producer, entry[0]) not in self.model.producers:
                    assert entry[1].flags & FRAME_ASYNC, f"acknowledged and lost: {producer}, {entry[0]}"
                    entry[2] = "unknown"

    # ---- steps: the log

    def frame(self, **options) -> UnplacedFrame:
        """Returns a frame of some records, each unlike all others, perhaps in several queues."""
        chance = self.chance
        rows, payload = [], b""
        for _ in range(chance.choice([1, 1, 1, 3, 12])):
            body = self.number() + b"." * chance.choice([0, 0, 10, 300])
            flags = chance.choice([0, ROW_INDEX_KEY, ROW_INDEX_ADDRESS, ROW_INDEX_KEY | ROW_INDEX_ADDRESS])
            hashes = [chance.randrange(4) for _ in range(3)]
            for extra, queue in enumerate(chance.sample(QUEUES, chance.choice([1, 1, 2]))):
                flags |= ROW_EXTRA if extra else 0
                rows.append(ROW.pack(queue, len(payload), len(body), flags, *hashes, self.now_ms()))
            payload += body
        return UnplacedFrame.build(
            b"".join(rows),
            payload,
            flags=chance.choice([0, 0, FRAME_ASYNC]),
            compress_bytes_min=chance.choice([0, 200]),
            **options,
        )

    def send(self, frame: UnplacedFrame) -> asyncio.Future:
        future = asyncio.get_running_loop().create_future()
        self.store.log.append(frame, future.set_result)
        return future

    async def append(self) -> None:
        producer = self.chance.choice([0, *PRODUCERS])
        count = self.chance.choice([1, 1, 3, 8])
        if not producer or producer in self.busy_producers:
            frames = [self.frame() for _ in range(count)]
            for outcome in await asyncio.gather(*map(self.send, frames)):
                if isinstance(outcome, StoreError):
                    raise outcome
            return
        sent = self.sequences[producer]
        if any(entry[2] != "stored" for entry in sent):
            return  # first what is open has to be tried again
        for _ in range(count):
            sequence = sent[-1][0] + 1 if sent else 1
            sent.append([sequence, self.frame(producer_id=producer, sequence=sequence), "unknown"])
        await self._send_producer(producer, sent[-count:])

    async def retry(self) -> None:
        """Sends again what may have been stored, and something that was."""
        producer = self.chance.choice(PRODUCERS)
        if producer in self.busy_producers:
            return
        sent = self.sequences[producer]
        first = next((i for i, entry in enumerate(sent) if entry[2] != "stored"), len(sent))
        await self._send_producer(producer, sent[max(first - self.chance.randrange(3), 0) :])

    async def _send_producer(self, producer: int, entries: list) -> None:
        self.busy_producers.add(producer)
        was = [entry[2] for entry in entries]
        for entry in entries:
            entry[2] = "sent"
        outcomes = await asyncio.gather(*(self.send(frame) for _, frame, _ in entries))
        self.advance()
        for entry, before, outcome in zip(entries, was, outcomes, strict=True):
            if isinstance(outcome, Appended):
                entry[2] = "stored"
                assert outcome.duplicate or before != "stored", "stored twice"
                if not entry[1].flags & FRAME_ASYNC:
                    assert self.model.producers[producer, entry[0]] == outcome.frame
            else:
                entry[2] = before if before == "stored" else "unknown"
        self.busy_producers.discard(producer)

    async def fetch(self) -> None:
        queue = self.chance.choice(QUEUES)
        self.advance()
        offset = self.chance.randint(0, len(self.model.queues[queue]))
        life = self.queue_life()
        try:
            found = await self.store.queues.fetch(queue, offset, max_bytes=self.chance.choice([1, 500, 1 << 20]))
        except OffsetOutOfRange as error:
            if self.queue_life() == life and not (self.trims and offset < error.first):
                raise
            return
        self.advance()
        if self.queue_life() == life:
            records = [f.record(row) for f, rows in zip(found.frames, found.rows, strict=True) for row in rows]
            assert records == self.model.queues[queue][offset : found.next]

    def queue_life(self) -> tuple:
        """Returns a value that stays equal as long as no queue is deleted."""
        return self.deletions, object() if self.deleting else None

    async def forget_queue(self) -> None:
        queue = self.chance.choice(QUEUES)
        self.deleting += 1
        self.deletions += 1
        try:
            await self.store.queues.delete(queue)
        finally:
            self.deleting -= 1
        self.model.end_leases(queue)

    # ---- steps: keys and values, groups, addresses

    def _slot(self) -> tuple[str, str]:
        return self.chance.choice(NAMESPACES), self.chance.choice(KEYS)

    def _expected(self, slot) -> int | None:
        held = self.model.kv.values.get(slot)
        return self.chance.choice([None, None, -1, 0, held.revision if held else 0])

    def _expiry(self) -> int | None:
        return self.now_ms() + self.chance.choice([1, 50, 3_000]) if self.chance.random() < 0.2 else None

    async def put(self) -> None:
        namespace, key = slot = self._slot()
        value, since, expected = self.number(), self.store.log.confirmed, self._expected(slot)
        try:
            revision = await self.store.keys.put(
                key, value, expected_revision=expected, namespace=namespace, expires_at_ms=self._expiry()
            )
        except StoreError as error:
            if isinstance(error, UNKNOWN_OR_REFUSED):
                raise
            return  # which one it has to be is compared with the model by its place in the log
        assert revision > since
        self.advance()
        assert (namespace, revision, "put", key, value) in [change[:5] for change in self.model.kv.changes[-200:]]

    async def delete(self) -> None:
        namespace, key = slot = self._slot()
        try:
            await self.store.keys.delete(key, expected_revision=self._expected(slot), namespace=namespace)
        except StoreError as error:
            if isinstance(error, UNKNOWN_OR_REFUSED):
                raise

    async def transact(self) -> None:
        namespace, key = slot = self._slot()
        expected = self._expected(slot)
        operations = [
            Put(one, self.number(), self._expiry()) if self.chance.random() < 0.7 else Delete(one)
            for one in self.chance.sample(KEYS, self.chance.randint(1, len(KEYS)))
        ]
        try:
            await self.store.keys.transact({} if expected is None else {key: expected}, operations, namespace=namespace)
        except StoreError as error:
            if isinstance(error, UNKNOWN_OR_REFUSED):
                raise

    async def limit(self) -> None:
        await self.store.keys.limit(
            "n", keys_max=self.chance.choice([0, 2]), size_bytes_max=self.chance.choice([0, 20])
        )

    async def get(self) -> None:
        namespace, key = slot = self._slot()
        since = self.store.log.confirmed
        entry = await self.store.keys.get(key, namespace=namespace)
        now_ms = self.store.keys.clock()
        self.advance()
        versions = self.model.kv.versions(slot, since)
        if entry is None:
            assert any(held is None or not held.live(now_ms) for held in versions)
        else:
            found = (entry.value, entry.revision, entry.create_revision, entry.version, entry.expires_at_ms or 0)
            assert found in versions

    async def commit(self) -> None:
        offsets = {self.chance.choice(QUEUES): self.chance.randrange(100) for _ in range(2)}
        await self.store.groups.commit(self.chance.choice(GROUPS), offsets)

    async def forget_group(self) -> None:
        await self.store.groups.delete(self.chance.choice(GROUPS))

    async def note(self) -> None:
        addresses = self.chance.sample(ADDRESSES, 2)
        await self.store.log.note_addresses(addresses)
        self.advance()
        assert self.model.addresses.issuperset(addresses)

    # ---- steps: timers

    async def set_timer(self) -> None:
        body = self.number()
        due_ms = self.now_ms() + self.chance.choice([-5, 1, 50, 2_000, DAY_MS, 90 * DAY_MS])
        rows = ROW.pack(self.chance.choice(QUEUES), 0, len(body), 0, 0, self.chance.randrange(4), 0, 0)
        record = encode(TimerSet(due_ms, rows, body))
        row = ROW.pack(TIMERS_QUEUE, 0, len(record), 0, 0, 0, 0, 0)
        outcome = await self.send(UnplacedFrame.build(row, record))
        if isinstance(outcome, StoreError):
            raise outcome
        self.advance()
        key = TimerKey(due_ms, outcome.frame, 0)
        assert key in self.model.timers or self.model.ended_timers[key] == "fired"

    async def cancel_timer(self) -> None:
        pending = sorted(set(self.model.timers) - self.cancelling)
        if not pending:
            return
        key = self.chance.choice(pending)
        self.cancelling.add(key)
        try:
            cancelled = await self.store.timers.cancel(str(key))
        finally:
            self.cancelling.discard(key)
        self.advance()
        assert key not in self.model.timers
        assert not cancelled or self.model.ended_timers[key] == "cancelled"

    # ---- steps: leases

    async def take(self) -> None:
        chance = self.chance
        self.advance()
        queue, owner, count = chance.choice(QUEUES), chance.choice(OWNERS), chance.randint(1, 20)
        life, known = self.queue_life(), len(self.model.queues[queue])
        found = [(lease.offset, lease) for lease in await self.store.leases.take(queue, owner, max_count=count)]
        self.advance()
        offsets = [offset for offset, _ in found]
        if self.queue_life() != life:
            self.store.leases.requeue(queue, owner, offsets)
            return
        leased = self.model.leases[queue, ""]
        gone = leased.settled | set(leased.held)
        assert not gone & set(offsets), f"settled or leased, and leased again: {sorted(gone & set(offsets))}"
        free = self.model.free(queue)
        assert offsets == ([o for o in free if o in offsets] if self.trims else free[: len(offsets)])
        assert self.trims or len(offsets) >= min(count, len([offset for offset in free if offset < known]))
        for offset, lease in found:
            assert lease.frame.record(lease.row) == self.model.queues[queue][offset]
        leased.lease(offsets, owner)

    def _held(self) -> tuple[int, int, list[int]]:
        queue, owner = self.chance.choice(QUEUES), self.chance.choice(OWNERS)
        held = self.model.leases[queue, ""].of(owner)
        return queue, owner, self.chance.sample(held, self.chance.randint(0, len(held)))

    async def settle(self) -> None:
        queue, owner, some = self._held()
        life = self.queue_life()
        for offset in some:
            del self.model.leases[queue, ""].held[offset]
        await self.store.leases.settle(queue, owner, [*some, 10_000])
        self.advance()
        if self.queue_life() == life:
            assert self.model.leases[queue, ""].settled.issuperset(some)

    async def requeue(self) -> None:
        queue, owner, some = self._held()
        self.store.leases.requeue(queue, owner, some)
        self.model.leases[queue, ""].come_back(some)

    async def release(self) -> None:
        owner = self.chance.choice(OWNERS)
        self.store.leases.release(owner)
        for leased in self.model.leases.values():
            leased.come_back(leased.of(owner))

    async def purge(self) -> None:
        await self.store.leases.purge(self.chance.choice(QUEUES))

    # ---- steps: what happens to the store

    async def pause(self) -> None:
        await asyncio.sleep(self.chance.choice([0, 0, 0.001, 0.05, 2]))

    async def set_clock(self) -> None:
        """Lets much time pass, or sets the clock back."""
        self.skew_ms += self.chance.choice([10_000, DAY_MS, 90 * DAY_MS, -20, -DAY_MS])

    async def fault(self) -> None:
        """Makes an operation fail soon; a lasting failure is noticed, and ends the process."""
        operation = self.chance.choice(["write", "write", "sync", "sync", "truncate", "open", "sync_directory", "read"])
        error = errno.EIO if operation in {"sync", "sync_directory", "read"} else self.chance.choice([5, errno.ENOSPC])
        if operation != "read":
            self.disk.fail(operation, error, after=self.chance.choice([0, 0, 1, 4]))

    async def fill(self) -> None:
        self.disk.room = self.chance.choice([0, 50, 2_000])

    async def make_room(self) -> None:
        self.disk.room = None
        self.engine.space.look()

    async def flip(self) -> None:
        """Flips a bit of the log, checks that only what it has hurt is not served, and flips it back."""
        await self._quiet()
        self.advance()
        if self.engine.log.first == self.model.at:
            return
        at = self.chance.randrange(self.engine.log.first, self.model.at)
        start = max(s for s in self._segments() if s <= at)
        path, bit = self.path / "log" / segment_name(start), self.chance.randrange(8)
        self.disk.flip(path, at - start, bit)
        try:
            found = list(self.engine.log.scan(self.engine.log.first, self.model.at))
        finally:
            self.disk.flip(path, at - start, bit)
        kept = self.engine.log.first
        expected = [frame for frame in frames_of(bytes(self.log[kept:]), kept) if not frame.start <= at < frame.end]
        assert [one.data for one in found if hasattr(one, "data")] == [frame.data for frame in expected]

    async def _check_refusing(self) -> None:
        """Checks that a store that has failed says so, and stores nothing."""
        outcome = await self.send(self.frame())
        assert isinstance(outcome, StoreFailed | AppendOutcomeUnknown), outcome

    # ---- everything

    async def check(self) -> None:
        """Checks, with no operation in flight, that every read is what the model says."""
        await self._quiet()
        store = self.store
        if not self.failed and store.error is None and store.full is None and self.disk.room is None:
            now_ms = self.now_ms()
            await store.tick()
            self.advance()
            if not self.failed and store.error is None and store.full is None:
                late = [key for key in self.model.timers if key.due_ms <= now_ms]
                assert not late, f"not fired: {late}"
        for left in (5, 4, 3, 2, 1, 0):
            self.advance()
            before = self.model.at, store.keys.clock()
            try:
                await self._compare()
            except AssertionError:
                self.advance()
                if not left or (self.model.at, store.keys.clock()) == before:
                    raise  # else something has expired or fired meanwhile
            else:
                return

    async def _compare(self) -> None:
        store, model = self.store, self.model
        for queue in QUEUES:
            records = model.queues[queue]
            bounds = await store.queues.bounds(queue)
            assert bounds.next == len(records)
            assert self.trims or bounds.first == 0
            offset = self.chance.randint(bounds.first, bounds.next)
            assert await bodies(store, queue, offset) == records[offset:]
            assert self.trims or await store.leases.waiting(queue) == model.waiting(queue)
        for hash_ in range(1, 4):
            last = model.last.get(hash_)
            assert await store.log.last(hash_) == last or (last is not None and last.frame < model.first)
            for kind in IndexKind:
                expected = sorted((at for at in model.index[kind, hash_] if at.frame >= model.first), reverse=True)
                limit = self.chance.choice([5, 1000])
                found = await store.log.find(kind, hash_, limit=limit)
                found = [at for at in found if at.frame >= model.first]  # trimmed records may stay a while
                assert found == expected[:limit]
                if found:
                    assert await store.log.read(found[0]) == model.bodies[found[0]]
        for namespace in NAMESPACES:
            now_ms = store.keys.clock()
            assert list((await store.keys.range(namespace=namespace)).entries) == model.kv.entries(namespace, now_ms)
        assert await store.keys.namespaces() == model.kv.namespaces()
        for group in GROUPS:
            assert await store.groups.offsets(group) == model.groups.get(group, {})
        assert await store.log.addresses() == sorted(model.addresses)
        assert [entry.id for entry in await store.timers.entries(limit=10_000)] == [
            str(key) for key in sorted(model.timers)
        ]
        assert store.timers.held.timers == len(model.timers)

    def _check_rebuild(self) -> None:
        """Checks that the views are, byte for byte, what the log alone makes of them."""
        if self._segments()[0]:
            return  # they hold what the log does not any more
        followed = self._entries()
        shutil.rmtree(self.path / "views")
        while not self._process(self._open_and_close):
            pass
        assert self._entries() == followed

    async def _open_and_close(self) -> bool:
        await self._open()
        await self.store.close()
        return True

    def _entries(self) -> list:
        views = Views(self.path / "views", map_size_bytes=1 << 28)
        try:
            return list(views.entries())
        finally:
            views.close()


AWAITED = {"take", "settle", "requeue", "release", "purge", "check", "flip", "pause", "make_room", "limit"}
