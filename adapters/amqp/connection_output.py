"""The way out that the channels of a connection share: to the peer and to the gateway."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from adapters.amqp.body_credit import ConnectionCredit
from adapters.amqp.consumers import Consumer
from adapters.amqp.options import AmqpOptions
from adapters.amqp.publishing import TARGETS
from gateway.domain.errors import Refusal
from gateway.domain.vhosts import DEFAULT_VHOST, in_vhost
from gateway.port.adapter import (
    Call,
    Cancel,
    ConsumerId,
    Disposition,
    Effect,
    Outcome,
    Random,
    Ready,
    Request,
    SettleLeased,
    Token,
)
from store.format.frame import QueueOffset

OUTPUT_BYTES_MAX: Final = 1 << 20  # waiting to be written; beyond, nothing more is fetched for basic.get
FETCHING_COUNT_MAX: Final = 8  # basic.get under way, on all channels

Answered: TypeAlias = Callable[[Outcome, int], None]  # (outcome, now_ms)


class ConnectionOutput:
    """Frames and effects on their way out, and who waits for which answer."""

    def __init__(self, options: AmqpOptions, share: ConnectionCredit, random: Random) -> None:
        self.options = options
        self.share = share
        self.random = random
        self.vhost = DEFAULT_VHOST
        self.targets = TARGETS  # of the virtual host
        self.payload_max = 0  # bytes of a frame without its overhead
        self.cancel_notify = False  # the client understands basic.cancel from us
        self.assembling_bytes = 0  # of bodies not yet whole
        self.transaction_bytes = 0  # of messages in transactions, on all channels
        self.fetching_count = 0  # basic.get under way
        self.waits_for_room = False  # a basic.get does, until what is to be written has been taken
        self._out: list[bytes] = []
        self._effects: list[Effect] = []
        self._last_id = 0  # of tokens and consumers
        self._expected: dict[Token, Answered] = {}
        self._consumers: dict[ConsumerId, Consumer] = {}
        self._settles: dict[tuple[str, int], dict[str, list[QueueOffset]]] = {}  # by queue and outcome
        self._freed: dict[ConsumerId, Consumer] = {}  # consumers whose credit may have changed

    def inside(self, name: str) -> str:
        """Returns the gateway's name of a queue or an exchange of this connection's virtual host."""
        return in_vhost(self.vhost, name)

    def write(self, *frames: bytes) -> None:
        """Sends frames."""
        self._out += frames

    @property
    def may_fetch(self) -> bool:
        """Returns whether the answer to one more basic.get could be held.

        A peer that reads none of them asks for no more.
        """
        self.waits_for_room = sum(map(len, self._out)) >= OUTPUT_BYTES_MAX
        return not self.waits_for_room and self.fetching_count < FETCHING_COUNT_MAX

    def emit(self, effect: Effect) -> None:
        """Asks the gateway for something."""
        self._effects.append(effect)

    def expect(self, answered: Answered) -> Token:
        """A token whose outcome goes to `answered`."""
        self._last_id += 1
        token = Token(self._last_id)
        self._expected[token] = answered
        return token

    def call(self, request: Request[Any], answered: Answered) -> None:
        """Asks the gateway a question."""
        self.emit(Call(request=request, token=self.expect(answered)))

    def hold_back(self, refusal: Refusal, now_ms: int) -> None:
        """The gateway is overloaded: ask the client to wait."""
        raise NotImplementedError

    def has_published(self) -> None:
        """The client has published something."""
        raise NotImplementedError

    def forget_channel(self, number: int) -> None:
        """A channel is closed: its number is free."""
        raise NotImplementedError

    # ---- consumers

    def new_consumer_id(self) -> ConsumerId:
        """A number no other consumer of this connection has."""
        self._last_id += 1
        return ConsumerId(self._last_id)

    def add_consumer(self, consumer: Consumer) -> None:
        """Deliveries for this consumer go to its channel."""
        self._consumers[consumer.id] = consumer

    def drop_consumer(self, consumer: Consumer) -> None:
        """Ends a consumer."""
        if self._consumers.pop(consumer.id, None) is not None:
            self.emit(Cancel(consumer=consumer.id))

    def freed(self, consumer: Consumer) -> None:
        """A consumer may have other credit than the gateway was told."""
        self._freed[consumer.id] = consumer

    def settled(self, queue: tuple[str, int], outcome: str, offset: QueueOffset) -> None:
        """A leased message of a queue (its name and number) has been settled; all of one read go together."""
        self._settles.setdefault(queue, {}).setdefault(outcome, []).append(offset)

    def take_effects(self) -> Sequence[Effect]:
        """Returns the requests to the gateway: what is settled first, who is ready last."""
        effects, self._effects = self._effects, []
        if self._settles:
            settles, self._settles = self._settles, {}
            effects[:0] = [
                SettleLeased(
                    queue=queue,
                    number=number,
                    dispositions=[Disposition(offsets=offsets, outcome=how) for how, offsets in outcomes.items()],
                )
                for (queue, number), outcomes in settles.items()
            ]
        if self._freed:
            freed, self._freed = self._freed, {}
            for consumer in freed.values():
                credit = consumer.credit
                if credit and consumer.id in self._consumers:
                    consumer.blocked = False
                    effects.append(Ready(consumer=consumer.id, credit=None if consumer.no_ack else credit))
        return effects
