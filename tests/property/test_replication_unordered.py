"""Replication's cores when messages are lost, doubled and out of order, which no stream between replicas does."""

import random

import pytest

from store.replication.messages import decode, encode
from store.replication.slave import Stage
from tests.support.store.replication_kit import Following, Leading

STEPS = 400
LOST, DOUBLED, BROKEN = 0.05, 0.05, 0.02
TICK_MS = 20
REST_TICKS = 40  # of a second: longer than a slave waits for a master that says nothing


class Mess:
    """A master and slaves, whose messages arrive in any order, twice, or never."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.slaves = [Following(2), Following(3)]
        self.leading = Leading(followers=self.slaves, min_in_sync=2).connect(2, 3)
        self.flying = []  # (slave, whether it is for the slave, message)

    def step(self):
        leading, chance = self.leading, self.chance
        if chance.random() < 0.2:
            leading.append(chance.randint(1, 3))
        if chance.random() < 0.2:
            self.tick(TICK_MS)
        if chance.random() < BROKEN:  # and what was on its way still arrives
            slave = chance.choice(self.slaves)
            slave.slave.close()
            if chance.random() < 0.5:
                leading.master.left(slave.number)
        self.collect()
        if self.flying:
            one = self.flying.pop(chance.randrange(min(4, len(self.flying))))
            for _ in range(chance.choices([0, 1, 2], [LOST, 1, DOUBLED])[0]):
                self.deliver(*one)
        self.collect()

    def tick(self, ms):
        leading = self.leading
        leading.now += ms
        leading.master.controller_heard(now_ms=leading.now)
        leading.master.tick(now_ms=leading.now)
        for slave in self.slaves:
            slave.slave.tick(now_ms=leading.now)

    def rest(self):
        """From here on every message arrives, once and in order."""
        for _ in range(REST_TICKS):
            self.tick(1_000)
            self.collect()
            while self.flying:
                self.deliver(*self.flying.pop(0))
                self.collect()

    def collect(self):
        leading, chance = self.leading, self.chance
        ask = leading.master.ask()
        if ask is not None:
            leading.master.set_altered(ask.sync_set, ask.sync_epoch + 1)
        for slave in self.slaves:
            if slave.slave.stage is Stage.IDLE:
                slave.slave.connect(leading.master.epoch, session=chance.getrandbits(60), now_ms=leading.now)
            slave.work()
            self.flying += [(slave, False, message) for message in slave.sent]
            slave.sent = []
        self.flying += [(leading.followers[number], True, message) for number, message in leading.collect()]

    def deliver(self, slave, is_for_slave, message):
        if is_for_slave:
            slave.slave.receive(decode(encode(message)), now_ms=self.leading.now)
            slave.work()
        else:
            self.leading.master.receive(slave.number, decode(encode(message)), now_ms=self.leading.now)

    def check(self):
        """Checks that confirmed frames are in the logs of all who may be elected; replicas have nothing else."""
        master, log = self.leading.master, self.leading.log
        for slave in self.slaves:
            assert slave.log.frames == log.frames[: len(slave.log.frames)]
            assert slave.slave.confirmed <= min(master.confirmed, slave.log.end)
            if slave.number in master._set.members:
                assert slave.log.end >= master.confirmed


@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_confirmed_that_is_not_there_and_all_get_on_in_the_end(seed):
    mess = Mess(seed)
    confirmed = 0
    for _ in range(STEPS):
        mess.step()
        mess.check()
        assert mess.leading.master.confirmed >= confirmed
        confirmed = mess.leading.master.confirmed
    mess.rest()
    mess.check()
    assert mess.leading.master.confirmed == mess.leading.log.end
    assert {len(slave.log.frames) for slave in mess.slaves} == {len(mess.leading.log.frames)}
