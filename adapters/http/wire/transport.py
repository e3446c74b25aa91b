"""The interface that the two versions of HTTP have in common, for everything above them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, NewType, Protocol, TypeAlias

from adapters.http.wire.request import HttpRequest
from adapters.http.wire.response import Response

Exchange = NewType("Exchange", int)  # one request and its response; the HTTP/2 stream, the n-th request of HTTP/1.1


class Arrived(NamedTuple):
    """A whole request: answer it with `respond`, or `begin` and `finish`."""

    exchange: Exchange
    request: HttpRequest


class Gone(NamedTuple):
    """The peer has given an exchange up; later output to it is dropped."""

    exchange: Exchange


class Drained(NamedTuple):
    """A response that had no room has some again."""

    exchange: Exchange


class Upgrade(NamedTuple):
    """HTTP/1.1 ends here: HTTP/2 begins with this request as its stream 1 (RFC 7540, 3.2), or a WebSocket."""

    request: HttpRequest
    settings: bytes | None  # HTTP2-Settings, base64url; None: a WebSocket
    rest: bytes  # bytes that came behind the request


Event: TypeAlias = Arrived | Gone | Drained | Upgrade
# Returns the refusal of a request whose body has not come, where its head alone decides it (RFC 9110, 10.1.1).
Judge: TypeAlias = Callable[[HttpRequest], Response | None]


def undecided(_head: HttpRequest) -> Response | None:
    """Returns None: the head decides nothing."""
    return None


class Transport(Protocol):
    """One connection's framing. A call about an exchange that has ended does no harm."""

    ordered: bool  # requests take effect in their order (HTTP/1.1 pipelining)

    @property
    def wants_data(self) -> bool:
        """False: nothing more is taken in for now."""

    @property
    def full(self) -> bool:
        """Returns whether so much output waits that its sources should wait, too."""

    @property
    def unread_bytes(self) -> int:
        """Returns the bytes held of responses that the peer does not take; those of events need not count."""

    @property
    def arriving_bytes(self) -> int:
        """Returns the bytes held of requests that are not all there."""

    @property
    def busy(self) -> bool:
        """Returns whether an exchange is in progress, or part of one."""

    @property
    def finished(self) -> bool:
        """Returns whether the output is complete: the connection can be closed once it is written."""

    def receive(self, data: bytes, *, now_ms: int) -> Sequence[Event]:
        """Takes bytes from the peer. Malformed requests are answered here, and `finished` follows."""

    def respond(self, exchange: Exchange, response: Response, *, now_ms: int) -> None:
        """Sends a whole response."""

    def begin(self, exchange: Exchange, response: Response, *, now_ms: int) -> None:
        """Sends the head of a response whose body follows by `send` and ends by `finish`."""

    def send(self, exchange: Exchange, data: bytes, *, now_ms: int) -> None:
        """Sends a part of the body."""

    def finish(self, exchange: Exchange, *, now_ms: int) -> None:
        """Ends the body."""

    def awaits(self, exchange: Exchange) -> bool:
        """Returns whether the peer still waits for the response to a request that has arrived."""

    def room(self, exchange: Exchange) -> int:
        """Returns how many bytes of a body are welcome now. `Drained` follows where there is no room."""

    def refuse_arriving(self) -> None:
        """Answers requests that are not all there with 503, and holds nothing of them any more."""

    def begin_shutdown(self) -> None:
        """Refuses further requests; those in progress may end."""

    def tick(self, *, now_ms: int) -> Sequence[Event]:
        """Handles the timers due, as `deadline_ms` has come."""

    def deadline_ms(self) -> int | None:
        """Returns when a request or a response in progress takes too long."""

    def take_output(self) -> bytes:
        """Returns the bytes to write now."""

    def release(self) -> None:
        """Lets go of everything, as the connection is gone and nothing more is called: no collector has to find it."""
