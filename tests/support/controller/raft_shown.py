"""Raft nodes that print what they do, and messages in words; an entry is written term/index."""

import random

from controller.raft import EntryKind, Raft, decode_change
from controller.raft.messages import (
    Append,
    AppendReply,
    HeartbeatReply,
    InstallSnapshot,
    LeaderHeartbeat,
    ReadReply,
    ReadRequest,
    Vote,
    VoteReply,
)

DATA_SHOWN_BYTES_MAX = 30


class Timeouts(random.Random):
    """Gives a node the election timeout that its id says."""

    def randrange(self, low, high):
        return low + self.id


class ShownNode:
    """A core with its disk, and the commands it has applied. On `hold` its disk does not finish."""

    def __init__(self, world, id, storage):
        self.world, self.id, self.storage = world, id, storage
        self.start()

    def start(self):
        chance = Timeouts()
        chance.id, self.hold = self.id, False
        self.raft = Raft(self.id, self.storage, settings=self.world.settings, random=chance)
        data = self.storage.snapshot().data
        self.data, self.state = [data.decode()] if data else [], self.state_now()

    def say(self, text):
        self.world.lines.append(f"  {self.storage.incarnation() or self.id} {text}")

    def state_now(self):
        status = self.raft.status()
        return f"is {status.role.value}: term {status.term}, vote {status.vote or '-'}, leader {status.leader or '-'}"

    def say_state(self):
        if self.state_now() != self.state:
            self.state = self.state_now()
            self.say(self.state)

    def work(self):
        """Saves, sends and applies what the core asks for."""
        self.say_state()
        while not self.hold and (ready := self.raft.ready()) is not None:
            self.say_state()
            self.save(ready)
            if ready.membership is not None:
                self.say(f"goes by the members {members(ready.membership)}")
            if ready.snapshot is not None:
                self.data = [ready.snapshot.data.decode()] if ready.snapshot.data else []
                self.say(f"installs {snapshot(ready.snapshot)}")
            if ready.committed:
                self.data += [entry.data.decode() for entry in ready.committed if entry.kind is EntryKind.COMMAND]
                self.say(f"applies {entries(ready.committed)}")
            for read in ready.reads:
                self.say(f"{read.context.decode()}: " + (f"read at {read.index}" if read.index else "ask again"))
            self.world.flying += [*ready.early, *ready.messages]
            self.raft.advance(ready)
            self.say_state()
        self.say_state()

    def save(self, ready):
        last = self.storage.last_index()
        self.storage.save(ready)
        if ready.compaction is not None:
            self.say(f"keeps {snapshot(ready.compaction.snapshot)}; entries from {ready.compaction.first_index} on")
        if ready.entries:
            first = ready.entries[0].index
            replaced = f"replaces all from {first} to {last}, " * (first <= last and ready.snapshot is None)
            self.say(f"{replaced}saves {entries(ready.entries)}")


def entries(many):
    return ", ".join(f"{entry.term}/{entry.index} {content(entry)}".rstrip() for entry in many) or "no entries"


def content(entry):
    if entry.kind is EntryKind.EMPTY:
        return "empty"
    if entry.kind is EntryKind.CHANGE:
        change = decode_change(entry.data)
        return f"{change.kind.value.replace('_', '-')} {change.incarnation or change.node}"
    if entry.data == b"%d.%d" % (entry.term, entry.index):
        return ""  # of `storage_with`
    return f"{len(entry.data)}-bytes" if len(entry.data) > DATA_SHOWN_BYTES_MAX else entry.data.decode()


def members(membership):
    told = (f"{one.incarnation or one.id}{' (learner)' * one.learner}" for one in membership.members)
    return " ".join(told) or "none"


def snapshot(held):
    return f"snapshot {held.term}/{held.index} of {held.data.decode() or 'nothing'}, members {members(held.membership)}"


def words(message):
    """Returns a message in one line."""
    pair = f"{message.incarnation or message.sender}->{message.addressee or message.to}"
    kind = "Pre" * getattr(message, "pre", False) + type(message).__name__
    rest = REST[type(message)](message) if type(message) in REST else ""
    return f"{pair} {kind} term {message.term}{rest}"


def _append_reply(message):
    if message.refused:
        return f": lacks {message.index}, look at {message.hint_term}/{message.hint_index}"
    return f": has all to {message.index}"


REST = {
    Vote: lambda it: f": log to {it.last_term}/{it.last_index}" + ", the leader asked for it" * it.forced,
    VoteReply: lambda it: ": granted" if it.granted else ": refused",
    Append: lambda it: f": after {it.prev_term}/{it.prev_index}, commit {it.commit}, {entries(it.entries)}",
    AppendReply: _append_reply,
    LeaderHeartbeat: lambda it: f": commit {it.commit}" + f", read {it.read}" * bool(it.read) + ", quiet" * it.quiet,
    HeartbeatReply: lambda it: f": read {it.read}" * bool(it.read),
    InstallSnapshot: lambda it: f": {snapshot(it.snapshot)}",
    ReadRequest: lambda it: f": {it.context.decode()}",
    ReadReply: lambda it: f": {it.context.decode()} at {it.index}",
}
