"""Whoever goes on by a leader's word has stopped when another leader, or the same, lets an heir act."""

import random

from controller.api.client import OUTAGE_LEASE_MS, Group, Replica
from controller.elections.serving import Serving
from gateway.ownership.presence import Presence

GROUP = Group(number=0, replicas=(Replica(id=1, node="n", address="n:1"),), master=1, master_epoch=1, sync_set=(1,))
SEEDS, STEPS = 60, 1_500
TTL_S = 6.0


class Heard:
    """The state of the home group as a leader hears it: true or not, it changes as chance has it."""

    def __init__(self, chance):
        self.chance = chance
        self.served = chance.random() < 0.5
        self.complaints = self

    def voters(self, _group, _now_ms):
        return {}

    def is_out_of_reach(self, _group, _voters, _now_ms):
        return self.chance.random() < 0.02

    def heartbeat_if_alive(self, _group, _replica, _now_ms):
        if self.chance.random() < 0.02:
            self.served = not self.served
        return Said() if self.served else None


class Said:
    master, master_epoch, stalled, full, slow, expired = True, 1, False, False, False, False


class OutageWorld:
    """One proxy that cannot be heard of and goes on, one heir that asks, leaders that follow each other."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.now_ms = 1_000_000
        self.leaders = []  # the last one leads
        self.due = []  # (when, what happens)
        self.acted = self.went_on = 0
        self.presence = Presence(None, ttl_s=TTL_S, random=self.chance, clock=lambda: self.now_ms / 1_000)
        self.lead()

    def lead(self):
        serving = Serving(Heard(self.chance))
        serving.began(self.now_ms)
        self.leaders.append(serving)

    def live_again(self):
        self.presence.present = True
        self.presence.expires_s = self.presence.until_s = self.now_ms / 1_000 + TTL_S

    def later(self, what, *arguments):
        self.due.append((self.now_ms + self.chance.randrange(self.chance.choice((1, 50, 2_000))), what, arguments))

    def step(self):
        chance, presence = self.chance, self.presence
        self.now_ms += chance.randrange(chance.choice((20, 800)))
        if presence.present and presence.remaining_s <= 0:
            presence.present = False  # its ownership is over, for ever
        if chance.random() < 0.02:
            self.lead()
        if not presence.present and chance.random() < 0.1:
            self.live_again()
        if presence.present and chance.random() < 0.6:
            self.later(self.say, "proxy", self.now_ms, self.leaders[-1])
        if self.gone(self.now_ms) and chance.random() < 0.4:  # its key has expired, and there is an heir
            self.later(self.say, "heir", self.now_ms, self.leaders[-1])
        for one in [one for one in self.due if one[0] <= self.now_ms]:
            self.due.remove(one)
            one[1](*one[2])

    def gone(self, at_ms):
        return at_ms / 1_000 >= self.presence.expires_s

    def say(self, who, asked_ms, serving):
        """Lets a leader report its state, also one that does not know yet that it was replaced."""
        self.later(self.confirm, who, asked_ms, serving, serving.ask(0, GROUP, self.now_ms))

    def confirm(self, who, asked_ms, serving, found):
        if serving is self.leaders[-1]:
            self.later(self.hear, who, asked_ms, found)

    def hear(self, who, asked_ms, found):
        presence = self.presence
        if who == "proxy" and not found.served:
            presence.go_on((asked_ms + OUTAGE_LEASE_MS) / 1_000, at_most_s=1e9)
            self.went_on += 1
        if who == "heir" and self.gone(asked_ms) and found.served and found.sure_ms >= OUTAGE_LEASE_MS:
            self.acted += 1
            assert presence.remaining_s <= 0, "it goes on, and somebody else does what it has left"


def test_nobody_goes_on_when_an_heir_acts():
    acted = went_on = 0
    for seed in range(SEEDS):
        world = OutageWorld(seed)
        for _ in range(STEPS):
            world.step()
        acted, went_on = acted + world.acted, went_on + world.went_on
    assert min(acted, went_on) > SEEDS
