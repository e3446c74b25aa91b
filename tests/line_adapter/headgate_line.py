"""A line protocol for Headgate, the example of docs/adapters.md.

`PUB address text` and `SUB filter` are answered in order: `OK` (the PUB's message is on disk) or `ERR cause detail`.
Messages come as `MSG address text`. The first line may be `AUTH name password`. %XX stands for any byte.
"""

from collections import deque
from typing import Annotated
from urllib.parse import quote_from_bytes, unquote_to_bytes

from msgspec import Meta, Struct

from gateway.domain.address import check_address
from gateway.domain.errors import Cause, Refusal
from gateway.domain.filters import check_filter
from gateway.port import adapter as port
from store.api.message import Message

OK, BYE = b"OK\n", b"BYE\n"
ONLY = port.Token(1)  # one effect at a time waits for its outcome
PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")  # the characters that stand for themselves


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[adapters.line]`: limits on what one connection makes the gateway hold."""

    line_bytes_max: Annotated[int, Meta(ge=64, description="the longest line")] = 64 * 1024
    subscriptions_max: Annotated[int, Meta(ge=1, description="subscriptions of one connection")] = 100
    first_line_timeout_s: Annotated[int, Meta(ge=1, description="seconds until the first line is there")] = 10


class LineConnection(port.Adapter):
    """One connection; the base class says what each public method is for."""

    def __init__(self, info: port.ConnectionInfo, options: Options, *, random: port.Random) -> None:
        self._peer, self._options = str(info.peer[0]), options
        self._principal: port.Principal | None = None  # None: the gateway has not said yet who it is
        self._deadline_ms: int | None = info.now_ms + options.first_line_timeout_s * 1_000
        self._lines: deque[bytes] = deque()  # read, and not handled yet
        self._rest, self._output = b"", bytearray()  # the beginning of a line; bytes to be written
        self._messages: list[Message] = []  # of the lines that are answered next
        self._answers: list[bytes] = []  # b"": the outcome of the line's message decides
        self._subs: dict[str, port.SubscriptionId] = {}
        self._waiting = False  # for an outcome, or for the end
        self._last: bytes | None = None  # the line that ends the connection, behind all answers

    @property
    def wants_data(self) -> bool:
        return not self._waiting and self._last is None

    def receive(self, data: bytes | memoryview, *, now_ms: int) -> list[port.Effect]:
        *lines, self._rest = (self._rest + bytes(data)).split(b"\n")
        self._lines += lines if len(self._rest) <= self._options.line_bytes_max else [*lines, self._rest]
        return self._turn(now_ms)

    def completed(self, token: port.Token, outcome: port.Outcome, *, now_ms: int) -> list[port.Effect]:
        self._waiting = False
        if self._messages:
            errors = iter([outcome.error or outcome.refused.get(n) for n in range(len(self._messages))])
            self._answers = [answer or reply(next(errors)) for answer in self._answers]
            self._messages = []
        elif outcome.error is not None:
            self._answers, self._last = [], reply(outcome.error)
        else:
            self._principal, self._deadline_ms = outcome.value, outcome.value.expires_at_ms
        return self._turn(now_ms)

    def deliver(self, deliveries: port.Deliverable, *, now_ms: int) -> int:
        assert isinstance(deliveries, port.Deliveries), "this adapter consumes no queues"
        for message in [deliveries.batch.messages[index] for index in deliveries.picks]:
            if not message.expired(now_ms):
                address = quote_from_bytes(message.address.encode(), PLAIN).replace(" ", "%20")
                self._output += f"MSG {address} {quote_from_bytes(message.body, PLAIN)}\n".encode()
        return len(deliveries.picks)

    def deadline_ms(self) -> int | None:
        return self._deadline_ms if self._last is None else None

    def tick(self, *, now_ms: int) -> list[port.Effect]:
        self._last = b"ERR unauthenticated too late\n"
        return self._turn(now_ms)

    def shutdown(self, *, now_ms: int, dismissed: bool = False) -> list[port.Effect]:
        self._last = self._last or BYE
        return self._turn(now_ms)

    def take_output(self) -> bytes:
        output, self._output = bytes(self._output), bytearray()
        return output

    def _turn(self, now_ms: int) -> list[port.Effect]:
        """Handles lines until an outcome has to be awaited; returns the effects."""
        effects: list[port.Effect] = []
        while self._lines and self.wants_data and (not self._messages or self._lines[0].startswith(b"PUB ")):
            try:
                effects += self._handle(self._lines.popleft(), now_ms)
            except (Refusal, UnicodeDecodeError) as error:
                self._answers.append(reply(error))
        if self._messages and not self._waiting:
            effects.append(port.Publish(self._messages, ONLY))
            self._waiting = True
        if not self._waiting:
            self._output += b"".join([*self._answers, self._last or b""])
            self._answers = []
            if self._last is not None:
                effects.append(port.Close(reason="" if self._last == BYE else self._last.decode().strip()))
                self._waiting = True
        return effects

    def _handle(self, line: bytes, now_ms: int) -> list[port.Effect]:
        """Handles one line. Raises `Refusal` and UnicodeDecodeError."""
        if len(line) > (size_max := self._options.line_bytes_max):
            self._last = reply(Refusal(Cause.TOO_LARGE, f"a line has at most {size_max} bytes (line_bytes_max)"))
            return []
        verb, word, rest = (*line.removesuffix(b"\r").split(b" ", 2), b"", b"")[:3]
        name, text = unquote_to_bytes(word).decode(), unquote_to_bytes(rest)
        if (principal := self._principal) is None:
            self._waiting = True
            if verb == b"AUTH":
                self._answers.append(OK)
                who = port.Authenticate(mechanism="password", username=name, password=text)
            else:
                self._lines.appendleft(line)
                who = port.Authenticate(mechanism="anonymous")
            return [port.Call(request=who, token=ONLY)]
        if verb == b"PUB":
            device, who = (self._peer, "") if principal.anonymous else (principal.device, None)
            self._messages.append(Message(check_address(name), text, now_ms, "line", device, principal=who))
            self._answers.append(b"")
            return []
        if verb == b"SUB":
            principal.permissions.check_filter(check_filter(name))
            if len(self._subs) >= self._options.subscriptions_max:
                raise Refusal(Cause.QUOTA, "there are subscriptions_max subscriptions")
            self._answers.append(OK)
            return [port.Subscribe(sub=self._subs.setdefault(name, port.SubscriptionId(len(self._subs))), pattern=name)]
        raise Refusal(Cause.MALFORMED, "a line is PUB address text, SUB filter, or AUTH name password as the first")


class Factory:
    """The object that the entry point names: a `gateway.port.adapter.AdapterFactory`."""

    listeners = (port.Listener(name="line", port=7007, transport="tcp", tls_port=7008, summary="the line protocol"),)
    options, connect = Options, LineConnection


def reply(error: Exception | None) -> bytes:
    """Returns the answer to a line that was done, or refused."""
    cause = error.cause if isinstance(error, Refusal) else Cause.MALFORMED
    return OK if error is None else f"ERR {cause.value} {quote_from_bytes(str(error).encode(), PLAIN)}\n".encode()
