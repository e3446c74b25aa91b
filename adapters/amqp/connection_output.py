"""The way out that the channels of a connection share: to the peer and to the gateway."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, cast

from pamqp.commands import Basic

from adapters.amqp.body_credit import ConnectionCredit
from adapters.amqp.codec.wire import REPLY_CODES
from adapters.amqp.consumers import AcknowledgementTimeout, Consumer
from adapters.amqp.downloads import Download
from adapters.amqp.options import AmqpOptions
from adapters.amqp.publishing import TARGETS
from gateway.domain.errors import Cause, Refusal
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
from gateway.port.bodies import ReadPart
from store.format.body_parts import PART_BYTES
from store.format.frame import QueueOffset

OUTPUT_BYTES_MAX: Final = 1 << 20  # waiting to be written; beyond, nothing more is fetched for basic.get
FETCHING_COUNT_MAX: Final = 8  # basic.get in flight, on all channels
BEHIND_COUNT_MAX: Final = 4_096  # pieces of output that wait for a body in parts; beyond, nothing more is read

_LINE_ENDS: Final = str.maketrans("", "", "\r\n")

Answered: TypeAlias = Callable[[Outcome, int], None]  # (outcome, now_ms)


class ConnectionOutput(ABC):
    """Frames and effects on their way out, and who waits for which answer."""

    def __init__(self, options: AmqpOptions, share: ConnectionCredit, random: Random) -> None:
        self.options = options
        self.share = share
        self.random = random
        self.vhost = DEFAULT_VHOST
        self.targets = TARGETS  # of the virtual host
        self.payload_max = 0  # bytes of a frame without its overhead
        self.held_too_long = AcknowledgementTimeout(options.consumer_timeout_s)
        self.cancel_notify = False  # the client understands basic.cancel from us
        self.assembling_bytes = 0  # of messages not yet whole
        self.transaction_bytes = 0  # of bodies in transactions, on all channels
        self.transaction_heads_bytes = 0  # of memory that their messages take besides
        self.fetching_count = 0  # basic.get in flight
        self.waits_for_room = False  # while a basic.get waits until the socket has taken the output
        self._out: list[bytes] = []
        self._behind: deque[bytes | Download] = deque()  # the body that is being sent, and the output that waits for it
        self._effects: list[Effect] = []
        self._last_id = 0  # of tokens and consumers
        self._expected: dict[Token, Answered] = {}
        self._consumers: dict[ConsumerId, Consumer] = {}
        self._settles: dict[tuple[str, int], dict[str, list[QueueOffset]]] = {}  # by queue and outcome
        self._freed: dict[ConsumerId, Consumer] = {}  # consumers whose credit may have changed

    def clock_set(self, by_ms: int) -> None:
        """See `gateway.port.adapter.TimedAdapter`."""
        self.held_too_long.clock_set(by_ms)

    def inside(self, name: str) -> str:
        """Returns the gateway's name of a queue or an exchange of this connection's virtual host.

        Line ends in the name that a client gives it are ignored, as in RabbitMQ.
        """
        return in_vhost(self.vhost, name.translate(_LINE_ENDS))

    def write(self, *frames: bytes) -> None:
        """Sends frames."""
        if self._behind:
            self._behind.extend(frames)
        else:
            self._out += frames

    def write_body(self, head: Sequence[bytes], body: Download) -> None:
        """Sends frames, and behind them a body in parts."""
        self.write(*head)
        self._behind.append(body)

    @property
    def _wants_part(self) -> bool:
        """Returns whether the next part of the body that is being sent should be read."""
        body = self._behind[0] if self._behind else None
        return isinstance(body, Download) and not body.fetching and sum(map(len, self._out)) < PART_BYTES

    def _fetch_part(self) -> None:
        """Asks for the next part of the body that is being sent, where there is room for it."""
        if not self._wants_part:
            return
        body = self._behind[0]
        assert isinstance(body, Download)
        frame = body.next_frame()
        assert frame is not None
        self.call(ReadPart(frame=frame), partial(self._part_came, body))

    def _part_came(self, body: Download, outcome: Outcome, now_ms: int) -> None:
        """Sends a part of a body, and behind the last one all that has waited for it."""
        if not self._behind or self._behind[0] is not body:
            return  # the connection ends
        if outcome.error is not None:
            self._body_failed(body, outcome.error, now_ms)
            return
        self._out += body.take(outcome.value, self.payload_max)
        if not body.ended:
            self._fetch_part()
            return
        if body.left_bytes:
            why = Refusal(Cause.DAMAGED, "the parts of a body are not as long as its message says")
            self._body_failed(body, why, now_ms)
            return
        self._behind.popleft()
        while self._behind and not isinstance(self._behind[0], Download):
            self._out.append(cast(bytes, self._behind.popleft()))
        if not self._behind:
            for consumer in self._consumers.values():
                if consumer.blocked:
                    self.freed(consumer)
        self._fetch_part()

    def _body_failed(self, body: Download, refusal: Refusal, now_ms: int) -> None:
        """Ends the connection: the rest of a body cannot be read, nor the part already sent be taken back."""
        if refusal.cause is Cause.DAMAGED:
            body.lost()
        self.fail(REPLY_CODES[refusal.cause], refusal.detail, now_ms, method=Basic.Deliver.index)

    def drop_bodies(self) -> None:
        """Sends nothing more of bodies: the connection is about to end."""
        self._out += [one for one in self._behind if not isinstance(one, Download)]
        self._behind.clear()

    @property
    def may_fetch(self) -> bool:
        """Returns whether the answer to one more basic.get could be held.

        A peer that reads none of them asks for no more.
        """
        self.waits_for_room = bool(self._behind) or sum(map(len, self._out)) >= OUTPUT_BYTES_MAX
        return not self.waits_for_room and self.fetching_count < FETCHING_COUNT_MAX

    def emit(self, effect: Effect) -> None:
        """Asks the gateway for something."""
        self._effects.append(effect)

    def expect(self, answered: Answered) -> Token:
        """Returns a token whose outcome goes to `answered`."""
        self._last_id += 1
        token = Token(self._last_id)
        self._expected[token] = answered
        return token

    def call(self, request: Request[Any], answered: Answered) -> None:
        """Asks the gateway a question."""
        self.emit(Call(request=request, token=self.expect(answered)))

    # ---- provided by the connection

    @property
    @abstractmethod
    def unanswered(self) -> bool:
        """Returns whether a message that has come whole has not been answered yet."""

    @abstractmethod
    def has_published(self) -> None:
        """Notes that the client publishes."""

    @abstractmethod
    def hold_back(self, refusal: Refusal, now_ms: int) -> None:
        """Asks the client to wait, as the gateway is overloaded."""

    @abstractmethod
    def forget_channel(self, number: int) -> None:
        """Frees the number of a channel that is closed."""

    @abstractmethod
    def fail(self, code: int, text: str, now_ms: int, *, method: int) -> None:
        """Closes the connection for an error in a method, which its index names."""

    @abstractmethod
    def end(self, reason: str) -> None:
        """Ends the connection: the peer has said, or been told, all there is to say."""

    # ---- consumers

    def new_consumer_id(self) -> ConsumerId:
        """Returns a number that no other consumer of this connection has."""
        self._last_id += 1
        return ConsumerId(self._last_id)

    def add_consumer(self, consumer: Consumer) -> None:
        """Routes deliveries for this consumer to its channel."""
        self._consumers[consumer.id] = consumer

    def drop_consumer(self, consumer: Consumer) -> None:
        """Ends a consumer."""
        if self._consumers.pop(consumer.id, None) is not None:
            self.emit(Cancel(consumer=consumer.id))

    def freed(self, consumer: Consumer) -> None:
        """Notes that a consumer's credit may have changed."""
        self._freed[consumer.id] = consumer

    def settled(self, queue: tuple[str, int], outcome: str, offsets: Sequence[QueueOffset]) -> None:
        """Notes that leased messages of a queue (its name and number) are settled; all of one read go together."""
        self._settles.setdefault(queue, {}).setdefault(outcome, []).extend(offsets)

    def take_effects(self) -> Sequence[Effect]:
        """Returns the requests to the gateway: settlements first, consumers that are ready last."""
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
