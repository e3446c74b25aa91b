"""A replica of the simulated cluster: what a store node does around the cores of replication, in virtual time.

One thing after the other is done with the disk, as a thread would; syncing goes on beside it. A crash takes what is in
memory and part of what was not synced, and may come in the middle of anything.
"""

import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from cluster_controller import CONTROLLER, GroupState
from cluster_log import CountedLog, Views, header_of, make_frame
from cluster_world import World

from store.format import LogOffset
from store.replication.agreement import Acknowledge
from store.replication.epochs import EpochList, decode_epochs, encode_epochs
from store.replication.master import Master
from store.replication.messages import decode, encode
from store.replication.pace import Pace
from store.replication.slave import Close, Prepare, SaveEpochs, Send, Slave, Stage, TakeSnapshot, Write

__all__ = ["PACE", "Node"]

GROUP = 3
ORIGIN = LogOffset(GROUP << 48)
MESSAGE = b"\xa7"  # how a record that is no operation on keys begins, behind the array's header: "message"
HEARTBEAT_MS = 60
TICK_MS = 20
RESTART_MS = 50
RECONNECT_MS = (5, 60)
SNAPSHOT_WAIT_MS = 400
PACE = Pace(
    heartbeat_ms=50,
    lag_ms=300,
    gone_ms=120,
    stall_ms=600,
    silent_ms=400,
    retry_ms=80,
    refused_ms=200,
    fresh_ms=300,
    hold_ms=40,
    hold_again_ms=200,
    drain_ms=500,
    batch_bytes=300,
    window_bytes=1500,
)


class _Waiting(NamedTuple):
    """An append without an answer. Changes of keys are answered with their result, so when they are confirmed."""

    start: int
    end: int
    keys: bool
    reply: Callable[[object], None]


class Node:
    """One replica. `core` is its Slave, its Master, or None while it is down or turning into the other."""

    def __init__(
        self,
        world: World,
        number: int,
        *,
        replicas: dict[int, bool],
        acknowledge: Acknowledge,
        min_in_sync: int,
        on_master: Callable[["Node", int], None],
        pace: Pace = PACE,
    ) -> None:
        self.world = world
        self.number = number
        self.chance = random.Random(world.chance.random())
        self.replicas = replicas
        self.acknowledge = acknowledge
        self.min_in_sync = min_in_sync
        self.pace = pace
        self.on_master = on_master
        # what survives
        self.log = CountedLog(ORIGIN)
        self.views = Views(ORIGIN)
        self.epoch_file = encode_epochs(EpochList(), 0)
        # what does not
        self.life = 0
        self.up = False
        self.core: Master | Slave | None = None
        self.disk_ms = (0, 3)
        self.torn_chance = 0.0  # that it crashes while something is being made durable
        self.skew = (1.0, 0)  # rate, and ms added
        self.start()

    # ---- life and death

    @property
    def now(self) -> int:
        rate, added = self.skew
        return int(self.world.now * rate) + added

    def start(self) -> None:
        assert not self.up
        self.up = True
        self.skew = (self.chance.choice([1.0, 1.0, 0.8, 1.25]), self.chance.choice([0, -100_000, 100_000]))
        self.known = GroupState(None, 0, frozenset(), 0)
        self._forget()
        self.world.doors[self.number] = self.receive
        self.world.resets[self.number] = self._reset
        self._every(HEARTBEAT_MS, self._heartbeat)
        self._every(TICK_MS, self._tick)
        self._open_slave()

    def _forget(self) -> None:
        self.core = None
        self.opening = False
        self.work: deque = deque()
        self.busy = False
        self.doing: Callable[[], None] | None = None  # what a crash may have done or not
        self.syncing = False
        self.waiting: list[_Waiting] = []
        self.reads: list[tuple[int, str, Callable[[object], None]]] = []
        self.tail: dict[tuple[int, int], tuple[int, int]] = {}  # what the views do not have yet
        self.question: int | None = None  # for a snapshot
        self.wish_again = 0  # when another election may be asked for

    def crash(self) -> None:
        """Everything in memory is gone; a change of a file that is under way is done or is not."""
        assert self.up
        self.up = False
        self.life += 1
        del self.world.doors[self.number], self.world.resets[self.number]
        if self.doing is not None and self.chance.random() < 0.5:
            self.doing()
        self.log.lose_unsynced(self.chance)
        self._forget()

    def _fall(self) -> None:
        """Crash, and be started again."""
        self.crash()
        self.world.after(RESTART_MS, lambda: None if self.up else self.start())

    def _later(self, delay_ms: int, call: Callable[[], None]) -> None:
        """Unless this process dies before."""
        life = self.life
        self.world.after(delay_ms, lambda: call() if self.life == life else None)

    def _every(self, period_ms: int, call: Callable[[], None]) -> None:
        def again() -> None:
            call()
            self._later(period_ms, again)

        self._later(self.chance.randint(0, period_ms), again)

    # ---- the disk

    def _disk(self, *steps: Callable[[], None], then: Callable[[], None]) -> None:
        """Do durable things, one after the other, each whole or not at all; then go on."""
        assert not self.busy
        self.busy = True
        self.doing = steps[0]

        def done() -> None:
            self.doing = None
            steps[0]()
            self.busy = False
            if len(steps) > 1:
                self._disk(*steps[1:], then=then)
            else:
                then()

        if self.chance.random() < self.torn_chance * (1 if len(steps) == 1 else 10):  # the order is what is tried
            self._later(self.chance.randint(*self.disk_ms), self._fall)
        self._later(self.chance.randint(*self.disk_ms), done)

    def _save(self, epochs: EpochList, promised: int) -> Callable[[], None]:
        def save() -> None:
            self.epoch_file = encode_epochs(epochs, promised)

        return save

    def _sync(self) -> None:
        if self.syncing or self.log.durable == self.log.end:
            return
        self.syncing = True
        until, cuts = self.log.end, self.log.cuts

        def done() -> None:
            if self.log.cuts == cuts:
                self.syncing = False
                self.log.durable = until
                if self.core is not None:
                    self.core.flushed_to(until)
                self._sync()
                self._pump()

        self._later(self.chance.randint(*self.disk_ms), done)

    # ---- roles

    def _open_slave(self) -> None:
        """As after a start: what is written is synced first."""
        self.core = None
        self.opening = True
        for waiting in self.waiting:
            waiting.reply(("unknown",))
        for _, _, reply in self.reads:
            reply(("refused", self.known.master))
        self.waiting.clear()
        self.reads.clear()
        if self.busy:  # something is being done with the disk: after it
            self._later(1, self._open_slave)
            return
        self._forget()
        self.opening = True

        def opened() -> None:
            self.opening = False
            epochs, promised = decode_epochs(self.epoch_file)
            self.core = Slave(
                group=GROUP,
                replica=self.number,
                epochs=epochs,
                promised=promised,
                first=self.log.first,
                end=self.log.end,
                confirmed=min(self.views.applied, self.log.end),  # behind a snapshot the views are ahead
                pace=self.pace,
            )
            self._later(self.chance.randint(*RECONNECT_MS), self._connect)

        self._disk(self._synced, then=opened)

    def _synced(self) -> None:
        self.log.durable = self.log.end
        self.log.cuts += 1  # no sync under way tells anything new
        self.syncing = False

    def _truncate(self, end: LogOffset) -> None:
        self.log.truncate(end)
        self.syncing = False

    def _become_master(self) -> None:
        """The order: nothing under way, the log synced, the epoch saved, then open."""
        if self.busy:
            self._later(1, self._become_master)
            return
        state = self.known
        self._forget()
        epochs, promised = decode_epochs(self.epoch_file)
        if state.master != self.number or state.epoch < promised:
            self._open_slave()
            return
        self.opening = True
        made: list[Master] = []

        def make() -> None:
            self._synced()
            made.append(
                Master(
                    group=GROUP,
                    replica=self.number,
                    epoch=state.epoch,
                    epochs=epochs,
                    first=self.log.first,
                    end=self.log.end,
                    confirmed=self.views.applied,
                    replicas=self.replicas,
                    sync_set=state.sync_set,
                    sync_epoch=state.sync_epoch,
                    min_in_sync=self.min_in_sync,
                    acknowledge=self.acknowledge,
                    now_ms=self.now,
                    pace=self.pace,
                )
            )

        def save() -> None:
            self._save(made[0].epochs, state.epoch)()

        def opened() -> None:
            self.opening = False
            self.on_master(self, state.epoch)
            self.core = made[0]
            for frame in self.log.between(self.views.applied, self.log.end):
                self._note(frame)
            self._pump()

        self._disk(lambda: None, then=lambda: (make(), self._disk(save, then=opened)))

    def _note(self, frame: bytes) -> None:
        header = header_of(frame)
        self.tail[header.producer_id, header.sequence] = (header.log_offset, header.log_offset + len(frame))

    # ---- the network

    def receive(self, source, message) -> None:
        match message:
            case ("state", state):
                self._learn(state)
            case ("append", *_) | ("get", *_):
                self._serve(source, message)
            case ("snapshot?", epoch, question):
                self._give_snapshot(source, epoch, question)
            case ("snapshot", question, first, epochs, views):
                self._take_snapshot(question, first, epochs, views)
            case bytes():
                if self.core is None:
                    return
                parsed = decode(message)
                if isinstance(self.core, Master):
                    self.core.receive(source, parsed, now_ms=self.now)
                else:
                    self.core.receive(parsed, now_ms=self.now)
        self._pump()

    def _reset(self, peer) -> None:
        if isinstance(self.core, Master):
            self.core.left(peer)
        elif isinstance(self.core, Slave) and peer == self.known.master and self.core.stage is not Stage.SNAPSHOT:
            self.core.close()
            self._later(self.chance.randint(*RECONNECT_MS), self._connect)

    def _heartbeat(self) -> None:
        """What is on disk: a promise counts from when it is kept through a crash, and so does what is said with it."""
        serving, standing = 0, None
        if isinstance(self.core, Master) and self.core.ended is None:
            serving, standing = self.core.epoch, self.core.standing
        elif isinstance(self.core, Slave):
            standing = self.core.standing
        promised = decode_epochs(self.epoch_file)[1]
        self.world.send(self.number, CONTROLLER, ("heartbeat", serving, promised, standing))

    def _tick(self) -> None:
        if self.core is not None:
            self.core.tick(now_ms=self.now)
        self._connect()
        self._pump()

    def _learn(self, state: GroupState) -> None:
        """What the controller says, some time ago."""
        if state.newness < self.known.newness:
            return
        self.known = state
        core = self.core
        if isinstance(core, Master):
            core.fenced(state.epoch)
            if state.epoch == core.epoch and core.ended is None:
                core.controller_heard(now_ms=self.now)
                core.set_altered(state.sync_set, state.sync_epoch)
        elif isinstance(core, Slave) and state.master == self.number and core.stage is not Stage.DIVERGED:
            if state.epoch > core.epochs.newest and state.epoch >= core.promised:
                self.core = None
                self.opening = True
                self._become_master()
            elif state.epoch == core.epochs.newest:
                self._wish(state.epoch, self.number)
        elif isinstance(core, Slave) and state.epoch > core.promised:
            core.promise(state.epoch)
            self._connect()

    def _wish(self, epoch: int, candidate: int) -> None:
        """Ask for an election, unless it was asked for a moment ago."""
        if self.world.now >= self.wish_again:
            self.wish_again = self.world.now + self.pace.retry_ms
            self.world.send(self.number, CONTROLLER, ("elect", epoch, candidate))

    def _connect(self) -> None:
        core, state = self.core, self.known
        if not isinstance(core, Slave) or core.stage is not Stage.IDLE or state.master in {None, self.number}:
            return
        if state.epoch >= core.promised:
            core.connect(state.epoch, session=self.chance.getrandbits(63), now_ms=self.now)
            self._pump()

    # ---- after whatever happened

    def _pump(self) -> None:
        core = self.core
        if isinstance(core, Slave):
            self.work.extend(core.take())
            self._go_on()
        elif isinstance(core, Master):
            self._lead(core)
        if self.core is not None:
            self._apply()

    def _go_on(self) -> None:
        """The slave's effects, one after the other."""
        while self.work and not self.busy and isinstance(core := self.core, Slave):
            effect = self.work.popleft()
            match effect:
                case Send(message):
                    if self.known.master is not None:
                        self.world.send(self.number, self.known.master, encode(message))
                case SaveEpochs(epochs, promised):
                    self._disk(self._save(epochs, promised), then=self._pump)
                case Prepare(cut_to, epochs, promised):
                    self._prepare(core, cut_to, epochs, promised)
                case Write(start, end, _, frames):
                    assert start == self.log.end
                    for frame in frames:
                        self.log.append(frame.data)
                    assert self.log.end == end
                    self._sync()
                case TakeSnapshot(epoch):
                    self._ask_snapshot(epoch)
                case Close():
                    self._later(self.chance.randint(*RECONNECT_MS), self._connect)
                case _:
                    effect()

    def _prepare(self, core: Slave, cut_to: LogOffset | None, epochs: EpochList, promised: int) -> None:
        steps = [self._save(epochs, promised)]
        if cut_to is not None:
            steps.insert(0, lambda: self._truncate(cut_to))

        def then() -> None:
            core.prepared()
            self._pump()

        self._disk(*steps, then=then)

    def _lead(self, core: Master) -> None:
        if core.ended is not None:
            if not self.busy:
                self._open_slave()
            return
        for replica in self.replicas:
            while (batch := core.batch(replica)) is not None:
                frames = b"".join(self.log.between(batch.start, batch.end))
                self.world.send(self.number, replica, encode(core.sent(replica, batch.start, frames)))
        for replica, message in core.take():
            self.world.send(self.number, replica, encode(message))
        ask = core.ask()
        if ask is not None:
            self.world.send(self.number, CONTROLLER, ask)
        if core.handover is not None:
            self._wish(core.epoch, core.handover)
        self._apply()
        for waiting in [one for one in self.waiting if one.end <= (core.confirmed if one.keys else core.acknowledged)]:
            self.waiting.remove(waiting)
            waiting.reply(("ok", waiting.start, waiting.end, self.views.results.get(waiting.start)))
        agreed = core.round_agreed
        for asked in [one for one in self.reads if one[0] <= agreed]:
            self.reads.remove(asked)
            asked[2](("ok", self.views.keys.get(asked[1])))

    def _apply(self) -> None:
        assert self.core is not None
        for frame in self.log.between(self.views.applied, self.core.confirmed):
            self.views.apply(frame)

    # ---- clients

    def _serve(self, source, message) -> None:
        core = self.core
        _, number, *_ = message

        def reply(answer) -> None:
            self.world.send(self.number, source, ("answer", number, answer))

        if not isinstance(core, Master) or core.ended is not None:
            hint = self.known.master if self.known.master != self.number else None
            reply(("refused", hint))
            return
        if message[0] == "get":
            self.reads.append((core.ask_round(), message[2], reply))
            return
        if core.refusal is not None:
            reply(("refused", None))
            return
        _, _, producer, sequence, record = message
        known = self.views.stored.get((producer, sequence)) or self.tail.get((producer, sequence))
        if known is None:
            start = self.log.end
            self.log.place(make_frame(producer, sequence, record), epoch=core.epoch, now_ms=self.now & 0xFFFFFF)
            known = (start, self.log.end)
            self.tail[producer, sequence] = known
            core.written(self.log.end)
            self._sync()
        self.waiting.append(_Waiting(*known, record[1:2] != MESSAGE, reply))

    # ---- retention and snapshots

    def trim(self) -> None:
        if self.core is None or self.busy or self.work:
            return
        until = min(self.views.applied, self.core.confirmed)
        first = self.log.boundary(LogOffset(self.chance.randint(self.log.first, until)))
        self.log.trim(first)
        self.core.trimmed(first)

    def _ask_snapshot(self, epoch: int) -> None:
        self.busy = True
        self.question = question = self.chance.getrandbits(63)
        if self.known.master is not None:
            self.world.send(self.number, self.known.master, ("snapshot?", epoch, question))
        self._later(SNAPSHOT_WAIT_MS, lambda: self._give_up_snapshot(question))

    def _give_snapshot(self, source, epoch: int, question: int) -> None:
        core = self.core
        if isinstance(core, Master) and core.epoch == epoch and core.ended is None:
            self._apply()
            first = self.log.first
            epochs = core.epochs.cut(first)
            self.world.send(self.number, source, ("snapshot", question, first, epochs, self.views.copy()))

    def _take_snapshot(self, question: int, first: LogOffset, epochs: EpochList, views: Views) -> None:
        """Begin anew: an empty log from where the master's begins, and views that are ahead of it."""
        core = self.core
        if self.question != question or not isinstance(core, Slave) or core.stage is not Stage.SNAPSHOT:
            return
        self.question = None

        def install() -> None:
            self.log.reset(first)
            self.syncing = False
            self.views = views.copy()
            self._save(epochs, core.promised)()

        self.busy = False
        self._disk(install, then=self._open_slave)

    def _give_up_snapshot(self, question: int) -> None:
        if self.question == question:
            self.question = None
            self.busy = False
            if isinstance(self.core, Slave):
                self.core.close()
                self._pump()
