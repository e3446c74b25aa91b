"""Fuzz targets of AMQP 0-9-1, and their loops: `python -m tests.fuzz.targets.amqp_target --inputs 1000000 --seed 7`.

`decoder` takes the payload of a method, properties or a field table: parsed, and a table then equal to what its own
encoding parses to, or refused with a reply code. `connection` feeds a whole connection, from its header or its opening
on, with a gateway behind it that answers, refuses and delivers by chance: what it says has to be whole frames, and
behind its end it hears nothing. A finding is found again by its lot: `--seed 7 --lot 123 --inputs 10000`.
"""

import contextlib
import math
import sys
from functools import partial
from random import Random
from typing import Any

from pamqp.commands import INDEX_MAPPING, Basic, Channel, Confirm, Connection, Exchange, Queue, Tx
from pamqp.encode import field_table

from adapters.amqp.codec.properties import read_properties
from adapters.amqp.codec.wire import read_method, read_table, write_table
from gateway.domain.errors import Cause, ProtocolError, Refusal
from gateway.port.adapter import Call, Cancel, Close, Consume, Outcome, Publish
from gateway.port.queues import DeclareQueue, DeleteQueue, PurgeQueue, QueueInfo
from store.api.message import Message
from tests.fuzz.targets import lots
from tests.fuzz.targets.lots import Found, Target, count, hex_of, single_inputs
from tests.support.amqp.amqp_peer import HEADER, NOW_MS, Peer, encoded, publish

TABLE = {"text": "x", "n": 5, "big": 1 << 40, "f": 1.5, "flag": True, "none": None, "l": [1, ["x", {}]]}
HEADERS = {"headers": {"a": 1, "t": {"x": [1, "y"]}}, "message_id": "m", "priority": 3, "expiration": "60"}
FRAMES = [
    encoded(1, Queue.Declare(queue="q", arguments={"x-max-length": 1, "t": {"x": [1, "y"]}})),
    encoded(1, Queue.Bind(queue="q", exchange="amq.topic", routing_key="a.#", arguments={"x-match": "all"})),
    encoded(1, Queue.Delete(queue="q"), Queue.Purge(queue="q"), Queue.Unbind(queue="q", exchange="x")),
    encoded(1, Exchange.Declare(exchange="x", exchange_type="topic"), Exchange.Delete(exchange="x")),
    encoded(1, Exchange.Bind(destination="x", source="y"), Exchange.Unbind(destination="x", source="y")),
    encoded(1, Basic.Qos(prefetch_count=5), Basic.Consume(queue="q", consumer_tag="c")),
    encoded(1, Basic.Consume(queue="q", no_ack=True), Basic.Recover(requeue=True)),
    encoded(1, Basic.Get(queue="q"), Basic.Ack(delivery_tag=1), Basic.Cancel(consumer_tag="c")),
    encoded(1, Basic.Nack(delivery_tag=2, multiple=True), Basic.Reject(delivery_tag=3, requeue=True)),
    encoded(1, Confirm.Select()),
    encoded(2, Tx.Select(), Tx.Commit(), Tx.Rollback()),
    publish(1, "amq.topic", "a.b", b"x" * 50, **HEADERS),
    publish(1, "amq.topic", "a.b", b"", mandatory=True),
    publish(2, "x", "k", b"y" * 5_000, delivery_mode=2),
    publish(1, "", "q", b"z" * 9, reply_to="amq.rabbitmq.reply-to"),
    encoded(2, Channel.Open()),
    encoded(1, Channel.Flow(active=False), Channel.Close(200, "", 0, 0), Channel.Open()),
    encoded(0, Connection.Close(200, "", 0, 0)),
    b"\x08\x00\x00\x00\x00\x00\x00\xce",
]
_METHODS = [one[7 : 7 + int.from_bytes(one[3:7], "big")] for one in FRAMES if one[0] == 1]
_METHODS += [index.to_bytes(4, "big") for index in INDEX_MAPPING]
_PROPERTIES = [publish(1, "", "q", b"x", **HEADERS).split(b"\xce")[1][19:], b"\xff\xf8" + bytes(40), b"\x00\x00"]
_TABLES = [field_table(TABLE), field_table({}), field_table({"a": [{"b": [None]}]})]
_PARTS = {"method": _METHODS, "properties": _PROPERTIES, "table": _TABLES}
hurt = partial(lots.hurt, telling=b"\x00\x01\x02\x7f\x80\xfe\xff\xceAFSItlxbV")
_CAUSES = list(Cause)
_READS_MAX = 48  # of one connection


def _draw_part(random: Random) -> tuple[str, bytes]:
    """Returns the name of a part of frames, and bytes that may be one."""
    name = random.choice(list(_PARTS))
    return name, hurt(_PARTS[name][random.getrandbits(16) % len(_PARTS[name])], random)


def _part(given: tuple[str, bytes]) -> str:
    name, data = given
    if name == "method":
        read_method(data)
    elif name == "properties":
        read_properties(data)
    else:
        try:
            found, _ = read_table(data, 0)
        except ValueError:
            return "refused"
        with contextlib.suppress(TypeError, ValueError):  # of what is only read, as 1.5
            said = write_table(found)
            assert _same(read_table(said, 0), (found, len(said))), found
    return "parsed"


def _same(one: Any, other: Any) -> bool:
    """Returns whether two values are equal, where a number that is none is equal to itself."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


class Gateway:
    """A gateway that answers a connection by chance, and late."""

    def __init__(self, peer: Peer, random: Random) -> None:
        self.peer, self.random = peer, random
        self.asked: list[Any] = []
        self.consumers: list[Any] = []
        self.closed = False

    def take(self, effects: Any) -> None:
        """Notes what is asked."""
        for effect in effects:
            if isinstance(effect, Publish | Call | Consume):
                self.asked.append(effect)
            elif isinstance(effect, Cancel):
                self.consumers = [one for one in self.consumers if one != effect.consumer]
            self.closed = self.closed or isinstance(effect, Close)

    def happen(self) -> None:
        """Answers some of it, delivers, or lets time pass; what is said has to be whole frames."""
        chance = self.random.getrandbits(16)
        while self.asked and not self.closed and chance & 7:
            self._answer(self.asked.pop(0))
            chance >>= 1
        if self.consumers and not self.closed and chance & 1:
            consumer = self.consumers[chance % len(self.consumers)]
            messages = [Message("$amqp//q", b"x" * (chance & 63)) for _ in range(1 + chance % 3)]
            self.peer.deliver(consumer, messages, first=chance)
        if not chance & 0x300 and not self.closed:
            self.take(self.peer.tick(chance))
        self.peer.frames()

    def _answer(self, effect: Any) -> None:
        random, request, value = self.random, getattr(effect, "request", None), None
        if isinstance(request, DeclareQueue):
            value = QueueInfo(name=request.name or "amq.gen", messages=0, consumers=0)
        elif isinstance(request, DeleteQueue | PurgeQueue):
            value = 1
        outcome = Outcome(value=value)
        if isinstance(effect, Publish):
            every = range(len(effect.messages))
            refused = {index: Refusal(random.choice(_CAUSES)) for index in every if not random.getrandbits(4)}
            unrouted = [index for index in effect.mandatory if random.getrandbits(1)]
            outcome = Outcome(refused=refused, unrouted=unrouted)
        if not random.getrandbits(4):
            outcome = Outcome(error=Refusal(random.choice(_CAUSES), "by chance"))
        elif isinstance(effect, Consume):
            self.consumers.append(effect.consumer)
        self.take(self.peer.conn.completed(effect.token, outcome, now_ms=self.peer.now_ms))


def connection(random: Random, inputs: int, tally: dict[str, int]) -> None:
    """Fuzzes whole connections. Raises `Found`."""
    said: list[bytes] = []
    done = connections = closed = 0
    try:
        while done < inputs:
            strange = not random.getrandbits(3)  # it never gets in, or only by luck
            peer = Peer() if strange else Peer().open(channels=2)
            gateway, said = Gateway(peer, random), [hurt(HEADER, random)] if strange else []
            if strange:
                gateway.take(peer.feed(said[0]))
            for _ in range(_READS_MAX):
                done += 1
                if gateway.closed:
                    break
                data = b"".join(random.choices(FRAMES[:-2], k=1 + random.getrandbits(2)))
                if not random.getrandbits(2):
                    data = hurt(data, random)
                elif not random.getrandbits(6):
                    data = FRAMES[-2]
                said.append(data)
                cut = random.getrandbits(10) if random.getrandbits(1) else len(data)
                for part in (data[:cut], data[cut:]):
                    if part and not gateway.closed:
                        gateway.take(peer.feed(part))
                gateway.happen()
            if gateway.closed:
                assert peer.conn.receive(FRAMES[0], now_ms=NOW_MS) == ()
            peer.conn.lost(now_ms=NOW_MS)
            connections, closed = connections + 1, closed + gateway.closed
    except Exception as error:
        raise Found(" | ".join(one.hex(" ") for one in said)) from error
    count(tally, connections=connections, closed_by_us=closed, reads=done)


TARGETS: dict[str, Target] = {
    "decoder": single_inputs(
        _draw_part, _part, refusals=ProtocolError, shown=lambda given: f"{given[0]}: {hex_of(given[1])}"
    ),
    "connection": connection,
}

run = partial(lots.run, TARGETS)

if __name__ == "__main__":
    sys.exit(lots.main(TARGETS, __doc__, sys.argv[1:]))
