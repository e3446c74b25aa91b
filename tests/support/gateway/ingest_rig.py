"""An `Ingest` over logs that hold every frame until the test says how it ended."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gateway.domain.batch import Batch
from gateway.domain.errors import Refusal
from gateway.domain.principal import Principal
from gateway.ops.metrics import Metrics
from gateway.port.adapter import Outcome, Publish, Token
from gateway.port.single import Single
from gateway.publishing.ingest import Ingest
from gateway.publishing.routing.router import Router
from store.api.log import Appended
from store.api.message import Message, decode
from store.format.frame import Position, group_of, origin_of
from tests.support.store.store_kit import placed

STORED_AT_MS = 5
SIZE_BYTES = 10  # of every publication, as its connection counts it


class HeldLog:
    """One group's log, and its timers."""

    def __init__(self, group: int = 0) -> None:
        self.group = group
        self.log = self.timers = self
        self.waiting: list[tuple[Any, Callable[[Any], None]]] = []
        self.frames: dict[int, Any] = {}  # by where they were put, in order
        self.end = origin_of(group)
        self.refused_timers: Exception | None = None

    def admit(self, due_ms: int, size_bytes: int) -> None:
        if self.refused_timers is not None:
            raise self.refused_timers

    def append(self, frame: Any, done: Callable[[Any], None]) -> None:
        self.waiting.append((frame, done))

    def end_next(self, error: Exception | None = None) -> None:
        """Stores the oldest frame that waits, or refuses it."""
        frame, done = self.waiting.pop(0)
        if error is not None:
            done(error)
            return
        stored = self.frames[self.end] = placed(frame, self.end, stored_at_ms=STORED_AT_MS)
        self.end = stored.end
        done(Appended(stored.start))

    def end_all(self) -> None:
        while self.waiting:
            self.end_next()

    @property
    def bodies(self) -> list[bytes]:
        """Returns the bodies of all that is stored; only of messages."""
        return [bytes(decode(one.record(row)).body) for one in self.frames.values() for row in range(len(one.rows))]


class HeldStore:
    """The logs of some groups."""

    group = 0

    def __init__(self, groups: Iterable[int]) -> None:
        self.logs = {group: HeldLog(group) for group in groups}


class IngestRig:
    """An `Ingest`, its router, and all that it hands on: turns to run, topics to create, addresses that have come."""

    def __init__(self, controller: Any, groups: Iterable[int] = (0,), *, zone: str = "", **options: Any) -> None:
        self.controller = controller
        self.store = HeldStore(groups)
        self.router = Router(controller, zone=zone)
        self.metrics = Metrics(process=False)
        self.turns: list[Callable[[], None]] = []
        self.wanted: list[str] = []
        self.named: list[str] = []
        self.creators: list[str] = []  # for whom each of `wanted` is to be created
        self.ingest = Ingest(
            self.store,
            self.router,
            self.metrics,
            new_producer=iter(range(7, 100_000)).__next__,
            message_bytes_max=1000,
            soon=self.turns.append,
            clock=lambda: 0.0,
            create_topic=self._create,
            appended_to=self.named.extend,
            drained=lambda: None,
            **{"acknowledged": lambda _: None} | options,
        )

    def _create(self, name: str, creator: str) -> None:
        self.wanted.append(name)
        self.creators.append(creator)

    @property
    def log(self) -> HeldLog:
        """Returns the log of group 0."""
        return self.store.logs[0]

    def turn(self) -> None:
        while self.turns:
            self.turns.pop(0)()

    def end_all(self) -> None:
        for log in self.store.logs.values():
            log.end_all()

    def messages(self) -> list[Message]:
        """Returns the messages that are in group 0's log."""
        return [message for frame in self.log.frames.values() for message in Batch.of(frame).messages]

    def counted(self, topic: str, status: str) -> float:
        """Returns how many messages over MQTT have come to a topic and ended so."""
        [family] = self.metrics.messages_in("mqtt", topic, status).collect()
        return next(sample.value for sample in family.samples if sample.name.endswith("_total"))


class Publisher:
    """Somebody who publishes: the outcomes it was told, by token."""

    principal: Principal | None = None

    def __init__(self) -> None:
        self.outcomes: dict[Token, Outcome] = {}

    def published(self, token: Token, outcome: Outcome, size_bytes: int) -> None:
        assert all(token > before for before in self.outcomes)
        self.outcomes[token] = outcome


class SinglesPublisher:
    """A connection that publishes single messages: writes down in which order it was answered."""

    protocol = "mqtt"
    principal = None

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.tokens = iter(range(1000, 2000))

    def publish_of(self, single: Single) -> Publish:
        return Publish([single.message], Token(next(self.tokens)))

    def failed(self, single: Single, error: Refusal, size_bytes: int) -> None:
        self.answers.append((error.cause, size_bytes))

    def published(self, token: Token, outcome: Outcome, size_bytes: int) -> None:
        error = outcome.error or next(iter(outcome.refused.values()), None)
        self.answers.append((token if error is None else error.cause, size_bytes))


def _acknowledged(singles: Any, _first: Position) -> None:
    for publisher, single, size_bytes in singles:
        publisher.answers.append((single.acknowledgement, size_bytes))


class SinglesRig(IngestRig):
    """Publications that come alone, beside others."""

    def __init__(self, controller: Any, groups: Sequence[int] = (0,)) -> None:
        super().__init__(controller, groups, acknowledged=_acknowledged, gathers=len(groups) == 1)

    def single(self, publisher: SinglesPublisher, message: Message, acknowledgement: bytes = b"ack") -> None:
        self.ingest.publish_singles([(publisher, Single(message, acknowledgement), SIZE_BYTES)])

    def publish(
        self, publisher: Any, token: int, *messages: Message, denied: Mapping[int, Refusal] | None = None
    ) -> None:
        self.ingest.publish(publisher, Publish(messages, Token(token)), SIZE_BYTES, denied or {})

    def know(self, *addresses: str) -> None:
        for address in addresses:
            self.router.resolve(address)

    def rested(self) -> bool:
        return self.ingest.idle and not self.ingest.waiting_bytes


class SpreadRig(IngestRig):
    """An `Ingest` over several groups, and publishers by name."""

    def __init__(self, controller: Any, groups: Iterable[int] = (0, 1), **options: Any) -> None:
        super().__init__(controller, groups, **options)
        self.publishers: dict[str, Publisher] = {}

    def publisher(self, who: str) -> Publisher:
        return self.publishers.setdefault(who, Publisher())

    def publish(self, who: str, token: int, *messages: Message) -> None:
        self.ingest.publish(self.publisher(who), Publish(messages, Token(token)), SIZE_BYTES)

    def outcome(self, who: str, token: int = 1) -> Outcome | None:
        return self.publishers[who].outcomes.get(Token(token))

    def record(self, position: Position) -> bytes:
        """Returns what is stored at a position."""
        return self.store.logs[group_of(position.frame)].frames[position.frame].record(position.row)

    def keys(self, group: int, count: int = 1, *, topic: str = "t") -> list[str]:
        """Returns keys whose messages lie in a group."""
        queues = self.router.resolve(f"{topic}/x").queues
        found = [
            key
            for key in map("k{}".format, range(10_000))
            if self.router.groups[queues[self.router.key_hash(key) % len(queues)]] == group
        ]
        return found[:count]
