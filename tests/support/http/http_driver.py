"""An HTTP peer and a gateway for tests: bytes in both directions, a log in a list, and a clock that stands still."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import h2.config
import h2.connection
import h2.events
import msgspec
from msgspec.structs import replace

from adapters.http import HttpConnection, HttpFactory, HttpOptions
from adapters.http.handlers.repeats import Repeats
from gateway.domain.batch import Batch
from gateway.domain.cursor import Cursor
from gateway.domain.errors import Cause, Refusal
from gateway.domain.filters import matches
from gateway.domain.forwarding import ForwardingSettings
from gateway.domain.principal import Principal
from gateway.port.adapter import (
    Authenticate,
    Call,
    CancelTimer,
    Close,
    ConnectionInfo,
    Deliveries,
    Effect,
    GiveUp,
    Outcome,
    Publish,
    Settled,
    Subscribe,
    Unsubscribe,
)
from gateway.port.reads import LastValue, LastValues, LastValuesPage, ListAddresses
from gateway.port.single import Single
from store.api.message import Message
from store.format.frame import LogOffset, Position

PEER = "192.0.2.1"
NOW_MS = 1_700_000_000_000
PASSWORDS = {"alice": b"secret"}


class Parsed(Repeats):
    """Takes nothing apart, so that every request is parsed."""

    def learn(self, *_: object) -> None:
        """Learns nothing."""


class Gateway:
    """The gateway behind the adapter: carries out effects at once, or keeps them until `release`."""

    def __init__(
        self,
        options: HttpOptions | None = None,
        *,
        alpn: str | None = None,
        hold: bool = False,
        peer: str = PEER,
        ends: Cursor = (),
        factory: HttpFactory | None = None,
        short: bool = True,
        forwarding: ForwardingSettings | None = None,
    ) -> None:
        info = ConnectionInfo(
            peer=(peer, 40_000),
            local=("192.0.2.2", 8080),
            alpn=alpn,
            secure=alpn is not None,
            loopback=peer == "127.0.0.1",
            forwarding=forwarding,
        )
        self.adapter: HttpConnection = (factory or HttpFactory()).connect(
            info, options or HttpOptions(), random=Random(1)
        )
        self.now_ms = NOW_MS
        if not short:
            self.adapter.repeats = Parsed(options or HttpOptions())
        self.short = short  # takes the short way for single messages, as a shell does
        self.singles = 0  # that took it
        self.hold = hold
        self.held: list[Effect] = []
        self.frames: list[list[Message]] = []  # one a Publish
        self.effects: list[Effect] = []
        self.subscriptions: dict[int, Subscribe] = {}
        self.refusals: dict[str, Refusal] = {}  # by address
        self.timers: set[str] = set()  # ids of messages that wait
        self.anonymous = True
        self.trusted: set[str] = set()
        self.closed = False
        self.ends = ends  # of the logs: where subscriptions begin
        self.tick()

    @property
    def messages(self) -> list[Message]:
        """Everything stored."""
        return [message for frame in self.frames for message in frame]

    def feed(self, data: bytes) -> bytes:
        """Hands over bytes from the peer, and returns the bytes that answer them."""
        singles = self.alone(data) if self.short else ()
        if not singles:
            self.act(self.adapter.receive(data, now_ms=self.now_ms))
            return self.adapter.take_output()
        self.singles += len(singles)
        if self.hold or any(single.message.address in self.refusals for single in singles):
            self.act([self.adapter.publish_of(single) for single in singles])
            return self.adapter.take_output()
        place = self._store([single.message for single in singles]).first
        assert place is not None
        answers = b""
        for row, single in enumerate(singles, place.row):
            assert single.answer is not None
            answers += single.answer(single, Position(place.frame, row), self.now_ms)
        return answers

    def alone(self, data: bytes) -> Sequence[Single]:
        """Returns the messages of a read that repeats a request, once or a few times, as a shell asks for them."""
        [found] = self.adapter.singles([(self.adapter, data)], self.now_ms)
        return found

    def single(self, data: bytes) -> Single | None:
        """Returns the message of a read that repeats a request once."""
        found = self.alone(data)
        return found[0] if len(found) == 1 else None

    def tick(self, *, after_ms: int = 0) -> bytes:
        """Lets time pass, and returns the bytes that the adapter sends then."""
        self.now_ms += after_ms
        deadline_ms = self.adapter.deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self.act(self.adapter.tick(now_ms=self.now_ms))
        return self.adapter.take_output()

    def release(self) -> bytes:
        """Carries out the effects that were held back, and returns the bytes that answer them."""
        self.release_all()
        return self.adapter.take_output()

    def release_all(self) -> None:
        """Carries out the effects that were held back."""
        held, self.held, self.hold = self.held, [], False
        self.act(held)

    def act(self, effects: Sequence[Effect]) -> None:
        """Carries out effects, and those that follow from them."""
        for effect in effects:
            self.effects.append(effect)
            if isinstance(effect, Close):
                self.closed = True
            elif isinstance(effect, Subscribe):
                self.subscriptions[effect.sub] = effect
                if effect.token is not None and self.ends:
                    begun = self.ends if effect.start is None else tuple(sorted(effect.start))
                    self.act(self.adapter.completed(effect.token, Outcome(value=begun), now_ms=self.now_ms))
            elif isinstance(effect, Unsubscribe):
                del self.subscriptions[effect.sub]
            elif self.hold and isinstance(effect, Publish | Call):
                self.held.append(effect)
            elif isinstance(effect, Publish):
                outcome = self._store(effect.messages)
                self.act(self.adapter.completed(effect.token, outcome, now_ms=self.now_ms))
            elif isinstance(effect, Call):
                self.act(self.adapter.completed(effect.token, self.answer_effect(effect), now_ms=self.now_ms))
            else:
                assert isinstance(effect, Settled | GiveUp)

    def _store(self, messages: Sequence[Message]) -> Outcome:
        refused = {i: self.refusals[m.address] for i, m in enumerate(messages) if m.address in self.refusals}
        kept = [message for i, message in enumerate(messages) if i not in refused]
        self.frames.append(kept)
        return Outcome(first=Position(LogOffset(len(self.frames)), 0) if kept else None, refused=refused)

    def answer_effect(self, call: Call) -> Outcome:
        request = call.request
        if isinstance(request, Authenticate):
            return self._authenticate(request)
        if isinstance(request, LastValue):
            return Outcome(value=self.last(request.address))
        if isinstance(request, CancelTimer):
            if "-" not in request.timer:
                return Outcome(error=Refusal(Cause.NOT_FOUND, f"not a timer: {request.timer!r}"))
            pending, self.timers = request.timer in self.timers, self.timers - {request.timer}
            return Outcome(value=pending)
        if isinstance(request, LastValues):
            last = {m.address: replace(m, id="1.0") for m in self.messages if matches(request.pattern, m.address)}
            page = [last[at] for at in sorted(last) if at > request.after][: request.limit + 1]
            more = len(page) > request.limit
            page = page[: request.limit]
            return Outcome(value=LastValuesPage(messages=page, after=page[-1].address if more else None))
        assert isinstance(request, ListAddresses)
        found = sorted({m.address for m in self.messages if m.address.startswith(request.prefix)})
        found = [address for address in found if address > request.after]
        return Outcome(value=found[: request.limit])

    def _authenticate(self, request: Authenticate) -> Outcome:
        if request.mechanism == "anonymous":
            if self.anonymous:
                return Outcome(value=Principal(name=""))
        elif PASSWORDS.get(request.username) == request.password:
            name = request.username
            return Outcome(value=Principal(name=name, trusted_gateway=name in self.trusted))
        return Outcome(error=Refusal(Cause.UNAUTHENTICATED, "a name and a password are needed here"))

    def last(self, address: str) -> Message | None:
        """Returns the newest message at an address."""
        for number, frame in reversed(list(enumerate(self.frames, 1))):
            for row, message in reversed(list(enumerate(frame))):
                if message.address == address:
                    return msgspec.structs.replace(message, id=message.id or f"{number:x}.{row:x}")
        return None

    def deliver(self, messages: Sequence[Message], *, frame: int = 100) -> int:
        """Offers messages as one frame of the log, and returns how many were taken."""
        count = len(messages)
        batch = Batch(LogOffset(frame), LogOffset(frame + 1), list(messages), list(range(count)), [16] * count)
        picks, subs = [], []
        for index, message in enumerate(messages):
            at = batch.position(index)
            ids = tuple(
                sub
                for sub, effect in self.subscriptions.items()
                if matches(effect.pattern, message.address)
                and (not effect.start or effect.start[0] <= at or effect.start[0].frame > frame)  # beyond the end: now
            )
            if ids:
                picks.append(index)
                subs.append(ids)
        return self.adapter.deliver(Deliveries(batch, picks, subs), now_ms=self.now_ms)


@dataclass
class Answer:
    """A response as a client sees it."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    ended: bool = True

    def __getitem__(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def request(method: str, target: str, *headers: tuple[str, str], body: bytes | None = None) -> bytes:
    """Returns the bytes of a request of HTTP/1.1."""
    lines = [f"{method} {target} HTTP/1.1", "host: gateway.example", *(f"{name}: {value}" for name, value in headers)]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")


def parse_responses(data: bytes, *, head: bool = False) -> list[Answer]:
    """Returns the responses of HTTP/1.1 that stand back to back; a chunked one may be unfinished."""
    answers: list[Answer] = []
    while data:
        top, _, data = data.partition(b"\r\n\r\n")
        first, *lines = top.decode("latin-1").split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
        answer = Answer(int(status), headers)
        answers.append(answer)
        if answer["transfer-encoding"] == "chunked":
            answer.ended = False
            while data:
                size, _, data = data.partition(b"\r\n")
                chunk, data = data[: int(size, 16)], data[int(size, 16) + 2 :]
                answer.body += chunk
                if not chunk:
                    answer.ended = True
                    break
        elif answer["content-length"] is not None and not head and int(status) != 304:
            size = int(answer["content-length"] or 0)
            assert len(data) >= size
            answer.body, data = data[:size], data[size:]
        elif answer["content-type"] == "text/event-stream":
            answer.body, data = data, b""
    return answers


class Http1Client:
    """One HTTP/1.1 connection."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    def ask(self, method: str, target: str, *headers: tuple[str, str], body: bytes | None = None) -> Answer:
        """Sends one request, and returns its response."""
        out = self.gateway.feed(request(method, target, *headers, body=body))
        (answer,) = parse_responses(out, head=method == "HEAD")
        return answer


@dataclass
class _Received:
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None


class Http2Client:
    """One HTTP/2 connection, by prior knowledge or ALPN."""

    def __init__(self, gateway: Gateway, *, eager: bool = True) -> None:
        self.gateway = gateway
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.received: dict[int, _Received] = {}
        self.acknowledge = True
        self.goaway: int | None = None
        if eager:
            self.flush()

    def flush(self) -> None:
        """Carries bytes both ways until there are none."""
        while out := self.h2.data_to_send():
            self.read(self.gateway.feed(out))

    def read(self, data: bytes) -> None:
        """Reads bytes from the gateway."""
        for event in self.h2.receive_data(data) if data else ():
            received = self.received.get(getattr(event, "stream_id", None) or 0, _Received())
            if isinstance(event, h2.events.ResponseReceived):
                received.headers = list(event.headers)
            elif isinstance(event, h2.events.DataReceived):
                received.body += event.data
                if self.acknowledge and event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                received.ended = True
            elif isinstance(event, h2.events.StreamReset):
                received.reset = int(event.error_code)
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.goaway = int(event.error_code or 0)

    def send(
        self, method: str, target: str, *headers: tuple[str, str], body: bytes | None = None, end: bool = True
    ) -> int:
        """Notes a request without carrying its bytes over, and returns its stream."""
        stream = self.h2.get_next_available_stream_id()
        self.received[stream] = _Received()
        pseudo = [(":method", method), (":scheme", "http"), (":authority", "gateway.example"), (":path", target)]
        self.h2.send_headers(stream, [*pseudo, *headers], end_stream=end and body is None)
        if body is not None:
            size = self.h2.max_outbound_frame_size
            for start in range(0, len(body), size):
                self.h2.send_data(stream, body[start : start + size])
            if end:
                self.h2.end_stream(stream)
        return stream

    def answer(self, stream: int) -> Answer:
        """Returns what a stream has received."""
        received = self.received[stream]
        headers = [(name, value) for name, value in received.headers if not name.startswith(":")]
        return Answer(int(dict(received.headers).get(":status", "0")), headers, received.body, received.ended)

    def ask(self, method: str, target: str, *headers: tuple[str, str], body: bytes | None = None) -> Answer:
        """Sends one request, and returns its response."""
        stream = self.send(method, target, *headers, body=body)
        self.flush()
        return self.answer(stream)
