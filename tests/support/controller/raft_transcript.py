"""Transcripts of Raft nodes: files of commands, each with the messages and states that it leads to.

A file has blocks, divided by empty lines: comments, commands, a line `----` and what the commands print. `replay` runs
the commands and returns the file with what they print now. The commands are the methods `do_*` of `World`. A line
without indentation is a message that is delivered or lost, the lines under it are what its receiver does. The election
timeout of a node is 10 ticks and as many more as its id says.
"""

from controller.raft import (
    ChangeKind,
    Membership,
    MembershipChange,
    MemoryStorage,
    RaftError,
    RaftMember,
    RaftSettings,
    Role,
    decode,
    encode,
    first_snapshot,
)
from controller.raft.messages import Vote
from tests.support.controller.raft_rig import ELECTION_TICKS, storage_with
from tests.support.controller.raft_shown import ShownNode, entries, words

CHANGES = {"add-learner": ChangeKind.ADD_LEARNER, "promote": ChangeKind.PROMOTE, "remove": ChangeKind.REMOVE}


class TranscriptWorld:
    """The nodes of a transcript, and the messages on their way."""

    def __init__(self):
        self.nodes, self.lines, self.flying, self.cut = {}, [], [], set()

    def run(self, command):
        """Runs a command, and returns a line for each event; none after `quietly`."""
        quiet = command.startswith("quietly ")
        self.lines, (name, *given) = [], command.removeprefix("quietly ").split()
        plain = [int(word) if word.isdigit() else word for word in given if "=" not in word]
        named = {key: int(value) for key, value in (word.split("=") for word in given if "=" in word)}
        try:
            getattr(self, "do_" + name.replace("-", "_"))(*plain, **named)
        except RaftError as error:
            self.lines.append(f"  refused, {type(error).__name__}: {error}")
        for node in self.nodes.values():
            node.work()
        return [] if quiet else self.lines

    def some(self, ids):
        return [self.nodes[id] for id in ids or self.nodes]

    # ---- nodes

    def do_add_nodes(self, voters, *flags, learners=0, **settings):
        """Starts a cluster. The flag `named` gives the nodes incarnations."""
        ids = range(1, voters + learners + 1)
        self.settings = RaftSettings(election_ticks=ELECTION_TICKS, **settings)
        names = {id: f"{id}a" if "named" in flags else "" for id in ids}
        first = Membership.of(*(RaftMember(id=id, learner=id > voters, incarnation=names[id]) for id in ids))
        self.nodes = {id: ShownNode(self, id, MemoryStorage(first_snapshot(first), names[id])) for id in ids}

    def do_disk(self, id, *terms, **known):
        """Gives a node a disk with entries of these terms, from entry 2 on."""
        self.nodes[id] = ShownNode(self, id, storage_with(*terms, voters=len(self.nodes), **known))

    def do_wipe(self, id, incarnation=""):
        """Starts a node, new or not, with an empty disk."""
        self.nodes[id] = ShownNode(self, id, MemoryStorage(None, incarnation))

    do_join = do_wipe

    def do_restart(self, id):
        self.nodes[id].start()

    def do_hold(self, id):
        self.nodes[id].hold = True

    def do_release(self, id):
        self.nodes[id].hold = False

    # ---- time and the network

    def do_tick(self, count, *ids):
        for _ in range(count):
            for node in self.some(ids):
                node.raft.tick()
                node.work()

    def do_campaign(self, id):
        """Lets time pass at one node until it asks for votes, or leads."""
        asked = False
        while not asked:
            before = len(self.flying)
            self.do_tick(1, id)
            asked = any(isinstance(message, Vote) for message in self.flying[before:])
            asked = asked or self.nodes[id].raft.status().role is Role.LEADER

    def do_run(self, count, *ids):
        """Lets time pass and carries all messages, and prints what these nodes do."""
        for _ in range(count):
            self.do_tick(1, *ids)
            self.do_settle()
        self.lines = [line for line in self.lines if line.startswith(" ")]

    def do_isolate(self, *ids):
        self.cut |= {pair for id in ids for other in self.nodes for pair in ((id, other), (other, id))}

    def do_cut(self, *pairs):
        self.cut |= {tuple(map(int, pair.split("->"))) for pair in pairs}

    def do_heal(self):
        self.cut = set()

    def do_deliver(self, *pairs):
        """Delivers the messages that are in flight now: all of them, or those of `1->2`."""
        for message in self.take(pairs):
            alive = message.to in self.nodes and (message.sender, message.to) not in self.cut
            self.lines.append(words(message) + " -- is lost" * (not alive))
            if alive:
                self.step(self.nodes[message.to], message)

    def do_lose(self, *pairs):
        self.lines += [words(message) + " -- is lost" for message in self.take(pairs)]

    def do_settle(self):
        for node in self.nodes.values():
            node.work()
        while self.flying:
            self.do_deliver()

    def take(self, pairs):
        taken = [message for message in self.flying if not pairs or f"{message.sender}->{message.to}" in pairs]
        self.flying = [message for message in self.flying if pairs and f"{message.sender}->{message.to}" not in pairs]
        return taken

    def step(self, node, message):
        try:
            node.raft.step(decode(encode(message)))
        except RaftError as error:
            node.say(f"refuses it, {type(error).__name__}: {error}")
        node.work()

    # ---- requests

    def do_propose(self, id, *commands):
        for command in commands:
            number, _, unit = str(command).partition("-")
            self.nodes[id].raft.propose(b"x" * int(number) if unit == "bytes" else str(command).encode())

    def do_change(self, id, kind, node, incarnation=""):
        change = MembershipChange(kind=CHANGES[kind], node=node, incarnation=incarnation)
        self.nodes[id].raft.propose_change(change)

    def do_transfer(self, id, to):
        self.nodes[id].raft.transfer(to)

    def do_read(self, id, context):
        self.nodes[id].raft.read_index(context.encode())

    def do_compact(self, id, keep=0):
        node = self.nodes[id]
        node.raft.compact(node.raft.status().applied, "+".join(node.data).encode(), keep=keep)

    def do_unreachable(self, id, other):
        self.nodes[id].raft.unreachable(other)

    # ---- questions

    def do_log(self, *ids):
        for node in self.some(ids):
            first, last = node.storage.first_index(), node.storage.last_index()
            held = node.storage.entries(first, last + 1, 1 << 30) if first <= last else ()
            node.say(f"has {entries(held)}; commit {node.raft.status().commit}")

    def do_applied(self, *ids):
        for node in self.some(ids):
            node.say("has applied " + (" ".join(node.data) or "nothing"))

    def do_status(self, *ids):
        for node in self.some(ids):
            node.say(node.state)

    def do_progress(self, id):
        for other, known in self.nodes[id].raft.status().progress.items():
            self.lines.append(f"  {other} {known.state.value}: has all to {known.match}, is sent {known.next} next")


def replay(text):
    """Runs a transcript, and returns it with what its commands print now."""
    world, blocks = TranscriptWorld(), []
    for block in text.strip().split("\n\n"):
        written = block.split("\n----")[0]
        commands = [line for line in written.splitlines() if not line.startswith("#")]
        printed = [line for command in commands for line in world.run(command)]
        blocks.append("\n".join([written, "----", *(printed or ["ok"])]) if commands else written)
    return "\n\n".join(blocks) + "\n"
