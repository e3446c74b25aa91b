"""QoS 2 towards the log: whatever is lost between a client and two logs, each log has each message exactly once.

The client follows the specification; the gateway is the adapter, and a model of what the rest of it promises: frames
that are stored or not, each for itself, with the marks of their messages; saves that happen or not. It dies at any
moment, connections end at any moment, and identifiers are few, so that they are used again at once.

Or it is stopped at any moment, and another one takes the session over: it goes on between any two steps of that, and
later, with what the client had written to it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from adapters.mqtt.codec.packets import Connack, Packet, Pubcomp, Publish, Pubrec, Pubrel
from adapters.mqtt.codec.properties import Properties
from gateway.domain.errors import Cause, Refusal
from gateway.port import adapter as port
from gateway.port.adapter import Outcome
from gateway.port.marks import Fence, Mark, OpenedMarks
from gateway.port.sessions import OpenedSession, SaveSession
from tests.support.mqtt.mqtt_driver import Driver
from tests.support.process.examples import examples

IDS = 4
MESSAGES = 48
GROUPS_OF: Mapping[str, tuple[int, ...]] = {"a": (0,), "b": (1,), "c": (0, 1)}


class Frame(NamedTuple):
    """The part of a `Publish` that is for one log, on its way."""

    effect: port.Publish
    group: int
    bodies: tuple[bytes, ...]
    marks: tuple[tuple[bytes, int], ...]


class Logs:
    """The state that outlives the gateway: two logs, each with its messages and marks, and the session's record."""

    def __init__(self) -> None:
        self.bodies: dict[int, list[bytes]] = {0: [], 1: []}
        self.marks: dict[int, dict[int, tuple[tuple[bytes, int], ...]]] = {0: {}, 1: {}}
        self.fences = {0: 0, 1: 0}
        self.state = self.exchanges = b""
        self.there = self.marked = False
        self.epoch = 0  # of the session's owner

    def frames(self, effect: port.Publish) -> list[Frame]:
        """Returns a message's frames as `Ingest` makes them."""
        marks = effect.marks
        found = []
        for group in (0, 1):
            if marks is not None and group in marks.stored:
                continue
            mine = [i for i, m in enumerate(effect.messages) if group in GROUPS_OF[m.address]]
            said = (
                () if marks is None else tuple((marks.of[i], len(GROUPS_OF[effect.messages[i].address])) for i in mine)
            )
            if mine:
                found.append(Frame(effect, group, tuple(effect.messages[i].body for i in mine), said))
        return found

    def store(self, frame: Frame) -> bool:
        marks = frame.effect.marks
        if marks is not None:
            assert marks.fence is not None
            if marks.fence.epoch < self.fences[frame.group]:
                return False
        self.bodies[frame.group] += frame.bodies
        if frame.effect.marks is not None:
            assert self.marked, "nobody would look for it"
            self.marks[frame.group][frame.effect.marks.slot] = frame.marks
        return True

    def save(self, request: SaveSession) -> None:
        self.state = self.state if request.state is None else request.state
        self.exchanges = self.exchanges if request.exchanges is None else request.exchanges
        self.marked = self.marked or request.marked

    def opened(self, meanwhile: Callable[[], None]) -> OpenedSession:
        """Opens the session as `Sessions.open` and `open_marks` do: owns it first, then fences it, then reads it."""
        self.epoch += 1
        fence = Fence(b"k", self.epoch)
        meanwhile()
        if not self.there:
            self.there = True
            return OpenedSession(present=False, marks=OpenedMarks(key="k", fence=fence))
        for group in (0, 1) if self.marked else ():
            self.fences[group] = self.epoch
            meanwhile()
        found = [
            Mark(slot, group, mark, groups)
            for group, slots in self.marks.items()
            for slot, said in slots.items()
            for mark, groups in said
        ]
        marks = OpenedMarks(key="k", fence=fence, used=self.marked, found=found if self.marked else ())
        return OpenedSession(present=True, state=self.state, exchanges=self.exchanges, marks=marks)


class QosTwoClient:
    """A publisher as the specification wants it (4.3.3, 4.4): what is not answered is sent again after a reconnect."""

    def __init__(self) -> None:
        self.left = [f"{'abc'[n % 3]}{n}".encode() for n in range(MESSAGES)]
        self.sent: dict[int, bytes] = {}  # awaiting PUBREC, in order
        self.released: dict[int, None] = {}  # awaiting PUBCOMP

    def publish(self) -> list[Packet]:
        free = [i for i in range(1, IDS + 1) if i not in self.sent and i not in self.released]
        if not free or not self.left:
            return []
        self.sent[free[0]] = self.left.pop(0)
        return [self._packet(free[0], dup=False)]

    def _packet(self, packet_id: int, *, dup: bool) -> Packet:
        body = self.sent[packet_id]
        return Publish(topic=body[:1].decode(), payload=body, qos=2, packet_id=packet_id, dup=dup)

    def again(self) -> list[Packet]:
        publishes = [self._packet(packet_id, dup=True) for packet_id in self.sent]
        return publishes + [Pubrel(packet_id=packet_id) for packet_id in self.released]

    def hear(self, packet: Packet) -> list[Packet]:
        if isinstance(packet, Pubrec):
            assert packet.code == 0
            assert packet.packet_id in self.sent or packet.packet_id in self.released
            if self.sent.pop(packet.packet_id, None) is not None:
                self.released[packet.packet_id] = None
            return [Pubrel(packet_id=packet.packet_id)]
        if isinstance(packet, Pubcomp):
            self.released.pop(packet.packet_id, None)
        return []


class Late:
    """A gateway that was stopped and goes on by single steps, with what the client had written to it."""

    def __init__(self, world: "ExactlyOnceWorld") -> None:
        assert world.driver is not None
        self.logs, self.driver, self.epoch = world.logs, world.driver, world.logs.epoch
        self.frames, self.pending, self.saves = world.frames, world.pending, world.saves
        self.packets = world.to_gateway
        self.over = False  # its connection is closed

    def step(self, random: Random) -> None:
        what = random.choice((self.read, self.read, self.store, self.store, self.save))
        if not self.over:
            what(random)

    def read(self, random: Random) -> None:
        if self.packets and not self.driver.closed:
            count = random.randint(1, 3)
            some, self.packets = self.packets[:count], self.packets[count:]
            self.driver.send(*some)
            self._take()

    def _take(self) -> None:
        for effect in self.driver.take(port.Publish):
            frames = self.logs.frames(effect)
            self.frames += frames
            self.pending[effect.token] = (effect, {frame.group for frame in frames})
        self.saves += self.driver.calls(SaveSession)

    def store(self, random: Random) -> None:
        groups = sorted({frame.group for frame in self.frames})
        if not groups:
            return
        group = random.choice(groups)
        frame = next(frame for frame in self.frames if frame.group == group)
        self.frames.remove(frame)
        if not self.logs.store(frame):
            self.over = True
            return
        effect, missing = self.pending[frame.effect.token]
        missing.discard(group)
        while self.pending:
            token, (effect, missing) = next(iter(self.pending.items()))
            if missing:
                return
            del self.pending[token]
            self.driver.complete(effect, Outcome(error=Refusal(Cause.UNKNOWN)) if effect.once else port.DONE)
            self._take()

    def save(self, _: Random) -> None:
        if self.saves:
            call = self.saves.pop(0)
            if self.logs.epoch != self.epoch:
                self.over = True
                return
            self.logs.save(call.request)
            self.driver.complete(call)
            self._take()


class ExactlyOnceWorld:
    """A client, a gateway and two logs. Packets in flight advance only on an explicit step."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.logs, self.client = Logs(), QosTwoClient()
        self.driver: Driver | None = None
        self.frames: list[Frame] = []  # not stored yet; of one log, in order
        self.pending: dict[port.Token, tuple[port.Publish, set[int]]] = {}  # not answered: the groups that are missing
        self.saves: list[port.Call] = []
        self.to_client: list[Packet] = []
        self.to_gateway: list[Packet] = []
        self.late: list[Late] = []
        self.random = Random(0)  # of those that are late

    def sleep(self, seed: int) -> None:
        """Stops the gateway, with all that is in flight; the client writes on for a while."""
        self.random = Random(seed)
        if self.driver is not None and not self.driver.closed:
            for _ in range(self.random.randint(0, 3)):
                self.client_publishes()
            self.late.append(Late(self))
        self._forget()

    def meanwhile(self) -> None:
        """Lets those that were stopped go on, or not, by chance."""
        for late in self.late:
            for _ in range(self.random.randint(0, 4)):
                late.step(self.random)

    def connect(self) -> None:
        driver = self.driver = Driver(self.version)
        driver.saves = False
        driver.opened = Outcome(value=self.logs.opened(self.meanwhile))
        fields = {"properties": Properties(session_expiry_s=99)} if self.version == 5 else {}
        said = driver.connect(clean=False, **fields)
        assert isinstance(said, Connack)
        assert said.code == 0
        self.to_gateway = self.client.again()
        self._take()

    def disconnect(self) -> None:
        """Ends the connection. A session is opened again once all that its connection has published is answered."""
        if self.driver is None:
            return
        self.driver.lose()
        self._take()
        while self.frames:
            self.store(0)
        for save in self.saves:
            self.logs.save(save.request)
        self._forget()

    def crash(self, random: Random) -> None:
        """Ends the gateway: a beginning of what is in flight to each log is stored."""
        for group in (0, 1):
            mine = [frame for frame in self.frames if frame.group == group]
            for frame in mine[: random.randint(0, len(mine))]:
                self.logs.store(frame)
        for save in self.saves[: random.randint(0, len(self.saves))]:
            self.logs.save(save.request)
        self._forget()

    def _forget(self) -> None:
        self.driver = None
        self.frames, self.saves, self.to_client, self.to_gateway = [], [], [], []
        self.pending = {}

    def _take(self) -> None:
        assert self.driver is not None
        for effect in self.driver.take(port.Publish):
            frames = self.logs.frames(effect)
            self.frames += frames
            self.pending[effect.token] = (effect, {frame.group for frame in frames})
        self.saves += self.driver.calls(SaveSession)
        self.to_client += self.driver.out()

    # ---- steps

    def client_says(self, count: int) -> None:
        if self.driver is not None and not self.driver.closed and self.to_gateway:
            some, self.to_gateway = self.to_gateway[:count], self.to_gateway[count:]
            self.to_client += self.driver.send(*some)
            self._take()

    def client_hears(self) -> None:
        if self.to_client:
            self.to_gateway += self.client.hear(self.to_client.pop(0))

    def client_publishes(self) -> None:
        if self.driver is not None:
            self.to_gateway += self.client.publish()

    def store(self, nth: int, error: Cause | None = None) -> None:
        """Stores the next frame in flight to one of the logs; with `error` nobody learns whether it did."""
        groups = sorted({frame.group for frame in self.frames})
        if not groups or self.driver is None:
            return
        frame = next(frame for frame in self.frames if frame.group == groups[nth % len(groups)])
        self.frames.remove(frame)
        if error is None or nth % 2:
            self.logs.store(frame)
        effect, missing = self.pending[frame.effect.token]
        missing.discard(frame.group)
        if error is not None:
            self.pending[frame.effect.token] = (replace(effect, once=1), missing)  # the mark of a failure, here
        self.answer_effect()

    def answer_effect(self) -> None:
        assert self.driver is not None
        while self.pending:
            token, (effect, missing) = next(iter(self.pending.items()))
            if missing:
                return
            del self.pending[token]
            outcome = Outcome(error=Refusal(Cause.UNKNOWN)) if effect.once else port.DONE
            self.to_client += self.driver.complete(effect, outcome)
            self._take()

    def save(self) -> None:
        if self.saves and self.driver is not None:
            call = self.saves.pop(0)
            self.logs.save(call.request)
            self.to_client += self.driver.complete(call)
            self._take()

    def finish(self) -> None:
        """Ends all faults, and brings everything to rest."""
        for _ in range(1_000):
            if self.driver is None or self.driver.closed:
                self.disconnect()
                self.connect()
            self.client_publishes()
            self.client_says(3)
            self.save()
            self.store(0)
            self.store(1)
            self.client_hears()
            self.meanwhile()
        assert not self.client.left
        assert not self.client.sent
        assert not self.client.released


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.just(0)),
        st.tuples(st.just("says"), st.integers(1, 4)),
        st.tuples(st.just("hears"), st.just(0)),
        st.tuples(st.just("store"), st.integers(0, 1)),
        st.tuples(st.just("save"), st.just(0)),
        st.tuples(st.just("fails"), st.integers(0, 3)),
        st.tuples(st.just("lost"), st.just(0)),
        st.tuples(st.just("crash"), st.integers(0, 1 << 16)),
        st.tuples(st.just("sleep"), st.integers(0, 1 << 16)),
        st.tuples(st.just("late"), st.just(0)),
    ),
    max_size=120,
)


def run(version: int, steps: list[tuple[str, int]]) -> None:
    world = ExactlyOnceWorld(version)
    for kind, value in steps:
        if world.driver is None or world.driver.closed:
            world.disconnect()
            world.connect()
        match kind:
            case "publish":
                world.client_publishes()
            case "says":
                world.client_says(value)
            case "hears":
                world.client_hears()
            case "store":
                world.store(value)
            case "save":
                world.save()
            case "fails":
                world.store(value, Cause.UNKNOWN)
            case "lost":
                world.disconnect()
            case "crash":
                world.crash(Random(value))
            case "sleep":
                world.sleep(value)
            case "late":
                world.meanwhile()
    world.finish()
    sent = [f"{'abc'[n % 3]}{n}".encode() for n in range(MESSAGES)]
    for group in (0, 1):
        wanted = Counter(body for body in sent if group in GROUPS_OF[body[:1].decode()])
        assert Counter(world.logs.bodies[group]) == wanted
    slots = {slot for group in (0, 1) for slot in world.logs.marks[group]}
    assert all(slot <= IDS + 1 for slot in slots)  # they are used again, and do not pile up


ONE = [("publish", 0), ("says", 1), ("save", 0), ("says", 1), ("store", 0)]


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from((4, 5)), STEPS)
@example(4, [*ONE, ("crash", 0)])
@example(4, [*ONE, ("crash", 0), ("publish", 0), ("publish", 0), ("says", 3), ("store", 0), ("crash", 0)])
@example(4, [*ONE, ("publish", 0), ("publish", 0), ("sleep", 3), ("late", 0), ("late", 0), ("late", 0)])
@example(5, [*ONE, ("hears", 0), ("says", 1), ("crash", 1), ("says", 4), ("hears", 0), ("lost", 0)])
def test_each_log_has_each_message_exactly_once(version, steps):
    run(version, steps)


def test_long_runs():
    for seed in range(40):
        random = Random(seed)
        kinds = ["publish", "says", "hears", "store", "save"] * 6 + ["fails", "lost", "crash", "sleep", "late", "late"]
        run(4 + seed % 2, [(random.choice(kinds), random.randint(1, 4)) for _ in range(400)])
