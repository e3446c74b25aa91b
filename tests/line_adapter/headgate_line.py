"""A line protocol for Headgate, the example of docs/adapters.md.

`PUB address text` and `SUB filter` are answered in their order, with `OK` (a PUB when its message is on disk) or
`ERR cause detail`; messages come between the answers as `MSG address text`. The first line may be `AUTH name password`.
A byte that a line cannot carry is written as %XX.
"""

from enum import Enum
from typing import Annotated
from urllib.parse import quote_from_bytes, unquote_to_bytes

from msgspec import Meta, Struct

from gateway.domain.address import check_address
from gateway.domain.errors import Cause, Refusal
from gateway.domain.filters import check_filter
from gateway.port import adapter as port
from store.api.message import Message

NAME = "line"  # of the entry point: access rules and metrics call the protocol by it
OK, BYE = b"OK\n", b"BYE\n"
ONLY = port.Token(1)  # there is one effect at a time that waits for its outcome
PLAIN = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")  # the characters that stand for themselves
Phase = Enum("Phase", "NEW OPEN BUSY CLOSED")  # BUSY: an outcome is awaited, and nothing is read


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[adapters.line]`: limits on what one connection makes the gateway hold."""

    line_bytes_max: Annotated[int, Meta(ge=64, description="the longest line")] = 64 * 1024
    subscriptions_max: Annotated[int, Meta(ge=1, description="subscriptions of one connection")] = 100
    output_bytes_max: Annotated[int, Meta(ge=1, description="output; beyond it messages stay in the log")] = 256 * 1024
    first_line_timeout_s: Annotated[int, Meta(ge=1, description="seconds until the first line is there")] = 10


class LineConnection:
    """One connection. `gateway.port.adapter.Adapter` says what each public method is for."""

    def __init__(self, info: port.ConnectionInfo, options: Options) -> None:
        self._options, self._phase = options, Phase.NEW
        self._device = str(info.peer[0])  # of messages whose sender has no name
        self._permissions = port.Principal(name="").permissions
        self._deadline_ms: int | None = 0  # of the first line, then of the principal; 0: the clock is not known yet
        self._input, self._output = bytearray(), bytearray()
        self._answers: list[bytes] = []  # to the lines of this turn; empty: its message's outcome is awaited
        self._messages: list[Message] = []
        self._subs: dict[str, port.SubscriptionId] = {}
        self._refused = False  # `deliver` took less than it was offered
        self._last: bytes | None = None  # the line that ends the connection when all others are answered

    @property
    def wants_data(self) -> bool:
        return self._phase in {Phase.NEW, Phase.OPEN} and self._last is None

    def receive(self, data: bytes | memoryview, *, now_ms: int) -> list[port.Effect]:
        self._input += data
        return self._turn(now_ms)

    def completed(self, token: port.Token, outcome: port.Outcome, *, now_ms: int) -> list[port.Effect]:
        if self._messages:
            stored = iter([outcome.error or outcome.refused.get(n) for n in range(len(self._messages))])
            self._answers = [answer or reply(next(stored)) for answer in self._answers]
            self._messages = []
        elif outcome.error is not None:
            self._answers, self._last = [], reply(outcome.error)
        else:
            self._permissions, self._deadline_ms = outcome.value.permissions, outcome.value.expires_at_ms
            self._device = outcome.value.device or self._device
        self._phase = Phase.OPEN
        return self._turn(now_ms)

    def deliver(self, deliveries: port.Deliverable, *, now_ms: int) -> int:
        assert isinstance(deliveries, port.Deliveries), "this adapter consumes no queues"
        lines = deliveries.batch.memo.setdefault(NAME, {})  # a line is made once for all subscribers
        for taken, index in enumerate(deliveries.picks):
            if len(self._output) >= self._options.output_bytes_max:
                self._refused = True
                return taken
            message = deliveries.batch.messages[index]
            if index not in lines:
                lines[index] = f"MSG {quoted(message.address.encode())} {quoted(message.body, ' ')}\n".encode()
            if not message.expired(now_ms):
                self._output += lines[index]
        return len(deliveries.picks)

    def deadline_ms(self) -> int | None:
        return 0 if self._refused and not self._output else self._deadline_ms

    def tick(self, *, now_ms: int) -> list[port.Effect]:
        if self._refused and not self._output:
            self._refused = False
            return [port.Settled()]  # there is room again: what was refused is offered again
        if self._deadline_ms == 0:
            self._deadline_ms = now_ms + self._options.first_line_timeout_s * 1_000
        elif self._deadline_ms is not None and now_ms >= self._deadline_ms:
            self._deadline_ms, self._last = None, b"ERR unauthenticated too late\n"
        return self._turn(now_ms)

    def superseded(self, *, now_ms: int) -> list[port.Effect]:
        return []  # there are no sessions to take over

    def shutdown(self, *, now_ms: int, dismissed: bool = False) -> list[port.Effect]:
        self._last = self._last or BYE
        return self._turn(now_ms)

    def lost(self, *, now_ms: int) -> list[port.Effect]:
        self._phase = Phase.CLOSED
        return []

    def take_output(self) -> bytes:
        output, self._output = bytes(self._output), bytearray()
        return output

    def _turn(self, now_ms: int) -> list[port.Effect]:
        """Handles the lines that are there, as far as their answers need no outcome; returns the effects."""
        effects: list[port.Effect] = []
        while self.wants_data and self._take_line(effects, now_ms):
            pass
        if self._messages and self._phase is Phase.OPEN:
            effects.append(port.Publish(self._messages, ONLY))
            self._phase = Phase.BUSY
        if self._phase is not Phase.BUSY:
            self._output += b"".join(self._answers)
            self._answers = []
            if self._last is not None and self._phase is not Phase.CLOSED:
                self._output += self._last
                self._phase = Phase.CLOSED
                effects.append(port.Close(reason="" if self._last == BYE else self._last.decode().strip()))
        return effects

    def _take_line(self, effects: list[port.Effect], now_ms: int) -> bool:
        """Handles the next line; returns whether there may be another one for this turn."""
        end, size_max = self._input.find(b"\n"), self._options.line_bytes_max
        if (len(self._input) if end < 0 else end) > size_max:
            self._last = reply(Refusal(Cause.TOO_LARGE, f"a line has at most {size_max} bytes (line_bytes_max)"))
        if end < 0 or self._last is not None:
            return False
        verb, _, rest = bytes(self._input[:end]).removesuffix(b"\r").partition(b" ")
        word, _, text = rest.partition(b" ")
        if self._phase is Phase.NEW and verb != b"AUTH":
            effects.append(port.Call(request=port.Authenticate(mechanism="anonymous"), token=ONLY))
            self._phase = Phase.BUSY
        if self._phase is Phase.BUSY or (verb == b"SUB" and self._messages):
            return False  # the line stays: it is handled when the outcome is there
        del self._input[: end + 1]
        try:
            self._answers.append(self._handle(verb, unquote_to_bytes(word).decode(), text, effects, now_ms))
        except UnicodeDecodeError as error:
            self._answers.append(reply(Refusal(Cause.MALFORMED, str(error))))
        except Refusal as refusal:
            self._answers.append(reply(refusal))
        return True

    def _handle(self, verb: bytes, word: str, text: bytes, effects: list[port.Effect], now_ms: int) -> bytes:
        """Handles one line; returns its answer, nothing where that is not known yet. Raises `Refusal`."""
        if verb == b"PUB":
            message = Message(check_address(word), unquote_to_bytes(text), now_ms, NAME, self._device)
            self._messages.append(message)
            return b""
        if verb == b"SUB":
            self._permissions.check_filter(check_filter(word))
            if len(self._subs) >= self._options.subscriptions_max:
                raise Refusal(Cause.QUOTA, "there are subscriptions_max subscriptions")
            sub = self._subs.setdefault(word, port.SubscriptionId(len(self._subs)))
            effects.append(port.Subscribe(sub=sub, pattern=word))
            return OK
        if verb == b"AUTH" and self._phase is Phase.NEW:
            asked = port.Authenticate(mechanism="password", username=word, password=unquote_to_bytes(text))
            effects.append(port.Call(request=asked, token=ONLY))
            self._phase = Phase.BUSY
            return OK
        raise Refusal(Cause.MALFORMED, "a line is PUB address text, SUB filter, or AUTH name password as the first")


class Factory:
    """The object that the entry point names: a `gateway.port.adapter.AdapterFactory`."""

    listeners = (port.Listener(name=NAME, port=7007, transport="tcp", tls_port=7008, summary="the line protocol"),)
    options = Options

    def connect(self, info: port.ConnectionInfo, options: Options, *, random: port.Random) -> port.Adapter:
        return LineConnection(info, options)

    def bind(self, options: Options, *, random: port.Random) -> port.DatagramAdapter:
        raise NotImplementedError("the line protocol has no datagrams")


FACTORY = Factory()


def quoted(data: bytes, also: str = "") -> str:
    """Returns bytes as a line carries them."""
    return quote_from_bytes(data, PLAIN + also)


def reply(refusal: Refusal | None) -> bytes:
    """Returns the answer to a line that was done, or refused."""
    return OK if refusal is None else f"ERR {refusal.cause.value} {quoted(refusal.detail.encode(), ' ')}\n".encode()
