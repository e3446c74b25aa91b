"""Reads the log itself, over the store's gRPC service, to say what is really in it."""

from deploy.demo.plan import TOPIC, Seen, Target
from store.api.message import decode
from store.api.queues import Bounds
from store.remoting.reader import RemoteReader


class LogReader:
    """Follows the telemetry topic. Blocking: for one thread of its own at a time."""

    def __init__(self, target: Target, run: str) -> None:
        self.seen = Seen(run)
        self._reader = RemoteReader(target.rpc, retry_s=5.0)
        self._offsets: dict[int, int] = {}

    def skip(self) -> None:
        """Passes over what is there now: it is of earlier runs."""
        self._offsets = {queue: bounds.next for queue, bounds in self._bounds().items()}

    def advance(self) -> None:
        """Reads what has come since the last time."""
        for queue, bounds in self._bounds().items():
            start = max(self._offsets.get(queue, 0), bounds.first)
            if start >= bounds.next:
                continue
            for frame, rows, _ in self._reader.fetch(queue, start, bounds.next):
                for row in rows:
                    self.seen.add(decode(frame.record(row)).body)
            self._offsets[queue] = bounds.next

    def _bounds(self) -> dict[int, Bounds]:
        queues = self._reader.topics().get(TOPIC, ())
        return self._reader.bounds(queues) if queues else {}

    def close(self) -> None:
        """Closes the connection."""
        self._reader.close()
