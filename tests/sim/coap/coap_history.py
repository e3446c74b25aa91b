"""One history of a gateway and its CoAP clients over a network that fails, heals and is checked."""

from collections import Counter
from random import Random

from gateway.port.adapter import Peer
from store.api.message import Message
from tests.sim.coap.coap_device import MAX_TRANSMIT_WAIT_MS, Device
from tests.sim.coap.coap_host import HOST, GatewayHost
from tests.sim.coap.coap_network import MAX_LATENCY_MS, Network
from tests.sim.coap.coap_publisher import Bodies, Published, Publisher, number_of
from tests.sim.coap.coap_watcher import GONE, Watcher

START_MS = 1_700_000_000_000
REPEATED_MS = 45_000 + MAX_LATENCY_MS  # a request arrives no later than that after it was first sent
ADDRESSES = ("telemetry/site/dev1/temp", "telemetry/site/dev2/temp", "a")


class CoapHistory:
    """Clients that publish and observe. The seed decides everything."""

    EVENTS = (
        *("lost", "repeated", "replaced", "separate", "registered again", "passed over", "each"),
        *("stored", "stored in blocks", "refused", "given up", "unknown"),
    )

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.network = Network(random, start_ms=START_MS + random.randrange(1 << 24))
        settings = {
            "ack_delay_ms": random.choice([10, 1_000]),
            "block_size": random.choice([16, 32, 1_024]),
            "observe_confirm_every": random.choice([1, 2, 4, 16]),
            "observe_check_ms": random.choice([10_000, 60_000]),
            "observe_confirm_ms": random.choice([30_000, 600_000]),
        }
        self.max_age_ms = settings["observe_confirm_ms"] + settings["observe_check_ms"] + 93_000
        self.host = GatewayHost(self.network, settings)
        self.bodies = Bodies()
        self.devices: list[Device] = []
        self.publishers: list[Publisher] = []
        self.watchers: list[Watcher] = []
        for index in range(random.randint(2, 4)):
            device = Device(self.network, self.host, ("192.0.2.7", 40_000 + index))
            self.devices.append(device)
            self.publishers.append(Publisher(device, self.bodies))
            for address in random.sample(ADDRESSES, random.randint(0, 2)):
                self.watchers.append(Watcher(device, self.host, address, each=random.random() < 0.3))
        self._until_ms = 0

    # ---- the story

    def run(self) -> None:
        """Lets clients work on a network that fails, heals it, waits, and checks the promises."""
        random, network = self.random, self.network
        self._until_ms = network.now_ms + random.choice([60_000, 200_000, 400_000])
        for publisher in self.publishers:
            self._work(publisher, random.choice([1_000, 5_000, 20_000]))
        for watcher in self.watchers:
            network.after(random.randrange(20_000), lambda one=watcher: one.register(anew=True))
            self._fidget(watcher)
        self._trouble()
        network.run(self._until_ms)
        for address in ADDRESSES:
            self._publish_elsewhere(address)
        network.run(network.now_ms + random.choice([0, 20_000, 120_000]))
        network.heal()
        network.run(network.now_ms + MAX_LATENCY_MS + 3 * (self.max_age_ms + MAX_TRANSMIT_WAIT_MS))
        self.check()

    def _soon(self, at_most_ms: int) -> int | None:
        """Returns a delay, None where the time of the story is over by then."""
        delay_ms = self.random.randrange(1, at_most_ms)
        return delay_ms if self.network.now_ms + delay_ms < self._until_ms else None

    def _work(self, publisher: Publisher, pace_ms: int) -> None:
        delay_ms = self._soon(pace_ms)
        if delay_ms is not None:
            self.network.after(delay_ms, lambda: self._work(publisher, pace_ms))
        address = self.random.choice(ADDRESSES)
        if self.random.random() < 0.1:
            publisher.tell(address)
        elif publisher.idle:
            publisher.publish(address, blocks=self.random.choice([1, 1, 1, 2, 4]))

    def _fidget(self, watcher: Watcher) -> None:
        """Lets an observer register again, or end its observation for a while."""
        delay_ms = self._soon(120_000)
        if delay_ms is None:
            return

        def act() -> None:
            if self.random.random() < 0.7:
                watcher.register(anew=self.random.random() < 0.3)
            else:
                watcher.deregister()
            self._fidget(watcher)

        self.network.after(delay_ms, act)

    def _trouble(self) -> None:
        """Lets other protocols publish, clients be cut off, and, in some histories, the gateway be replaced."""
        replaced = self.random.random() < 0.3
        for _ in range(self.random.randrange(8)):
            delay_ms = self._soon(400_000)
            if delay_ms is None:
                continue
            happens = self.random.choice(["burst", "burst", "cut", "replace"])
            if happens == "burst":
                self.network.after(delay_ms, self._burst)
            elif happens == "cut":
                self.network.after(delay_ms, self._cut_off)
            elif replaced:
                self.network.after(delay_ms, self.host.stop)
                self.network.after(delay_ms + self.random.choice([1, 5_000, 60_000]), self._take_over)

    def _take_over(self) -> None:
        self.host.clock_ahead_ms = self.random.choice([0, 0, 3_000, -3_000])
        self.host.stop()
        self.host.start()

    def _burst(self) -> None:
        address = self.random.choice(ADDRESSES)
        for _ in range(self.random.choice([1, 5, 40])):
            self._publish_elsewhere(address)

    def _publish_elsewhere(self, address: str) -> None:
        record, body = self.bodies.new(7, confirmable=False, now_ms=self.network.now_ms)
        record.fate = "elsewhere"
        self.host.publish([Message(address=address, body=body)])

    def _cut_off(self) -> None:
        peer: Peer = self.random.choice([HOST, *[device.address for device in self.devices]])
        self.network.cut_off[peer] = self.network.now_ms + self.random.choice([5_000, 60_000, 150_000])

    def events(self) -> Counter[str]:
        """Counts what has happened; a name that nothing has happened for is left out."""
        fates = Counter(record.fate for record in self.bodies.published if record.fate != "elsewhere")
        found = Counter(
            {
                "lost": self.network.lost,
                "repeated": self.network.repeated,
                "replaced": len(self.host.restarts_ms),
                "separate": sum(device.separate for device in self.devices),
                "registered again": sum(watcher.registered > 1 for watcher in self.watchers),
                "passed over": sum(watcher.passed_over for watcher in self.watchers),
                "each": sum(watcher.accepted for watcher in self.watchers if watcher.each),
                "stored in blocks": sum(one.fate == "stored" and one.blocks > 1 for one in self.bodies.published),
                **fates,
            }
        )
        return +found

    # ---- the promises

    def check(self) -> None:
        """Fails where a body is stored too often or not at all, or an observer has an older value than the last."""
        counts = Counter(number_of(message.body) for message in self.host.log)
        for record in self.bodies.published:
            self._check_stored(record, counts[record.number])
        for watcher in self.watchers:
            last = self.host.values.get(watcher.address)
            expected = GONE if last is None else number_of(last.body)
            assert watcher.body == expected, (
                f"an observer of {watcher.address} at {watcher.device.address} has {watcher.body}, and not {expected}"
            )

    def _check_stored(self, record: Published, count: int) -> None:
        """Fails where a body was stored less or more often than its client may believe.

        An endpoint that is replaced forgets which requests it has seen.
        """
        assert record.fate, f"body {record.number} has no fate"
        forgotten = sum(
            record.begun_ms <= at_ms <= record.begun_ms + 4 * MAX_TRANSMIT_WAIT_MS * record.blocks + REPEATED_MS
            for at_ms in self.host.restarts_ms
        )
        least = record.fate in {"stored", "elsewhere"}
        most = (record.fate != "refused") + forgotten
        assert least <= count <= most, f"body {record.number} is {record.fate} and was stored {count} times"
