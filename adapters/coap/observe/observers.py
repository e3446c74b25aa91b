"""The observers of one socket: registrations, notifications and their ends (RFC 7641).

An observed address or filter is one subscription, however many observe it. A notification is Non-confirmable; every
`observe_confirm_every`-th is Confirmable. While a Confirmable one is in flight only the newest message of each address
waits; they are sent in one notification, Confirmable, after the acknowledgement: a burst takes one round trip for each
notification. Where the acknowledgement does not come they take the place of the next retransmission, in a message of
their own with the count of attempts kept (RFC 7641, 4.5.2); one of a filter repeats what is not acknowledged. When too
many addresses of a filter have changed by then, its observation ends: the client begins anew. An observer that wants
each message has every notification Confirmable, in the order of the log, one in flight.

Every `observe_check_ms` the last value of each observed address is read again. That ends the observations of addresses
that have none any more or that may not be read any more. An observer whose last notification was not acknowledged,
or that has sent nothing for `observe_confirm_ms`, is then sent the value in a Confirmable message: a lost notification
is made good, and an endpoint that is gone is found. For a filter it is the messages since the last acknowledgement.

Over a reliable transport nothing is Confirmable, and each message is a notification (RFC 8323, 7).
"""

from collections import deque
from collections.abc import Callable

from adapters.coap.codec.registry import CON, CONTENT, ETAG, NON, NOT_ACCEPTABLE, OBSERVE
from adapters.coap.codec.wire import encode_options, encode_uint
from adapters.coap.exchanges.answers import Answer, busy, refused, unwanted, wrong
from adapters.coap.exchanges.exchanges import Exchange
from adapters.coap.exchanges.retransmit import Retransmitter
from adapters.coap.exchanges.sender import Sender
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.observe.observation import SEQUENCE_MASK, Observation, Observed, Watcher, next_sequence
from adapters.coap.reading.reads import Observable, Read, Reads
from gateway.domain.errors import ProtocolError
from gateway.port.adapter import (
    Call,
    Deliveries,
    Effect,
    Outcome,
    Peer,
    Random,
    Subscribe,
    SubscriptionId,
    Token,
    Unsubscribe,
)
from gateway.port.reads import LastValue, LastValues
from store.api.message import Message

REGISTER = 0  # the Observe option of a request that registers
CHECKS_PER_TICK_MAX = 256  # addresses read again in one tick, so that no tick is long
MID_DISTANCE = 0x8000  # between the Message IDs of notifications and of other messages to a peer
MAX_TRANSMIT_WAIT_MS = 93_000  # until a client knows that nothing came (RFC 7252, 4.8.2)


class Observers:
    """All observations of one socket. `take_effects` returns effects for the gateway; datagrams go to the sender."""

    def __init__(
        self,
        settings: CoapOptions,
        reads: Reads,
        sender: Sender,
        *,
        new_token: Callable[[], Token],
        random: Random,
        reliable: bool = False,
    ) -> None:
        self._settings = settings
        self._reliable = reliable
        self._reads = reads
        self._sender = sender
        self._new_token = new_token
        self._retransmitter = Retransmitter(
            ack_timeout_ms=settings.ack_timeout_ms,
            ack_random_factor=settings.ack_random_factor,
            max_retransmit=settings.max_retransmit,
            pending_max=settings.observers_max,
            random=random,
        )
        self._watchers: dict[Peer, Watcher] = {}
        self._observed: dict[SubscriptionId, Observed] = {}
        self._by_observable: dict[Observable, Observed] = {}
        self._checks: deque[tuple[int, SubscriptionId]] = deque()  # by the time they are due
        self._checking: dict[Token, SubscriptionId] = {}
        self._count = 0  # observations, <= observers_max
        self._last_sub = 0
        self._effects: list[Effect] = []
        silence_ms = settings.observe_confirm_ms + settings.observe_check_ms + MAX_TRANSMIT_WAIT_MS
        self._max_age_s = silence_ms // 1000  # the longest time without a notification

    def __len__(self) -> int:
        return self._count

    # ---- registration

    def asked(self, exchange: Exchange, read: Read, now_ms: int) -> None:
        """Takes a GET or FETCH: ends the observation of its token, and begins one where it asks for that.

        A GET beyond a limit is answered without the Observe option (RFC 7641, 4.1). A request for a later block
        neither begins nor ends an observation (RFC 7959, 2.6). A GET that wants no
        representation observes nothing (RFC 7967, 2.1).
        """
        request, observable = read.request, read.observable
        if request.block2 is not None and request.block2.number:
            return
        peer, token = read.peer, exchange.tag[2:]
        self.end(peer, token)
        if request.observe != REGISTER or observable is None or unwanted(request.silence, CONTENT):
            return
        if self._count >= self._settings.observers_max:
            return
        watcher = self._watchers.get(peer)
        if watcher is None:
            mid = int.from_bytes(exchange.tag[:2], "big") ^ int.from_bytes(self._sender.mask, "big")
            watcher = self._watchers[peer] = Watcher(mid ^ MID_DISTANCE)
        elif len(watcher.observations) >= self._settings.observers_peer_max:
            return
        observed = self._by_observable.get(observable) or self._observe(observable, now_ms)
        observation = Observation(read, token, observed.sub, exchange, now_ms)
        watcher.observations[token] = observed.observations[peer, token] = observation
        self._count += 1

    def _observe(self, observable: Observable, now_ms: int) -> Observed:
        """Subscribes to an address or filter that is not observed yet."""
        self._last_sub += 1
        sub = SubscriptionId(self._last_sub)
        observed = self._observed[sub] = self._by_observable[observable] = Observed(sub, observable)
        self._effects.append(Subscribe(sub=sub, pattern=observable.pattern))
        self._checks.append((now_ms + self._settings.observe_check_ms, sub))
        return observed

    def max_age_s(self, exchange: Exchange) -> int | None:
        """Returns the Max-Age of the response to a request that registers, None for another request."""
        return None if self._registering(exchange) is None else self._max_age_s

    def answered(self, exchange: Exchange, answer: Answer, now_ms: int) -> Answer:
        """Returns the response to a GET, with the Observe option where the observation begins with it."""
        observation = self._registering(exchange)
        if observation is None:
            return answer
        observation.keeps_format(answer)
        return self._numbered(observation, answer, now_ms)

    def begun(self, exchange: Exchange, now_ms: int) -> None:
        """Notes that the response to a request has been sent: a message that came meanwhile follows it."""
        observation = self._registering(exchange)
        if observation is None:
            return
        observation.registering = None
        messages = observation.take_waiting()
        if messages:
            newest_alone = not (_of_filter(observation) or observation.read.each)
            self._notify(observation, messages, now_ms, refresh=newest_alone)

    def _registering(self, exchange: Exchange) -> Observation | None:
        watcher = self._watchers.get(exchange.peer)
        observation = None if watcher is None else watcher.observations.get(exchange.tag[2:])
        return observation if observation is not None and observation.registering is exchange else None

    # ---- ends

    def end(self, peer: Peer, token: bytes) -> None:
        """Ends the observation of an endpoint and a token, if there is one."""
        watcher = self._watchers.get(peer)
        observation = None if watcher is None else watcher.observations.get(token)
        if observation is not None:
            self._end(observation)

    def forget(self, peer: Peer) -> None:
        """Ends the observations of an endpoint, which is gone."""
        watcher = self._watchers.get(peer)
        for observation in list(watcher.observations.values()) if watcher is not None else ():
            self._end(observation)

    def failed(self, exchange: Exchange) -> None:
        """Forgets a request that was to register and is refused."""
        observation = self._registering(exchange)
        if observation is not None:
            self._end(observation)

    def _end(self, observation: Observation) -> None:
        peer, token = observation.peer, observation.token
        watcher, observed = self._watchers[peer], self._observed[observation.sub]
        if observation.outstanding is not None:
            self._retransmitter.settle(peer, observation.outstanding)
        del watcher.observations[token]
        if not watcher.observations:
            del self._watchers[peer]
        del observed.observations[peer, token]
        self._count -= 1
        if not observed.observations:
            del self._observed[observed.sub], self._by_observable[observed.observable]
            if observed.check is not None:
                del self._checking[observed.check[0]]
            self._effects.append(Unsubscribe(sub=observed.sub))

    def _end_with(self, observation: Observation, answer: Answer, now_ms: int) -> None:
        """Sends an error response, the last notification of an observation (RFC 7641, 4.2)."""
        if observation.outstanding is not None:
            self._retransmitter.settle(observation.peer, observation.outstanding)
        if not unwanted(observation.read.request.silence, answer.code):
            self._send(observation, answer, now_ms, confirmable=True)
        observation.outstanding = None  # sent again until it is acknowledged, whatever the observation is
        self._end(observation)

    # ---- input

    def settled(self, peer: Peer, mid: int, now_ms: int, *, reset: bool) -> None:
        """Takes an acknowledgement, which lets the newest message that waited be sent, or a Reset.

        A Reset ends the observation of the notification that it answers (RFC 7641, 3.6).
        """
        self._retransmitter.settle(peer, mid)
        observation = self._sent(peer, mid)
        if observation is None:
            return
        if reset:
            self._end(observation)
            return
        if observation.outstanding != mid:
            return
        observation.outstanding = None
        observation.confirmed_ms = now_ms
        observation.unconfirmed_count = 0
        observation.unconfirmed.clear()
        messages = observation.take_waiting()
        if messages:
            self._notify(observation, messages, now_ms, confirmable=True)

    def _sent(self, peer: Peer, mid: int) -> Observation | None:
        """Returns the observation that a notification belonged to, unless it has ended."""
        watcher = self._watchers.get(peer)
        observation = None if watcher is None else watcher.recent.get(mid)
        if watcher is None or observation is None:
            return None
        return observation if watcher.observations.get(observation.token) is observation else None

    def deliver(self, deliveries: Deliveries, now_ms: int) -> int:
        """Notifies the observers of messages; takes all of them."""
        batch = deliveries.batch
        for index, subs in zip(deliveries.picks, deliveries.subs, strict=True):
            message = batch.message(index)
            for sub in subs:
                observed = self._observed.get(sub)
                if observed is None:
                    continue
                observed.version += 1
                for observation in list(observed.observations.values()):
                    if observation.registering is None and observation.outstanding is None:
                        self._notify(observation, [message], now_ms)
                    elif not observation.wait(message):
                        self._end_with(observation, busy("too many messages wait"), now_ms)
        return len(deliveries.picks)

    # ---- time

    def tick(self, now_ms: int) -> None:
        """Retransmits unacknowledged notifications, ends the observations given up, and begins the checks due."""
        self._sender.output += self._retransmitter.again(now_ms, lambda peer, mid: self._renewed(peer, mid, now_ms))
        for peer, mid in self._retransmitter.given_up:
            observation = self._sent(peer, mid)
            if observation is not None and observation.outstanding == mid:
                self._end(observation)
        checks = self._checks
        for _ in range(CHECKS_PER_TICK_MAX):
            if not checks or checks[0][0] > now_ms:
                break
            _, sub = checks.popleft()
            observed = self._observed.get(sub)
            if observed is None:
                continue
            checks.append((now_ms + self._settings.observe_check_ms, sub))
            if observed.check is None:
                token = self._new_token()
                self._checking[token] = sub
                observed.check = (token, observed.version)
                self._effects.append(Call(request=_check_of(observed.observable), token=token))

    def deadline_ms(self) -> int | None:
        """Returns when `tick` is due; at once where effects wait to be taken."""
        if self._effects:
            return 0
        while self._checks and self._checks[0][1] not in self._observed:
            self._checks.popleft()
        deadlines = (self._checks[0][0] if self._checks else None, self._retransmitter.deadline_ms())
        return min([deadline for deadline in deadlines if deadline is not None], default=None)

    def take_effects(self) -> list[Effect]:
        """Returns the requests to the gateway now."""
        if not self._effects:
            return []
        effects, self._effects = self._effects, []
        return effects

    def checked(self, token: Token, outcome: Outcome, now_ms: int) -> bool:
        """Takes the answer to a check; returns False for a token of something else.

        A value that is older than a message delivered meanwhile is skipped. A refusal ends the observations of
        the address, unless it may pass.
        """
        sub = self._checking.pop(token, None)
        if sub is None:
            return False
        observed = self._observed[sub]
        assert observed.check is not None
        version, observed.check = observed.check[1], None
        settled = [one for one in observed.observations.values() if one.registering is None]
        if outcome.error is not None:
            if not outcome.error.retriable:
                answer = refused(outcome.error, max_body_bytes=self._settings.max_body_bytes)
                for observation in settled:
                    self._end_with(observation, answer, now_ms)
        elif observed.observable.many:
            for observation in settled:
                if observation.outstanding is None:
                    self._notify(
                        observation, list(observation.unconfirmed.values()), now_ms, confirmable=True, refresh=True
                    )
        elif version == observed.version:
            for observation in settled:
                if observation.outstanding is None:
                    self._notify(observation, outcome.value, now_ms, confirmable=True, refresh=True)
        return True

    # ---- notifications

    def _notify(
        self,
        observation: Observation,
        value: Message | list[Message] | None,
        now_ms: int,
        *,
        confirmable: bool = False,
        refresh: bool = False,
    ) -> None:
        """Sends messages as a notification, or ends the observation where they cannot be one.

        Of several messages at one address the last counts. With `refresh` an observer gets no representation that it is
        known to have.
        """
        many = _of_filter(observation)
        if isinstance(value, list) and not many:
            value = value[-1]
        try:
            answer = self._represent(observation, value, now_ms)
        except ProtocolError as error:
            self._end_with(observation, wrong(error, max_body_bytes=self._settings.max_body_bytes), now_ms)
            return
        settings = self._settings
        silent = now_ms - observation.confirmed_ms >= settings.observe_confirm_ms
        each = observation.read.each
        known = many or each or dict(answer.options)[ETAG] == observation.etag
        if refresh and known and not (observation.unconfirmed_count or silent):
            return
        confirmable |= each or silent or observation.unconfirmed_count + 1 >= settings.observe_confirm_every
        if isinstance(value, list) and not self._reliable:
            observation.unconfirmed.update({message.address: message for message in value})
        answer = self._numbered(observation, answer, now_ms)
        self._send(observation, answer, now_ms, confirmable=confirmable)

    def _represent(self, observation: Observation, value: Message | list[Message] | None, now_ms: int) -> Answer:
        """Returns a notification without its number; raises `ProtocolError` where messages cannot be one."""
        answer = self._reads.finish(observation.read, value, now_ms, max_age_s=self._max_age_s)
        if not observation.keeps_format(answer):
            raise ProtocolError(NOT_ACCEPTABLE, "the Content-Format has changed: observe again")
        return answer

    def _renewed(self, peer: Peer, mid: int, now_ms: int) -> tuple[int, bytes] | None:
        """Returns the notification that takes the place of one that is not acknowledged (RFC 7641, 4.5.2).

        Returns None where the one in flight is still the newest, and where an observer wants each message.
        """
        observation = self._sent(peer, mid)
        if observation is None or observation.outstanding != mid or observation.read.each or not observation.waiting:
            return None
        messages = observation.take_waiting()
        if _of_filter(observation):
            for message in messages:  # the newest last
                observation.unconfirmed.pop(message.address, None)
                observation.unconfirmed[message.address] = message
            messages = list(observation.unconfirmed.values())
        try:
            value = messages if _of_filter(observation) else messages[-1]
            answer = self._numbered(observation, self._represent(observation, value, now_ms), now_ms)
        except ProtocolError as error:
            answer = wrong(error, max_body_bytes=self._settings.max_body_bytes)
            if unwanted(observation.read.request.silence, answer.code):
                self._end(observation)
                return None
            fresh = self._datagram(observation, answer, CON)
            observation.outstanding = None  # sent again until it is acknowledged, whatever the observation is
            self._end(observation)
            return fresh
        fresh = self._datagram(observation, answer, CON)
        observation.outstanding = fresh[0]
        return fresh

    def _numbered(self, observation: Observation, answer: Answer, now_ms: int) -> Answer:
        """Adds the Observe option to a response."""
        observation.sequence = next_sequence(observation.sequence, now_ms)
        observation.etag = dict(answer.options)[ETAG]
        number = encode_uint(observation.sequence & SEQUENCE_MASK)
        return answer._replace(options=(*answer.options, (OBSERVE, number)))

    def _send(self, observation: Observation, answer: Answer, now_ms: int, *, confirmable: bool) -> None:
        """Sends one notification; Non-confirmable where too many Confirmable ones are in flight, or none are needed."""
        confirmable = confirmable and not (self._reliable or self._retransmitter.full)
        peer = observation.peer
        mid, datagram = self._datagram(observation, answer, CON if confirmable else NON)
        if confirmable:
            self._retransmitter.add(peer, mid, datagram, now_ms)
            observation.outstanding = mid
        elif self._reliable:
            observation.confirmed_ms = now_ms
        else:
            observation.unconfirmed_count += 1
        self._sender.output.append((datagram, peer))

    def _datagram(self, observation: Observation, answer: Answer, kind: int) -> tuple[int, bytes]:
        """Returns the Message ID and the datagram of a new notification."""
        token = observation.token
        mid = self._watchers[observation.peer].take_mid(observation)
        head = bytes((0x40 | kind << 4 | len(token), answer.code, mid >> 8, mid & 0xFF))
        payload = b"\xff" + answer.payload if answer.payload else b""
        return mid, head + token + encode_options(answer.options) + payload


def _of_filter(observation: Observation) -> bool:
    """Returns whether an observation is one of a filter."""
    observable = observation.read.observable
    return observable is not None and observable.many


def _check_of(observable: Observable) -> LastValue | LastValues:
    """Returns the request that tells whether an observable may still be read, and the value of an address."""
    if observable.many:
        return LastValues(pattern=observable.pattern, limit=1)
    return LastValue(address=observable.pattern)
