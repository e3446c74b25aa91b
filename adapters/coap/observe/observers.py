"""The observers of one socket: registrations, notifications and their ends (RFC 7641).

An observed address or filter is one subscription, however many observe it. A notification is Non-confirmable; every
`observe_confirm_every`-th is Confirmable. While a Confirmable one is in flight only the newest message of each address
waits; they are sent in one notification, Confirmable, after the acknowledgement: a burst takes one round trip for each
notification. Where the acknowledgement does not come they take the place of the next retransmission, in a message of
their own with the count of attempts kept (RFC 7641, 4.5.2); one of a filter repeats what is not acknowledged. When too
many addresses of a filter have changed by then, its observation ends: the client begins anew. An observer that wants
each message has every notification Confirmable, in the order of the log.

One Confirmable message to an endpoint is in flight at a time, whatever it observes (NSTART; RFC 7641, 4.5.1). Those of
its other observations wait in a queue, behind responses.

Every `observe_check_ms` the last value of each observed address is read again. That ends the observations of addresses
that have none any more or that may not be read any more. An observer whose last notification was not acknowledged,
or that has sent nothing for `observe_confirm_ms`, is then sent the value in a Confirmable message: a lost notification
is made good, and an endpoint that is gone is found. For a filter it is the messages since the last acknowledgement.

Over a reliable transport nothing is Confirmable, and each message is a notification (RFC 8323, 7).
"""

from collections.abc import Callable, Iterable
from functools import partial

from adapters.coap.codec.registry import CON, CONTENT, ETAG, NON, NOT_ACCEPTABLE, OBSERVE
from adapters.coap.codec.wire import encode_options, encode_uint
from adapters.coap.exchanges.answers import Answer, busy, refused, unwanted, wrong
from adapters.coap.exchanges.exchanges import Exchange
from adapters.coap.exchanges.retransmit import Retransmitter
from adapters.coap.exchanges.sender import Sender
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.observe.observation import SEQUENCE_MASK, Observation, Watcher, next_sequence
from adapters.coap.observe.resources import ObservedResources
from adapters.coap.reading.reads import Read, Reads
from gateway.domain.errors import ProtocolError
from gateway.port.adapter import Deliveries, Effect, Outcome, Peer, Random, Token
from store.api.message import Message

REGISTER = 0  # the Observe option of a request that registers
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
        self._resources = ObservedResources(check_ms=settings.observe_check_ms, new_token=new_token)
        self._retransmitter = Retransmitter(settings, pending_max=settings.observers_max, random=random)
        self._watchers: dict[Peer, Watcher] = {}
        self._count = 0  # observations, <= observers_max
        self._released: dict[Peer, None] = {}  # endpoints for which messages may wait and to which none is in flight
        silence_ms = settings.observe_confirm_ms + settings.observe_check_ms + MAX_TRANSMIT_WAIT_MS
        self._max_age_s = silence_ms // 1000  # the longest time without a notification

    def __len__(self) -> int:
        return self._count

    @property
    def idle(self) -> bool:
        """Returns whether nothing is observed, and nothing is on its way to an endpoint."""
        return not self._watchers

    # ---- registration

    def asked(self, exchange: Exchange, read: Read, now_ms: int) -> bool:
        """Takes a GET or FETCH: ends the observation of its token, and begins one where it asks for that.

        Returns whether a repeat must not be taken so. A GET beyond a limit is answered without the Observe option
        (RFC 7641, 4.1). A request for a later block neither begins nor ends an observation (RFC 7959, 2.6). A GET that
        wants no representation observes nothing (RFC 7967, 2.1).
        """
        request = read.request
        if request.block2 is not None and request.block2.number:
            return False
        sequence = self.end(read.peer, exchange.tag[2:])
        if request.observe == REGISTER and not unwanted(request.silence, CONTENT):
            self._begin(exchange, read, sequence or 0, now_ms)
        return request.observe is not None or sequence is not None

    def _begin(self, exchange: Exchange, read: Read, sequence: int, now_ms: int) -> None:
        """Begins an observation, unless there are too many; `sequence` is the number of the one before it."""
        settings, peer, token = self._settings, read.peer, exchange.tag[2:]
        watcher = self._watchers.get(peer)
        if read.observable is None or self._count >= settings.observers_max:
            return
        if watcher is None:
            watcher = self._watchers[peer] = Watcher(self._sender.mids.begin(peer, exchange.mid))
        elif len(watcher.observations) >= settings.observers_peer_max:
            return
        observed = self._resources.of(read.observable, now_ms)
        observation = Observation(read, token, observed.sub, exchange, now_ms, sequence)
        watcher.observations[token] = observed.observations[peer, token] = observation
        self._count += 1

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
        observation.registering, observation.first = None, (exchange, exchange.response)
        messages = observation.take_waiting()
        if messages:
            newest_alone = not (observation.many or observation.read.each)
            self._notify(observation, messages, now_ms, refresh=newest_alone)

    def first_response(self, exchange: Exchange) -> bytes:
        """Returns the response that an observation has begun with, b"" where the request has begun none that lasts."""
        observation = self._named(exchange)
        return b"" if observation is None or observation.first[0] is not exchange else observation.first[1]

    def _registering(self, exchange: Exchange) -> Observation | None:
        observation = self._named(exchange)
        return observation if observation is not None and observation.registering is exchange else None

    def _named(self, exchange: Exchange) -> Observation | None:
        """Returns the observation of a request's endpoint and token."""
        watcher = self._watchers.get(exchange.peer)
        return None if watcher is None else watcher.observations.get(exchange.tag[2:])

    # ---- ends

    def end(self, peer: Peer, token: bytes) -> int | None:
        """Ends the observation of an endpoint and a token; returns its last number, None where there is none."""
        watcher = self._watchers.get(peer)
        if watcher is None:
            return None
        observation = watcher.observations.get(token)
        if observation is not None:
            self._end(observation)
            return observation.sequence
        if watcher.queue.pop(token, None):
            self._drop_idle(watcher, peer)
        return None

    def forget(self, peer: Peer) -> None:
        """Ends the observations of an endpoint, which is gone."""
        watcher = self._watchers.get(peer)
        if watcher is None:
            return
        for observation in list(watcher.observations.values()):
            self._end(observation)
        watcher.queue.clear()
        self._drop_idle(watcher, peer)

    def failed(self, exchange: Exchange) -> None:
        """Forgets a request that was to register and is refused."""
        observation = self._registering(exchange)
        if observation is not None:
            self._end(observation)

    def _end(self, observation: Observation) -> None:
        peer, token = observation.peer, observation.token
        watcher = self._watchers[peer]
        self._settle_outstanding(observation)
        watcher.queue.pop(token, None)
        del watcher.observations[token]
        observation.waiting.clear()
        observation.unconfirmed.clear()
        self._drop_idle(watcher, peer)
        self._resources.remove(observation)
        self._count -= 1

    def _end_with(self, observation: Observation, answer: Answer, now_ms: int) -> None:
        """Sends an error response, the last notification of an observation (RFC 7641, 4.2).

        It waits for an acknowledgement that is due; where too many wait, it is sent Non-confirmable.
        """
        watcher = self._watchers[observation.peer]
        self._settle_outstanding(observation)
        due = self._sender.separate.busy(observation.peer) and not self._reliable
        waits = due and watcher.finals_count < self._settings.observers_peer_max
        told = not unwanted(observation.read.request.silence, answer.code)
        if told and not waits:
            self._send(observation, answer, now_ms, confirmable=not due)
        observation.outstanding = None  # sent again until it is acknowledged, whatever the observation is
        self._end(observation)
        if told and waits:  # the watcher may have been dropped with its last observation
            self._watchers.setdefault(observation.peer, watcher).queue[observation.token] = observation, answer

    def _settle_outstanding(self, observation: Observation) -> None:
        """Gives up the Confirmable notification of an observation that is in flight, if there is one."""
        mid, observation.outstanding = observation.outstanding, None
        if mid is None:
            return
        self._retransmitter.settle(observation.peer, mid)
        watcher = self._watchers[observation.peer]
        self._release(watcher, observation.peer, mid)
        self._released[observation.peer] = None

    def _fly(self, watcher: Watcher, peer: Peer, mid: int, observation: Observation) -> None:
        watcher.fly(mid, observation)
        self._sender.separate.notified.add(peer)

    def _release(self, watcher: Watcher, peer: Peer, mid: int) -> None:
        watcher.release(mid)
        if watcher.in_flight is None:
            self._sender.separate.notified.discard(peer)

    def _drop_idle(self, watcher: Watcher, peer: Peer) -> None:
        if watcher.idle:
            self._watchers.pop(peer, None)

    # ---- input

    def settled(self, peer: Peer, mid: int, now_ms: int, *, reset: bool) -> None:
        """Takes an acknowledgement, which lets the newest message that waited be sent, or a Reset.

        A Reset ends the observation of the notification that it answers (RFC 7641, 3.6).
        """
        self._retransmitter.settle(peer, mid)
        watcher = self._watchers.get(peer)
        if watcher is None:
            self._sender.output += self._sender.separate.next(peer, now_ms)
            return
        observation = watcher.sent(mid)
        self._release(watcher, peer, mid)
        if observation is not None and reset:
            self._end(observation)
        elif observation is not None and observation.outstanding == mid:
            observation.outstanding = None
            observation.confirmed_ms = now_ms
            observation.unconfirmed_count = 0
            observation.unconfirmed.clear()
            if observation.waiting:
                watcher.queue[observation.token] = observation, None
        self._send_queued(watcher, peer, now_ms)

    def _send_queued(self, watcher: Watcher, peer: Peer, now_ms: int) -> None:
        """Sends Confirmable messages that waited, a response and then the first one first, until one is in flight."""
        self._sender.output += self._sender.separate.next(peer, now_ms)
        while watcher.queue and not self._sender.separate.busy(peer):
            observation, answer = watcher.queue.pop(next(iter(watcher.queue)))
            if answer is not None:
                self._send(observation, answer, now_ms, confirmable=True)
                continue
            messages = observation.take_unconfirmed()
            if messages or observation.many:  # a filter without news is told that it is still observed
                self._notify(observation, messages, now_ms, confirmable=True)
        self._drop_idle(watcher, peer)

    def deliver(self, deliveries: Deliveries, now_ms: int) -> int:
        """Notifies the observers of messages; takes all of them."""
        batch = deliveries.batch
        for index, subs in zip(deliveries.picks, deliveries.subs, strict=True):
            message = batch.message(index)
            for sub in subs:
                observed = self._resources.get(sub)
                if observed is None:
                    continue
                observed.version += 1
                for observation in list(observed.observations.values()):
                    if observation.registering is None and not self._waits(observation):
                        self._notify(observation, [message], now_ms)
                    elif not observation.wait(message):
                        self._end_with(observation, busy("too many messages wait"), now_ms)
        return len(deliveries.picks)

    def _waits(self, observation: Observation) -> bool:
        """Returns whether an observation waits for an acknowledgement, of a message of its own or of another one."""
        return observation.outstanding is not None or observation.token in self._watchers[observation.peer].queue

    # ---- time

    def let_next(self, peers: Iterable[Peer]) -> None:
        """Notes that no response is in flight to endpoints any more: `tick` sends what waits for them."""
        self._released.update(dict.fromkeys(peers))

    def tick(self, now_ms: int) -> None:
        """Retransmits unacknowledged notifications, forgets endpoints that do not answer, and begins the checks due."""
        self._sender.output += self._retransmitter.again(now_ms, partial(self._renewed, now_ms))
        for peer, mid in self._retransmitter.given_up:
            if (watcher := self._watchers.get(peer)) is not None:
                self._release(watcher, peer, mid)
                self.forget(peer)
                self._released[peer] = None
        released, self._released = self._released, {}
        for peer in released:
            if (watcher := self._watchers.get(peer)) is not None:
                self._send_queued(watcher, peer, now_ms)
            else:
                self._sender.output += self._sender.separate.next(peer, now_ms)
        self._resources.begin_checks(now_ms)

    def deadline_ms(self) -> int | None:
        """Returns when `tick` is due; at once where effects wait to be taken, or messages can be sent."""
        if self._resources.effects or self._released:
            return 0
        deadlines = (self._resources.deadline_ms(), self._retransmitter.deadline_ms())
        return min([deadline for deadline in deadlines if deadline is not None], default=None)

    def take_effects(self) -> list[Effect]:
        """Returns the requests to the gateway now."""
        return self._resources.take_effects()

    def checked(self, token: Token, outcome: Outcome, now_ms: int) -> bool:
        """Takes the answer to a check; returns False for a token of something else.

        A value that is older than a message delivered meanwhile is skipped. A refusal ends the observations of
        the address, unless it may pass.
        """
        checked = self._resources.checked(token)
        if checked is None:
            return False
        observed, overtaken = checked
        settled = [one for one in observed.observations.values() if one.registering is None]
        if outcome.error is not None:
            if not outcome.error.retriable:
                answer = refused(outcome.error, max_body_bytes=self._settings.max_body_bytes)
                for observation in settled:
                    self._end_with(observation, answer, now_ms)
        elif observed.observable.many or not overtaken:
            for observation in settled:
                if not self._waits(observation):
                    value = list(observation.unconfirmed.values()) if observation.many else outcome.value
                    self._notify(observation, value, now_ms, confirmable=True, refresh=True)
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

        Of several messages at one address the last counts. With `refresh` an observer gets no value that it has.
        """
        many = observation.many
        if isinstance(value, list) and not many:
            value = value[-1]
        settings, each = self._settings, observation.read.each
        silent = now_ms - observation.confirmed_ms >= settings.observe_confirm_ms
        confirmable |= each or silent or observation.unconfirmed_count + 1 >= settings.observe_confirm_every
        if isinstance(value, list) and confirmable and not (each or self._reliable):
            value = observation.repeating(value)  # its acknowledgement is that of the Non-confirmable ones before, too
        try:
            answer = self._represent(observation, value, now_ms)
        except ProtocolError as error:
            self._end_with(observation, wrong(error, max_body_bytes=settings.max_body_bytes), now_ms)
            return
        known = many or each or dict(answer.options)[ETAG] == observation.etag
        if refresh and known and not (observation.unconfirmed_count or silent):
            return
        watcher = self._watchers[observation.peer]
        if confirmable and self._sender.separate.busy(observation.peer) and not self._reliable:
            assert value is not None
            observation.put_back(value if isinstance(value, list) else [value])
            watcher.queue[observation.token] = observation, None
            return
        if isinstance(value, list) and not self._reliable:
            observation.unconfirmed.update({message.address: message for message in value})
        answer = self._numbered(observation, answer, now_ms)
        self._send(observation, answer, now_ms, confirmable=confirmable)

    def _represent(self, observation: Observation, value: Message | list[Message] | None, now_ms: int) -> Answer:
        """Returns a notification without its number; raises `ProtocolError` where messages cannot be one."""
        answer = self._reads.finish(observation.read, value, now_ms, max_age_s=self._max_age_s)
        observation.expires_at_ms = value.expires_at_ms if isinstance(value, Message) else None
        if not observation.keeps_format(answer):
            raise ProtocolError(NOT_ACCEPTABLE, "the Content-Format has changed: observe again")
        return answer

    def _renewed(self, now_ms: int, peer: Peer, mid: int, datagram: bytes) -> tuple[int, bytes] | None:
        """Returns the notification that takes the place of one that is not acknowledged (RFC 7641, 4.5.2).

        Where that is still the newest, or an observer wants each message, it is renumbered.
        """
        watcher = self._watchers.get(peer)
        observation = None if watcher is None else watcher.sent(mid)
        if watcher is None or observation is None or observation.outstanding != mid:
            return None
        if observation.read.each or not observation.waiting:
            return mid, observation.renumbered(datagram, now_ms, self._reads.time.wall_ms(now_ms))
        messages, ended = observation.take_unconfirmed(), False
        try:
            value = messages if observation.many else messages[-1]
            answer = self._numbered(observation, self._represent(observation, value, now_ms), now_ms)
        except ProtocolError as error:
            answer, ended = wrong(error, max_body_bytes=self._settings.max_body_bytes), True
            if unwanted(observation.read.request.silence, answer.code):
                self._end(observation)
                return None
        fresh = self._datagram(observation, answer, CON, now_ms)
        self._fly(watcher, peer, fresh[0], observation)
        observation.outstanding = None if ended else fresh[0]
        if ended:  # the error is sent again until it is acknowledged
            self._end(observation)
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
        mid, datagram = self._datagram(observation, answer, CON if confirmable else NON, now_ms)
        if confirmable:
            self._retransmitter.add(peer, mid, datagram, now_ms)
            self._fly(self._watchers[peer], peer, mid, observation)
            observation.outstanding = mid
        elif self._reliable:
            observation.confirmed_ms = now_ms
        else:
            observation.unconfirmed_count += 1
        self._sender.output.append((datagram, peer))

    def _datagram(self, observation: Observation, answer: Answer, kind: int, now_ms: int) -> tuple[int, bytes]:
        """Returns the Message ID and the datagram of a new notification."""
        token, peer = observation.token, observation.peer
        watcher = self._watchers[peer]
        mid = self._sender.mids.of_notification(peer, watcher.numbering, now_ms)
        watcher.remember(mid, observation)
        head = bytes((0x40 | kind << 4 | len(token), answer.code, mid >> 8, mid & 0xFF))
        payload = b"\xff" + answer.payload if answer.payload else b""
        return mid, head + token + encode_options(answer.options) + payload
