"""State that the parts of one connection share: its client, and where output and effects go."""

from collections.abc import Callable
from typing import Any

from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import Packet, Version
from adapters.mqtt.codec.primitives import VARINT_MAX
from adapters.mqtt.messages.messages import dialect_of
from adapters.mqtt.messages.options import Options
from gateway.domain.access import OPEN
from gateway.port.adapter import Call, Effect, Outcome, Request, Token

Answer = Callable[[Outcome, int], None]  # the outcome, now_ms

_UNKNOWN = dialect_of(0)  # until the CONNECT is here


class ConnectionContext:
    """One connection's agreed terms, its output and its effects, and who waits for which call's outcome."""

    __slots__ = (
        "_answers",
        "_last_words",
        "_next_token",
        "client_id",
        "device",
        "dialect",
        "durable",
        "effects",
        "options",
        "out",
        "packet_bytes_max",
        "permissions",
        "principal",
        "takes",
        "version",
    )

    def __init__(self, options: Options) -> None:
        self.options = options
        self.version: Version = 0  # 0 until the CONNECT is here
        self.dialect = _UNKNOWN
        self.client_id = ""
        self.device = ""
        self.principal: str | None = ""  # of its messages, as `Message` has it
        self.permissions = OPEN  # of the client
        self.durable = False  # the session outlives the connection
        self.packet_bytes_max = VARINT_MAX + 5  # the largest packet the client takes (MQTT 5.0, 3.1.2.11.4)
        self.out: list[bytes] = []
        self.takes = 0  # how often the shell has taken output
        self.effects: list[Effect] = []
        self._answers: dict[Token, Answer] = {}
        self._last_words: list[bytes] | None = None  # packets to write once the connection is closing
        self._next_token = 0

    @property
    def anonymous(self) -> bool:
        """Returns whether the client has not authenticated: its device is its own name for itself."""
        return self.principal == ""

    def speak(self, version: Version) -> None:
        """Notes the client's version."""
        self.version = version
        self.dialect = dialect_of(version, plain_events=version < 5 and self.options.events_as_data)

    def token(self) -> Token:
        """Returns a token that this connection has not used before."""
        self._next_token += 1
        return Token(self._next_token)

    def call(self, request: Request[Any], answer: Answer | None = None) -> None:
        """Sends a request to the gateway; `answer`, where it is given, is called with the outcome."""
        token = self.token() if answer is None else self.expect(answer)
        self.effects.append(Call(request=request, token=token))

    def expect(self, answer: Answer) -> Token:
        """Returns a token for an effect of whose outcome `answer` wants to know."""
        token = self.token()
        self._answers[token] = answer
        return token

    def answered(self, token: Token, outcome: Outcome, now_ms: int) -> None:
        """Hands the outcome of a call to its caller."""
        answer = self._answers.pop(token, None)
        if answer is not None:
            answer(outcome, now_ms)

    def send(self, packet: Packet) -> bool:
        """Encodes and sends a packet; False, and nothing sent, when the client takes none as large (MQTT-3.1.2-24)."""
        encoded = encode(packet, self.version)
        if len(encoded) > self.packet_bytes_max:
            return False
        self.out.append(encoded)
        return True

    def forget(self) -> None:
        """Forgets who waits for answers."""
        self._answers.clear()

    def send_or(self, packet: Packet, shorter: Packet) -> None:
        """Sends a packet, or a shorter one to a client that takes none as large."""
        if not self.send(packet):
            self.send(shorter)

    def close(self) -> None:
        """Makes the present content of `out` the last that the client receives."""
        if self._last_words is None:
            self._last_words, self.out = self.out, []

    def take_output(self) -> bytes:
        """Returns all output since the last call. A single piece, such as a batch of many clients, is not copied."""
        if not self.out and self._last_words is None:
            return b""
        out, self.out = self.out, []
        if self._last_words is not None:
            out, self._last_words = self._last_words, []
        if not out:
            return b""
        self.takes += 1
        return out[0] if len(out) == 1 else b"".join(out)

    def take_effects(self) -> list[Effect]:
        """Returns all effects since the last call."""
        effects = self.effects
        if effects:
            self.effects = []
        return effects
