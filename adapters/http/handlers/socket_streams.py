"""Events on a WebSocket: the same streams as those of server-sent events, each event a text message."""

from typing import Final

from adapters.cloudevents import to_structured
from adapters.http.handlers.sse import EventStream, EventStreams
from adapters.http.wire.event_socket import PING, text_frame
from gateway.domain.batch import Batch, LostRange

MEMO: Final = "http.ws"


class SocketStreams(EventStreams):
    """The event stream of one WebSocket."""

    heartbeat = PING

    def send_beginning(self, stream: EventStream, now_ms: int) -> None:
        """Says nothing: the binding has no positions."""

    def encoded(self, batch: Batch, index: int, elsewhere: bytes) -> bytes:
        """Returns a message as a frame, encoded once for all its subscribers."""
        frames: dict[int, bytes] = batch.memo.setdefault(MEMO, {})
        found = frames.get(index)
        if found is None:
            found = frames[index] = text_frame(to_structured(batch.message(index)))
        return found

    def send_lost_range(self, lost: LostRange, now_ms: int) -> None:
        """Says nothing: the binding has no word for it."""
