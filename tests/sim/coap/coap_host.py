"""The gateway of a simulated network: an endpoint, the log behind it, and what the gateway does for both."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec

from adapters.coap import FACTORY
from adapters.coap.messages.settings import CoapOptions
from gateway.domain.batch import Batch
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import (
    DONE,
    Authenticate,
    Call,
    Deliveries,
    Effect,
    Outcome,
    Peer,
    Publish,
    Subscribe,
    SubscriptionId,
    Unsubscribe,
)
from gateway.port.reads import LastValue
from store.api.message import Message
from store.format.frame import LogOffset
from tests.sim.coap.coap_network import Network

HOST: Peer = ("192.0.2.1", 5683)
ANYBODY = Principal(name="")


class GatewayHost:
    """One endpoint at a time and a log that outlives it. Stores, reads and deliveries take a while."""

    def __init__(self, network: Network, settings: dict[str, Any]) -> None:
        self.log: list[Message] = []
        self.values: dict[str, Message] = {}
        self.restarts_ms: list[int] = []
        self._network = network
        self._random = network.random
        self._settings = settings
        self._slow = self._random.choice([0.0, 0.1, 0.5])  # how many stores and reads take seconds
        self._refuses = self._random.choice([0.0, 0.0, 0.1])  # how many stores are refused or of unknown outcome
        self._life = 0  # counts the endpoints
        self.clock_ahead_ms = 0  # of the process that serves
        self.start()

    @property
    def now_ms(self) -> int:
        """The clock of the process that serves."""
        return self._network.now_ms + self.clock_ahead_ms

    def start(self) -> None:
        """Makes a new endpoint, which remembers nothing."""
        self._life += 1
        seed = self._random.getrandbits(32)
        self.endpoint = FACTORY.bind(CoapOptions(**self._settings), random=Random(seed))
        self._subscriptions: dict[SubscriptionId, tuple[str, int]] = {}  # patterns, and where in the log they begin
        self._delivered = len(self.log)
        self._stored_ms = 0  # when the last of the messages published so far is durable
        self._inbox: list[tuple[bytes, Peer]] = []
        self._armed_ms: int | None = None
        self._network.ends[HOST] = self._arrived
        self._act(self.endpoint.receive((), now_ms=self.now_ms))

    def stop(self) -> None:
        """Ends the endpoint as a crash does: what is in flight is stored or not, and nobody is told."""
        self._life += 1
        self.restarts_ms.append(self._network.now_ms)
        self._network.ends[HOST] = lambda _data, _peer: None

    def publish(self, messages: Sequence[Message]) -> None:
        """Stores messages of other protocols."""
        self._append(messages)

    # ---- the shell

    def _later(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Calls a function of this life after a time, unless the life is over by then."""
        life = self._life
        self._network.after(delay_ms, lambda: act() if life == self._life else None)

    def _arrived(self, data: bytes, peer: Peer) -> None:
        if not self._inbox:
            self._later(self._random.randrange(3), self._wake)
        self._inbox.append((data, peer))

    def _wake(self) -> None:
        datagrams, self._inbox = self._inbox, []
        self._act(self.endpoint.receive(datagrams, now_ms=self.now_ms))

    def _tick(self, armed_ms: int) -> None:
        if self._armed_ms != armed_ms:
            return
        self._armed_ms = None
        deadline_ms = self.endpoint.deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self._act(self.endpoint.tick(now_ms=self.now_ms))
        else:
            self._flush()

    def _flush(self) -> None:
        for data, peer in self.endpoint.take_output():
            self._network.send(data, HOST, peer)
        deadline_ms = self.endpoint.deadline_ms()
        if deadline_ms is not None and (self._armed_ms is None or deadline_ms < self._armed_ms):
            self._armed_ms = deadline_ms
            self._later(max(deadline_ms - self.now_ms, 0) + self._random.randrange(3), lambda: self._tick(deadline_ms))

    def _complete(self, token: Any, outcome: Outcome) -> None:
        self._act(self.endpoint.completed(token, outcome, now_ms=self.now_ms))

    # ---- the gateway

    def _act(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Publish():
                    self._store(effect)
                case Subscribe():
                    self._subscriptions[effect.sub] = effect.pattern, len(self.log)
                case Unsubscribe():
                    del self._subscriptions[effect.sub]
                case Call(request=Authenticate()):
                    self._later(self._delay_ms(), partial(self._complete, effect.token, Outcome(value=ANYBODY)))
                case Call(request=LastValue()):
                    self._later(self._delay_ms(), partial(self._read, effect))
                case _:
                    raise AssertionError(effect)
        self._flush()

    def _delay_ms(self) -> int:
        return self._random.randrange(8_000 if self._random.random() < self._slow else 4)

    def _read(self, call: Call) -> None:
        outcome = Outcome(value=self.values.get(call.request.address))
        self._later(self._random.randrange(3), lambda: self._complete(call.token, outcome))

    def _store(self, publish: Publish) -> None:
        """Stores messages after a while, in the order of their effects, but for those that are refused."""
        self._stored_ms = max(self._stored_ms, self._network.now_ms + self._delay_ms())
        outcome, kept = DONE, list(publish.messages)
        if self._random.random() < self._refuses:
            busy = Refusal(Cause.OVERLOAD, "busy")
            which = self._random.randrange(3)
            if which == 0:
                outcome, kept = Outcome(error=busy), []
            elif which == 1:
                first = self._random.randrange(len(kept))
                outcome = Outcome(refused={first: busy})
                del kept[first]
            else:
                outcome = Outcome(error=Refusal(Cause.UNKNOWN, "it may be stored"))
                kept = kept if self._random.random() < 0.5 else []
        life = self._life

        def stored() -> None:
            if life == self._life:
                self._append(kept)
                self._complete(publish.token, outcome)
            elif self._random.random() < 0.5:
                self._append(kept)

        self._network.after(self._stored_ms - self._network.now_ms, stored)

    def _append(self, messages: Sequence[Message]) -> None:
        for message in messages:
            stored = msgspec.structs.replace(message, id=f"id-{len(self.log)}")
            self.log.append(stored)
            self.values[stored.address] = stored
        if messages:
            self._later(self._random.randrange(3), self._deliver)

    def _deliver(self) -> None:
        """Offers the records that were not offered yet to the subscriptions that were there before them."""
        messages, all_subs = [], []
        for position in range(self._delivered, len(self.log)):
            message = self.log[position]
            subs = [
                sub
                for sub, (pattern, start) in self._subscriptions.items()
                if pattern == message.address and start <= position
            ]
            if subs:
                messages.append(message)
                all_subs.append(tuple(subs))
        self._delivered = len(self.log)
        if not messages:
            return
        count = len(messages)
        batch = Batch(LogOffset(0), LogOffset(1), messages, list(range(count)), [1] * count)
        deliveries = Deliveries(batch, range(count), all_subs)
        assert self.endpoint.deliver(deliveries, now_ms=self.now_ms) == count
        self._flush()
