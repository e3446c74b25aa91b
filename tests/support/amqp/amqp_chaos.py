"""AMQP clients at work while processes are killed.

A publisher with confirms sends numbers to three queues by turns. A consumer acknowledges or rejects, as the number
says, what comes to the first; messages of the second expire; one transaction behind another moves those of the third to
another queue. Rejected and expired messages are dead letters in one queue.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import pika
from pika.adapters.blocking_connection import BlockingChannel

TIMEOUT_S = 240  # on a busy machine; nobody waits so long where all is well
WORK, EXPIRING, SOURCE, TARGET, DEAD = "chaos.work", "chaos.expiring", "chaos.source", "chaos.target", "chaos.dead"
FIRST = (WORK, EXPIRING, SOURCE)
PREFETCH = 10
TTL_MS = 100
SETTLED_S = 2.0  # behind an answer that followed an acknowledgement, this is on disk however busy the machine is
PAUSE_S = 0.1
PROGRESS = {"confirmed": 40, "acknowledged": 8, "rejected": 4, "committed": 4}  # between two kills


class Client(threading.Thread):
    """Works on one connection after another, each to a port by chance, until it is told to stop."""

    def __init__(self, chaos: "AmqpChaos", work: Callable[[BlockingChannel], None]) -> None:
        super().__init__(daemon=True)
        self.chaos, self.work = chaos, work
        self.failure: BaseException | None = None

    def run(self) -> None:
        while not self.chaos.stopping:
            try:
                connection = pika.BlockingConnection(self.chaos.parameters())
                self.work(connection.channel())
                connection.close()
            except (pika.exceptions.AMQPError, OSError):
                time.sleep(PAUSE_S)
            except BaseException as error:
                self.failure = error
                raise


class AmqpChaos:
    """The clients, what they were promised, and what must not be: `violations`."""

    def __init__(self, ports: Callable[[], Sequence[int]], seed: int) -> None:
        self.chance = random.Random(seed)
        self.stopping = False
        self.publishing = True
        self.next = 0
        self.confirmed: list[int] = []
        self.acknowledged: dict[int, float] = {}  # when an answer came behind the acknowledgement
        self.settled: set[int] = set()  # acknowledged, perhaps without an answer behind it
        self.outages: list[tuple[float, float]] = []
        self.said: Counter[str] = Counter()
        self.violations: list[str] = []
        self._ports = ports
        self._returned: list[tuple[int, float]] = []  # acknowledged and delivered again, and when it was acknowledged
        self._clients = [Client(self, work) for work in (self._publish, self._consume, self._move)]

    def parameters(self) -> pika.ConnectionParameters:
        """Returns where a client connects next."""
        port = self.chance.choice(list(self._ports()))
        return pika.ConnectionParameters("127.0.0.1", port, socket_timeout=10, blocked_connection_timeout=10)

    def start(self) -> None:
        """Declares the queues, and starts the clients."""
        with pika.BlockingConnection(self.parameters()) as connection:
            channel = connection.channel()
            letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
            channel.queue_declare(WORK, durable=True, arguments=letters)
            channel.queue_declare(EXPIRING, durable=True, arguments={**letters, "x-message-ttl": TTL_MS})
            for name in (SOURCE, TARGET, DEAD):
                channel.queue_declare(name, durable=True)
        for one in self._clients:
            one.start()

    def progress(self) -> None:
        """Waits until each client has done something more."""
        before = Counter(self.said)
        deadline = time.monotonic() + TIMEOUT_S
        while any(self.said[name] - before[name] < least for name, least in PROGRESS.items()):
            self._alive()
            assert time.monotonic() < deadline, f"no progress: {self.said - before}"
            time.sleep(0.01)

    def outage(self, kill: Callable[[], None], restore: Callable[[], None]) -> None:
        """Kills, restores, and notes from when to when an acknowledgement may not have been stored."""
        began = time.monotonic()
        kill()
        restore()
        self.outages.append((began - SETTLED_S, time.monotonic()))
        self.said["kills"] += 1

    def finish(self) -> None:
        """Lets the clients do all that is left, and stops them."""
        self.publishing = False
        deadline = time.monotonic() + 2 * TIMEOUT_S
        while self._left():
            self._alive()
            assert time.monotonic() < deadline, "messages are left"
            time.sleep(PAUSE_S)
        self.stop()

    def stop(self) -> None:
        """Stops the clients."""
        self.stopping = True
        for one in self._clients:
            one.join(TIMEOUT_S)

    def check(self) -> None:
        """Looks at what is in the queues now. Fails with all violations."""
        with pika.BlockingConnection(self.parameters()) as connection:
            channel = connection.channel()
            dead, target = (Counter(_taken(channel, name)) for name in (DEAD, TARGET))
        for found, where in ((dead, DEAD), (target, TARGET)):
            self._none([n for n, times in found.items() if times > 1], f"more than once in {where}")
        self._none([n for n in target if n % 3 != 2], f"in {TARGET}, where it does not belong")
        self._none(
            [n for n in dead if n % 3 == 2 or (n % 3 == 0 and not _refused(n))], "a dead letter without a reason"
        )
        known = dead.keys() | target.keys() | self.settled
        self._none([n for n in self.confirmed if n not in known], "confirmed, and lost")
        for number, when in self._returned:
            if not any(began <= when <= ended for began, ended in self.outages):
                self.violations.append(f"{number} came back, and nothing was killed when it was acknowledged")
        assert not self.violations, f"{self.violations} after {self.said}"

    # ---- clients

    def _publish(self, channel: BlockingChannel) -> None:
        channel.confirm_delivery()
        persistent = pika.BasicProperties(delivery_mode=2)
        while not self.stopping:
            if not self.publishing:
                channel.connection.sleep(PAUSE_S)
                continue
            number, self.next = self.next, self.next + 1
            channel.basic_publish("", FIRST[number % 3], b"%d" % number, persistent)
            self.confirmed.append(number)
            self.said["confirmed"] += 1

    def _consume(self, channel: BlockingChannel) -> None:
        channel.basic_qos(prefetch_count=PREFETCH)
        newest, sent = -1, []
        for method, _, body in channel.consume(WORK, inactivity_timeout=PAUSE_S):
            if method is not None:
                number = int(body)
                if number in self.acknowledged:
                    self._returned.append((number, self.acknowledged[number]))
                if not method.redelivered:
                    if number <= newest:
                        self.violations.append(f"{number} came for the first time, after {newest}")
                    newest = number
                if _refused(number):
                    channel.basic_reject(method.delivery_tag, requeue=False)
                    self.said["rejected"] += 1
                else:
                    channel.basic_ack(method.delivery_tag)
                    sent.append(number)
                    self.settled.add(number)
            if sent and (method is None or len(sent) >= PREFETCH // 2):
                channel.basic_qos(prefetch_count=PREFETCH)  # its answer says that the acknowledgements were read
                now = time.monotonic()
                for number in sent:
                    self.acknowledged[number] = now
                self.said["acknowledged"] += len(sent)
                sent.clear()
            if self.stopping:
                return

    def _move(self, channel: BlockingChannel) -> None:
        channel.tx_select()
        while not self.stopping:
            moved: set[bytes] = set()
            while len(moved) < 3:
                method, _, body = channel.basic_get(SOURCE)
                if method is None:
                    break
                if body not in moved:  # again where its master ended before the commit
                    channel.basic_publish("", TARGET, body, pika.BasicProperties(delivery_mode=2))
                    moved.add(body)
                channel.basic_ack(method.delivery_tag)
            if moved:
                channel.tx_commit()
                self.said["committed"] += 1
            else:
                channel.connection.sleep(PAUSE_S)

    def _left(self) -> bool:
        """Returns whether messages wait for a client, or are with one."""
        try:
            with pika.BlockingConnection(self.parameters()) as connection:
                channel = connection.channel()
                if any(channel.queue_declare(name, passive=True).method.message_count for name in FIRST):
                    return True
        except (pika.exceptions.AMQPError, OSError):
            return True
        return any(n % 3 == 0 and not _refused(n) and n not in self.settled for n in self.confirmed)

    def _alive(self) -> None:
        for one in self._clients:
            if one.failure is not None:
                raise one.failure

    def _none(self, numbers: list[int], what: str) -> None:
        if numbers:
            self.violations.append(f"{len(numbers)} {what}: {numbers[:20]}")


def _refused(number: int) -> bool:
    """Returns whether the consumer rejects a number of the first queue."""
    return number // 3 % 3 == 0


def _taken(channel: BlockingChannel, name: str) -> list[int]:
    """Takes all messages that wait in a queue, and returns their numbers."""
    return [int(body) for *_, body in iter(lambda: channel.basic_get(name, auto_ack=True), (None, None, None))]
