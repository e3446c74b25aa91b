"""Appends of an idempotent producer over connections that break and masters that refuse: once each, in order."""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.api.log import Appended
from store.base.errors import (
    AppendOutcomeUnknown,
    NotMaster,
    NotWritable,
    SequenceOutOfOrder,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreUnreachable,
)
from store.format.frame import ROW, LogOffset, UnplacedFrame
from store.log.producers import ProducerTable
from store.remoting import appender as appender_module
from store.remoting.appender import Appender
from store.rpc.frames import KEPT, ack_of, parse_appends
from tests.support.process.examples import examples

REFUSALS = {
    "not master": NotMaster("no"),
    "closed": StoreClosed("no"),
    "waits": NotWritable("no"),
    "bad": StoreFailed(""),
}


def frame(sequence, *, producer=7):
    body = b"%d" % sequence
    return UnplacedFrame.build(
        ROW.pack(16, 0, len(body), 0, 0, 0, 0, 0), body, producer_id=producer, sequence=sequence if producer else 0
    )


class KeepingStore:
    """A store that keeps what it takes, whoever is connected, and knows what it has."""

    def __init__(self):
        self.log = []
        self.producers = ProducerTable()
        self.refuses = None  # the name of a refusal

    def append(self, one):
        if self.refuses is not None:
            return REFUSALS[self.refuses]
        if one.producer_id:
            try:
                known = self.producers.find(one.producer_id, one.sequence)
            except SequenceOutOfOrder as error:
                return error
            if known is not None:
                return Appended(known, duplicate=True)
            self.producers.add(one.producer_id, one.sequence, LogOffset(len(self.log)))
        self.log.append(one.payload)
        return Appended(LogOffset(len(self.log) - 1))


class AppenderWorld:
    """An appender, a store, and the way between them."""

    def __init__(self, budget_s=1e9):
        self.now_s = 0.0
        self.store = KeepingStore()
        self.outcomes = {}
        self.sequence = 0
        self.soon, self.timers, self.woken = deque(), deque(), False
        self.there, self.back = deque(), deque()  # messages on their way; acks
        self.number, self.round, self.refused = 0, 0, None
        self.up = False
        self.appender = Appender(
            soon=lambda call, *arguments: self.soon.append((call, arguments)),
            after=lambda _seconds, call: self.timers.append(call),
            now_s=lambda: self.now_s,
            wake=self.wake,
            budget_s=budget_s,
        )

    def wake(self):
        self.woken = True

    def append(self, *, producer=7):
        self.sequence += 1
        n = self.sequence

        def done(outcome):
            assert n not in self.outcomes
            self.outcomes[n] = outcome

        self.appender.append(frame(n, producer=producer), done)

    def connect(self):
        if not self.up:
            self.up, self.number, self.refused = True, 0, None
            self.appender.connected()

    def cut(self):
        if self.up:
            self.up = False
            self.there.clear()
            self.back.clear()
            self.appender.lost()

    def send(self):
        if self.up and self.woken:
            self.woken = False
            while (message := self.appender.take_message()) is not None:
                self.there.append(message)

    def wait(self):
        self.now_s += 1
        self.ring()

    def expire(self):
        if self.up:
            self.appender.expire_held()

    def ring(self):
        """Fires the timers that are due by their own clock, whatever another clock shows."""
        while self.timers:
            self.timers.popleft()()

    def arrive(self):
        if not self.there:
            return
        round_, frames = parse_appends(self.there.popleft())
        if round_ != self.round:
            self.round, self.refused = round_, None
        for one in frames:
            outcome = self.refused or self.store.append(one)
            if isinstance(outcome, KEPT):
                self.refused = outcome
            self.back.append(ack_of(self.number, outcome))
            self.number += 1

    def answer(self, count):
        acks = [self.back.popleft() for _ in range(min(count, len(self.back)))]
        if acks and self.appender.answered(acks) is not None:
            self.cut()
        while self.soon:
            call, arguments = self.soon.popleft()
            call(*arguments)

    def settle(self):
        """Ends all faults."""
        self.store.refuses = None
        for _ in range(10_000):
            if len(self.outcomes) == self.sequence:
                return
            self.wait()
            self.connect()
            self.send()
            self.arrive()
            self.answer(1_000)
        raise AssertionError("some appends never end")


WEIGHTS = {
    ("append",): 30,
    ("send",): 20,
    ("arrive",): 12,
    ("answer", 1): 4,
    ("answer", 3): 6,
    ("connect",): 8,
    ("cut",): 1,
    ("refuses", None): 8,
    **{("refuses", name): 1 for name in REFUSALS},
    ("wait",): 3,
    ("ring",): 3,
    ("expire",): 3,
}


@st.composite
def stories(draw):
    """Draws a story of events from a seed, more often such as let more happen."""
    chance = random.Random(draw(st.integers(0, 1 << 32)))
    return chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=draw(st.integers(0, 250)))


def take_step(world, step):
    match step:
        case ("refuses", name):
            world.store.refuses = name
        case ("answer", count):
            world.answer(count)
        case (name,):
            getattr(world, name)()


@settings(max_examples=examples(300), deadline=None)
@given(stories())
def test_an_idempotent_producers_frames_are_stored_once_in_order(story):
    world = AppenderWorld()
    for step in story:
        take_step(world, step)
    world.settle()
    assert all(isinstance(outcome, Appended) for outcome in world.outcomes.values()), world.outcomes
    assert world.store.log == [b"%d" % n for n in range(1, world.sequence + 1)]
    assert [world.outcomes[n].frame for n in sorted(world.outcomes)] == list(range(world.sequence))
    assert world.appender.pending_bytes == 0


@settings(max_examples=examples(200), deadline=None)
@given(stories())
def test_another_producers_frames_are_never_stored_twice_and_what_is_said_of_them_is_true(story):
    world = AppenderWorld()
    for step in story:
        if step == ("append",):
            world.append(producer=0)
        else:
            take_step(world, step)
    world.settle()
    assert len(set(world.store.log)) == len(world.store.log)
    for n, outcome in world.outcomes.items():
        if isinstance(outcome, Appended):
            assert world.store.log[outcome.frame] == b"%d" % n
        else:
            assert isinstance(outcome, AppendOutcomeUnknown)


@settings(max_examples=examples(200), deadline=None)
@given(stories(), st.integers(1, 5))
def test_what_is_said_to_be_not_stored_is_not_and_everything_ends_in_time(story, budget_s):
    world = AppenderWorld(budget_s)
    for step in story:
        take_step(world, step)
    world.cut()
    world.now_s += budget_s + 1
    world.appender.expire()
    while world.soon:
        call, arguments = world.soon.popleft()
        call(*arguments)
    assert len(world.outcomes) == world.sequence
    for n, outcome in world.outcomes.items():
        if isinstance(outcome, StoreError) and not isinstance(outcome, AppendOutcomeUnknown):
            assert b"%d" % n not in world.store.log
            assert isinstance(outcome, StoreUnreachable | SequenceOutOfOrder | KEPT)


def test_the_window_is_bounded(monkeypatch):
    monkeypatch.setattr(appender_module, "FRAMES_COUNT_MAX", 3)
    world = AppenderWorld()
    for _ in range(10):
        world.append()
    world.connect()
    world.send()
    world.send()
    assert len(world.there) == 1
    world.arrive()
    assert len(world.back) == 3
    world.settle()
    assert len(world.store.log) == 10


def test_what_was_refused_is_sent_again_when_its_timer_rings_whatever_the_clock_shows():
    world = AppenderWorld()
    world.append()
    world.connect()
    world.store.refuses = "waits"
    world.send()
    world.arrive()
    world.answer(1)
    world.store.refuses = None
    world.send()
    assert not world.there
    world.ring()
    world.send()
    world.arrive()
    world.answer(1)
    assert isinstance(world.outcomes[1], Appended)


def test_what_is_refused_is_answered_in_time_though_a_frame_before_it_never_is():
    world = AppenderWorld(budget_s=5)
    world.connect()
    world.append()
    world.send()
    world.arrive()
    written = world.back.popleft()  # by the master; no other replica has it
    world.store.refuses = "waits"
    for _ in range(2):
        world.append()
        world.send()
        world.arrive()
        world.answer(1)
        world.now_s += 6
        world.appender.expire_held()
    world.send()
    world.arrive()
    world.answer(1)
    kinds = {n: type(outcome) for n, outcome in world.outcomes.items()}
    assert kinds == {1: AppendOutcomeUnknown, 2: NotWritable, 3: NotWritable}
    world.back.append(written)
    world.settle()
    assert world.store.log == [b"1"]


@pytest.mark.parametrize("then", ["confirmed", "cut", "closed"])
def test_what_is_written_and_never_confirmed_is_answered_in_time(then):
    """Its publisher heard nothing for as long as too few replicas had it."""
    world = AppenderWorld(budget_s=5)
    world.connect()
    world.now_s = 1.0
    world.append()
    world.send()
    world.arrive()
    world.now_s += 4
    world.appender.expire_held()
    assert world.outcomes == {}
    world.now_s += 2
    world.appender.expire_held()
    world.appender.expire_held()
    assert type(world.outcomes[1]) is AppendOutcomeUnknown
    assert "not confirmed by enough replicas within 5 s" in str(world.outcomes[1])
    match then:
        case "confirmed":
            world.answer(1)
        case "cut":
            world.cut()
            world.connect()
        case "closed":
            world.appender.close(StoreClosed("closed"))
    if then != "closed":
        world.append()
        world.settle()
        assert isinstance(world.outcomes[2], Appended)
        assert world.store.log == [b"1", b"2"]
    assert type(world.outcomes[1]) is AppendOutcomeUnknown
    assert world.appender.pending_bytes == 0


def test_closing_says_of_each_frame_what_is_known():
    world = AppenderWorld()
    world.append()
    world.connect()
    world.send()
    world.append()
    world.appender.close(StoreClosed("closed"))
    assert isinstance(world.outcomes[1], AppendOutcomeUnknown)
    assert isinstance(world.outcomes[2], StoreClosed)
    world.append()
    world.answer(0)
    assert isinstance(world.outcomes[3], StoreClosed)
