"""Events on a WebSocket: the same streams as those of server-sent events, each event a text message."""

from typing import Final

from adapters.cloudevents import to_structured
from adapters.http.handlers.sse import EventStream, EventStreams, encoded_once
from adapters.http.wire.event_socket import PING, text_frame
from gateway.domain.batch import Batch, LostRange

MEMO: Final = "http.ws"


class SocketStreams(EventStreams):
    """The event stream of one WebSocket."""

    heartbeat = PING

    def send_beginning(self, stream: EventStream, now_ms: int) -> None:
        """Says nothing: the binding has no positions."""

    def encoded(self, batch: Batch, index: int, now_ms: int) -> bytes:
        """Returns a message as a frame, b"" for one that has expired."""
        return encoded_once(batch, index, MEMO, _frame, now_ms)

    def named(self, event: bytes, elsewhere: bytes) -> bytes:
        """Returns a frame as it is: it has no id."""
        return event

    def send_lost_range(self, lost: LostRange, now_ms: int) -> None:
        """Says nothing: the binding has no word for it."""


def _frame(batch: Batch, index: int) -> bytes:
    return text_frame(to_structured(batch.message(index)))
