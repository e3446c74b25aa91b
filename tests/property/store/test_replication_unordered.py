"""Replication's cores when messages are lost, doubled and out of order, which no stream between replicas does."""

import random

import pytest

from store.replication.messages import decode, encode
from store.replication.replica_core import Stage
from tests.support.store.replication_kit import Following, Leading

STEPS = 400
LOST, DOUBLED, BROKEN = 0.05, 0.05, 0.02
TICK_MS = 20
REST_TICKS = 40  # of a second: longer than a replica waits for a master that says nothing


class Mess:
    """A master and replicas, whose messages arrive in any order, twice, or never."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.replicas = [Following(2), Following(3)]
        self.leading = Leading(followers=self.replicas, min_in_sync=2).connect(2, 3)
        self.flying = []  # (replica, whether it is for the replica, message)

    def step(self):
        leading, chance = self.leading, self.chance
        if chance.random() < 0.2:
            leading.append(chance.randint(1, 3))
        if chance.random() < 0.2:
            self.tick(TICK_MS)
        if chance.random() < BROKEN:  # and what was on its way still arrives
            replica = chance.choice(self.replicas)
            replica.core.close()
            if chance.random() < 0.5:
                leading.master.left(replica.number)
        self.collect()
        if self.flying:
            one = self.flying.pop(chance.randrange(min(4, len(self.flying))))
            for _ in range(chance.choices([0, 1, 2], [LOST, 1, DOUBLED])[0]):
                self.deliver(*one)
        self.collect()

    def tick(self, ms):
        leading = self.leading
        leading.now += ms
        leading.master.controller_contacted(now_ms=leading.now)
        leading.master.tick(now_ms=leading.now)
        for replica in self.replicas:
            replica.core.tick(now_ms=leading.now)

    def rest(self):
        """Delivers every message from here on, once and in order."""
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
        for replica in self.replicas:
            if replica.core.stage is Stage.IDLE:
                replica.core.connect(leading.master.epoch, session=chance.getrandbits(60), now_ms=leading.now)
            replica.work()
            self.flying += [(replica, False, message) for message in replica.sent]
            replica.sent = []
        self.flying += [(leading.followers[number], True, message) for number, message in leading.collect()]

    def deliver(self, replica, is_for_replica, message):
        if is_for_replica:
            replica.core.receive(decode(encode(message)), now_ms=self.leading.now)
            replica.work()
        else:
            self.leading.master.receive(replica.number, decode(encode(message)), now_ms=self.leading.now)

    def check(self):
        """Checks that confirmed frames are in the logs of all who may be elected; replicas have nothing else."""
        master, log = self.leading.master, self.leading.log
        for replica in self.replicas:
            assert replica.log.frames == log.frames[: len(replica.log.frames)]
            assert replica.core.confirmed <= min(master.confirmed, replica.log.end)
            if replica.number in master._set.members:
                assert replica.log.end >= master.confirmed


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
    assert {len(replica.log.frames) for replica in mess.replicas} == {len(mess.leading.log.frames)}
