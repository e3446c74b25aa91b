"""A client's input: PUBLISH packets by the read, everything else handed on.

An acknowledgement leaves only when the gateway has said that the message is durable (`stored`).
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from adapters.mqtt.codec.decoder import check_topic_name
from adapters.mqtt.codec.packet_type import PacketType
from adapters.mqtt.codec.primitives import CUT, decode_text, malformed, read_varint
from adapters.mqtt.codec.properties import NO_PROPERTIES, Properties
from adapters.mqtt.codec.reason import DISCONNECTING, PUBACK_CODES, ReasonCode
from adapters.mqtt.connecting.connection_context import ConnectionContext
from adapters.mqtt.messages.delayed import PREFIX, delayed
from adapters.mqtt.messages.limits import check_message, fits
from adapters.mqtt.messages.messages import NO_TEMPLATE, PROTOCOL, Template, own_client_id
from adapters.mqtt.receiving.acknowledgements import PUBACK, PUBREC, acknowledgement
from adapters.mqtt.receiving.cache import Cache, topic_cache
from adapters.mqtt.receiving.publish_reader import MESSAGE_COST_BYTES, NO_ID, PublishReader
from adapters.mqtt.receiving.templates import Templates
from adapters.mqtt.session.exact import Exact, Indexed
from adapters.mqtt.session.inflight import Inflight
from adapters.mqtt.session.sparkplug_topics import SparkplugTopics
from gateway.domain.errors import Cause, ProtocolError, Refusal
from gateway.port.adapter import Outcome, Publish, Token
from gateway.port.single import Single
from store.api.message import Message

CONTROLS_COUNT_MAX = 1_024  # packets besides PUBLISH and PUBACK before others have their turn: 5 to 50 us each

_NEVER = 1 << 62  # more bytes than ever come

# Refusals that end the connection even at QoS 0, where there is no acknowledgement to say them with.
_ALWAYS_FATAL = frozenset({Cause.UNAUTHENTICATED, Cause.FORBIDDEN, Cause.TOO_LARGE})

Control = Callable[[int, bytes], bool]  # first byte and body of any packet but PUBLISH; whether to read on


class _Unstored(NamedTuple):
    """Messages in flight to the log, and how to acknowledge them.

    `trailer` are refusals of messages that came behind these: acknowledgements go in order (MQTT-4.6.0-2).
    """

    acks: bytes  # every PUBACK, in the order of the PUBLISH packets
    ids: list[bytes]  # packet identifiers of the QoS 1 messages
    exact: list[Indexed]  # the QoS 2 messages
    messages: list[Message]
    cost_bytes: int
    trailer: list[bytes]


class Intake:
    """The reading half of a connection."""

    __slots__ = (
        "_aliases",
        "_client_id",
        "_control",
        "_inflight",
        "_sparkplug",
        "_templates",
        "_unacked",
        "body_bytes_max",
        "context",
        "exact",
        "has_more",
        "held_up",
        "native",
        "needed",
        "refused",
        "topics",
        "unstored",
        "unstored_bytes",
    )

    def __init__(self, context: ConnectionContext, exact: Exact, inflight: Inflight, control: Control) -> None:
        self.context = context
        self.exact = exact
        self._inflight = inflight
        self._control = control
        self.body_bytes_max = body_bytes_max(context.options.max_packet_bytes)
        self._client_id: str | None = None  # the client of messages whose device does not name it
        self._templates = Templates(NO_TEMPLATE)
        self.native: dict[str, Any] | None = None  # of a PUBLISH without properties
        self.topics: Cache[str] = topic_cache()
        self._sparkplug = SparkplugTopics(context)
        self._aliases: dict[int, str] = {}
        self.unstored: dict[Token, _Unstored] = {}
        self.refused: tuple[int, bytes, int] | None = None  # a message not to be stored: QoS, identifier, code
        self._unacked = 0  # QoS 1 messages without a PUBACK
        self.unstored_bytes = 0  # of messages that the log does not have yet, about
        self.needed = 2  # bytes from the start of the rest that make the next `read` worth while
        self.has_more = False  # there is more to read, after others have had their turn
        self.held_up = False  # a QoS 2 message waits until it may be stored, and all behind it

    def begin(self) -> None:
        """Begins to take messages, once their client is known."""
        self._client_id = own_client_id(self.context.client_id, self.context.device)
        plain = NO_TEMPLATE if self._client_id is None else Template.of(NO_PROPERTIES, self._client_id)
        self._templates, self.native = Templates(plain), plain.native

    def forget(self) -> None:
        """Forgets the handler of other packets, as no more input is read."""
        self._control = _nobody

    # ---- a read

    def publish_of(self, single: Single) -> Publish:
        """Returns the `Publish` of a single message, from now on as any other."""
        message, puback = single.message, single.acknowledgement
        self._store([message], [puback[len(PUBACK) :]], [], len(message.body))
        effect = self.context.effects.pop()
        assert isinstance(effect, Publish)
        return effect

    def read(self, data: bytes, now_ms: int) -> int:  # noqa: C901, PLR0912, PLR0915
        """Reads every whole packet of `data`; returns how many bytes those were.

        Raises `ProtocolError` behind the last good packet; earlier packets are published all the same.

        The hot loop of the product: one function, local variables, and for a plain PUBLISH of 100 bytes no call but
        `Message`'s own: 0.6 us, acknowledgement included.
        """
        context, control, topics, inflight = self.context, self._control, self.topics.known, self._inflight
        device, principal, limit, v5 = context.device, context.principal, self.body_bytes_max, context.version == 5
        # A client whose name is not its device's is named in every message: a call more for each of them.
        plain = Message if self.native is None else partial(Message, native=self.native)
        size = len(data)
        at = run_start = 0  # where the next packet begins; where the messages collected so far began
        messages: list[Message] = []
        ids: list[bytes] = []
        exact: list[Indexed] = []
        acked: list[int] = []
        add, add_id = messages.append, ids.append
        self.needed, self.held_up, self.has_more, controls = 2, False, False, 0
        fault: ProtocolError | None = None
        try:
            while size - at >= 2:
                first, length, start = data[at], data[at + 1], at + 2
                if length > 127:
                    high = data[start] if start < size else 128
                    if 0 < high < 128:
                        length += (high << 7) - 128
                        start += 1
                    else:  # more than two bytes, or not all there, or not minimal
                        found = read_varint(data, at + 1, size, minimal=v5)
                        if found is None:
                            self.needed = size - at + 1
                            break
                        length, start = found
                end = start + length
                if length > limit:
                    raise ProtocolError(
                        ReasonCode.PACKET_TOO_LARGE,
                        f"a packet of {end - at} bytes; at most {context.options.max_packet_bytes}",
                    )
                if end > size:
                    self.needed = end - at
                    break
                # The fast paths take whole packets of known topics without properties; all else falls through.
                if first == 0x32:
                    body = start + 4 + (data[start] << 8 | data[start + 1])
                    address = topics.get(data[start + 2 : body - 2])
                    identifier = data[body - 2 : body]
                    if address is not None and body <= end and identifier != NO_ID:
                        if not v5:
                            add(plain(address, data[body:end], now_ms, PROTOCOL, device, principal=principal))
                            add_id(identifier)
                            at = end
                            continue
                        if body < end and not data[body]:
                            add(plain(address, data[body + 1 : end], now_ms, PROTOCOL, device, principal=principal))
                            add_id(identifier)
                            at = end
                            continue
                elif first == 0x30:
                    body = start + 2 + (data[start] << 8 | data[start + 1])
                    address = topics.get(data[start + 2 : body])
                    if address is not None and body <= end:
                        if not v5:
                            add(plain(address, data[body:end], now_ms, PROTOCOL, device, 0, principal=principal))
                            at = end
                            continue
                        if body < end and not data[body]:
                            add(plain(address, data[body + 1 : end], now_ms, PROTOCOL, device, 0, principal=principal))
                            at = end
                            continue
                elif first == 0x40 and length == 2 and (packet_id := data[start] << 8 | data[start + 1]):
                    acked.append(packet_id)
                    at = end
                    continue
                message = None
                if first >> 4 == PacketType.PUBLISH:
                    if first & 6 == 4 and not self.exact.admit():
                        self.needed, self.held_up = _NEVER, True
                        break
                    message, identifier = self._publish(first, data, start, end, now_ms)
                    if message is not None:
                        if message.qos == 1:
                            add_id(identifier)
                        elif message.qos == 2:
                            exact.append((len(messages), identifier))
                        add(message)
                # The effects of a packet from SUBSCRIBE on follow those of the messages before it; PINGREQ has none.
                if self.refused is not None or (first >= 0x80 and first != 0xC0):
                    if messages:
                        self._store(messages, ids, exact, at - run_start)
                        messages, ids, exact, run_start = [], [], [], at
                        add, add_id = messages.append, ids.append
                    self._refuse()
                at = end
                if first >> 4 == PacketType.PUBLISH:
                    continue
                if acked:  # a DISCONNECT behind them has to find them done
                    inflight.acknowledge(acked)
                    acked.clear()
                self._check_quota(len(ids))  # which a PUBREL gives back
                controls += 1
                if not control(first, data[start:end]):
                    break
                if controls >= CONTROLS_COUNT_MAX:
                    self.needed, self.has_more = 0, True
                    break
        except ProtocolError as error:
            fault = error
        except IndexError:  # the buffer, and with it the packet, ends inside the topic name's length
            fault = malformed(CUT)
        if messages:
            self._store(messages, ids, exact, at - run_start)
        if acked:
            inflight.acknowledge(acked)
        if fault is not None:
            raise fault
        self._check_quota(0)
        return at

    def _check_quota(self, collected: int) -> None:
        """Raises `ProtocolError` (0x93) for more unacknowledged messages than agreed, `collected` of them at QoS 1."""
        unacknowledged = self._unacked + collected + len(self.exact)
        if unacknowledged > self.context.options.receive_maximum and self.context.version == 5:
            raise ProtocolError(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, "more unacknowledged messages than agreed")

    def _topic(self, raw: bytes) -> str:
        """Returns the address of a topic name, remembered if nothing is special about it.

        Raises `ProtocolError` (0x81, 0x90).
        """
        address = check_topic_name(decode_text(raw))
        plain = not address.startswith(PREFIX) and fits(address, self.context.options)
        if plain and not self._sparkplug.learn(raw, self._templates.plain, address):
            self.topics.keep(raw, address)
        return address

    def _publish(self, first: int, data: bytes, start: int, end: int, now_ms: int) -> tuple[Message | None, bytes]:
        """Takes any PUBLISH, and returns its packet identifier.

        No message when there is nothing to store: a repetition at QoS 2 (MQTT-4.3.3-10), or one that is refused.
        """
        if (known := self._sparkplug.known(first, data, start, end, now_ms)) is not None:
            return known
        if first & 0x0E == 8:
            raise malformed("DUP at QoS 0")
        reader, context = PublishReader(first, data, start, end), self.context
        name, qos, identifier = reader.name, reader.qos, reader.identifier
        templates = self._templates
        template = templates.read(reader, self._template) if context.version == 5 else templates.plain
        address = self._resolve(name, template.properties.topic_alias)
        delay_s = 0
        if address.startswith(PREFIX):
            delay_s, address = delayed(address)
        if name not in self.topics.known or len(template.properties.user) > context.options.user_properties_max:
            try:
                check_message(address, template.properties, context.options)
            except ProtocolError as error:
                if not qos or context.version < 5:
                    raise
                self.refused = (qos, identifier, error.code)
                return None, identifier
        if qos == 2 and self.exact.is_received(identifier):
            self.refused = (qos, identifier, ReasonCode.SUCCESS)
            return None, identifier
        if qos == 2 and self.exact.is_storing(identifier):
            return None, identifier
        try:
            message = template.message(
                address,
                reader.rest(),
                qos=qos,
                retain=bool(first & 1),
                device=context.device,
                principal=context.principal,
                now_ms=now_ms,
            )
        except Refusal as refusal:
            unfit = refusal.cause is Cause.MALFORMED  # the payload does not have the format that its properties name
            code = ReasonCode.PAYLOAD_FORMAT_INVALID if unfit else PUBACK_CODES[refusal.cause]
            self.refused = (qos, identifier, code)
            return None, identifier
        message = self._sparkplug.with_sparkplug(message)
        if delay_s:
            message = replace(message, deliver_at_ms=now_ms + delay_s * 1_000)
        if qos == 2:
            self.exact.use(identifier)
        return message, identifier

    def _refuse(self) -> None:
        """Answers a message that is refused, or stored already, behind the answers to those before it."""
        if self.refused is None:
            return
        (qos, identifier, code), self.refused = self.refused, None
        if qos:
            packet = acknowledgement(qos, identifier, code)
            before = next(reversed(self.unstored.values()), None)
            (self.context.out if before is None else before.trailer).append(packet)

    def _template(self, properties: Properties) -> Template:
        """Returns the template that a PUBLISH's properties make. Raises `ProtocolError`."""
        if properties.subscription_ids:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "a subscription identifier from a client")
        if properties.response_topic is not None:
            check_topic_name(properties.response_topic)
        return Template.of(properties, self._client_id)

    def _resolve(self, name: bytes, alias: int | None) -> str:
        """Returns the address of a topic name or alias (3.3.2.3.4). Raises `ProtocolError` (0x82, 0x90, 0x94)."""
        if alias is None:
            if not name and self.context.version == 5:
                raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "neither a topic name nor a topic alias")
            return self.topics.known.get(name) or self._topic(name)
        if not 0 < alias <= self.context.options.topic_alias_maximum:
            raise ProtocolError(ReasonCode.TOPIC_ALIAS_INVALID, f"topic alias {alias}")
        if name:
            address = self._aliases[alias] = self.topics.known.get(name) or self._topic(name)
            return address
        known = self._aliases.get(alias)
        if known is None:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"topic alias {alias} stands for nothing yet")
        return known

    # ---- the log's answers

    def _store(self, messages: list[Message], ids: list[bytes], exact: list[Indexed], size: int) -> None:
        """Hands messages to the gateway, the bytes that will acknowledge them laid ready."""
        if self.exact.halves and len(messages) > 1:
            self._store_apart(messages, ids, exact, size)
            return
        acks = PUBACK + PUBACK.join(ids) if ids else b""
        cost_bytes = size + MESSAGE_COST_BYTES * len(messages)
        token = self.context.token()
        self.unstored[token] = _Unstored(acks, ids, exact, messages, cost_bytes, [])
        self._unacked += len(ids)
        self.unstored_bytes += cost_bytes
        self.context.effects.append(Publish(messages, token, marks=self.exact.marks(exact) if exact else None))

    def _store_apart(self, messages: list[Message], ids: list[bytes], exact: list[Indexed], size: int) -> None:
        """Stores them one by one: of some of them, a part is stored already."""
        acks, exacts = iter(ids), dict(exact)
        for index, message in enumerate(messages):
            own = [next(acks)] if message.qos == 1 else []
            self._store([message], own, [(0, exacts[index])] if message.qos == 2 else [], 0 if index else size)

    def stored(self, token: Token, outcome: Outcome) -> bool:
        """Returns the outcome of a `Publish`; False when it is not one of ours.

        Raises `ProtocolError` when a message was refused in a way that only ending the connection can tell.
        """
        unstored = self.unstored.pop(token, None)
        if unstored is None:
            return False
        self.unstored_bytes -= unstored.cost_bytes
        self._unacked -= len(unstored.ids)
        if outcome.error is not None or outcome.refused:
            self._answer_each(unstored, outcome)
            return True
        if unstored.acks:
            self.context.out.append(unstored.acks)
        if unstored.exact:
            received = [identifier for _, identifier in unstored.exact]
            self.exact.stored(received)
            self.context.out.append(PUBREC + PUBREC.join(received))
        self.context.out += unstored.trailer
        return True

    def _answer_each(self, unstored: _Unstored, outcome: Outcome) -> None:
        """Acknowledges or refuses message by message.

        Once one got neither, no later PUBACK is sent, for they go in order; the client sends those messages again.
        """
        out, v5 = self.context.out, self.context.version == 5
        ids, exact = iter(unstored.ids), dict(unstored.exact)
        fatal: Refusal | None = None
        for index, message in enumerate(unstored.messages):
            refusal = outcome.error or outcome.refused.get(index)
            code = PUBACK_CODES.get(refusal.cause) if refusal is not None and v5 else None
            if refusal is not None and not message.qos and refusal.cause is Cause.TOO_LARGE:
                code = None  # no PUBACK can say so
            if refusal is not None and code is None and (message.qos or refusal.cause in _ALWAYS_FATAL):
                fatal = fatal or refusal
            if message.qos == 1:
                identifier = next(ids)
                if fatal is None:
                    out.append(acknowledgement(1, identifier, code or 0))
            elif message.qos == 2:
                identifier = exact[index]
                if refusal is None:
                    self.exact.stored((identifier,))
                elif code is not None:
                    self.exact.refused(identifier)
                if fatal is None:
                    out.append(acknowledgement(2, identifier, code or 0))
        if fatal is not None:
            raise ProtocolError(DISCONNECTING.get(fatal.cause) or PUBACK_CODES[fatal.cause], fatal.detail)
        out += unstored.trailer


@lru_cache
def body_bytes_max(packet_bytes: int) -> int:
    """Returns the largest Remaining Length of a packet of at most `packet_bytes`, fixed header included."""
    return max(min(packet_bytes - 1 - width, (1 << 7 * width) - 1) for width in range(1, 5))


def _nobody(_first: int, _body: bytes) -> bool:
    return False
