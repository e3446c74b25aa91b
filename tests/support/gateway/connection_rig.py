"""A connection over a transport of the test, with an adapter that echoes."""

from types import SimpleNamespace

from gateway.domain.principal import Principal
from gateway.ops.metrics import Metrics
from gateway.port.adapter import Close, Publish, Token
from gateway.publishing.timer_secrets import TimerSecrets
from gateway.runtime.connection import Connection
from gateway.runtime.turn import ReadBatch
from gateway.runtime.unread import UnreadBudget
from gateway.security.limits import ConnectionLimiter
from gateway.security.limits_settings import LimitsConfig
from store.api.message import Message


class Timer:
    def __init__(self, work, seconds=0):
        self.work = work
        self.seconds = seconds
        self.cancelled = False

    def cancel(self):
        self.cancelled = True


class ConnectionHub:
    write_buffer_bytes_max = 1000
    others = {}  # noqa: RUF012
    random = None
    lingering = 0

    def __init__(self):
        self.metrics = Metrics(process=False)
        self.timers = []
        self.unread = UnreadBudget(1 << 30)
        self.published = []
        self.woken = []
        self.waiting = []
        self.limits, self.forwarding = LimitsConfig(), None
        self.timer_secrets = TimerSecrets()
        self.connection_limiter = ConnectionLimiter(self.limits, 1, now_ms=0)
        self.crowded = False
        self.body_bytes_max = 1 << 20
        self.calls = 0
        self.ingest = self.fanout = self.queues = self.access = self
        self.pauses = SimpleNamespace(slept=False)
        self.ended_waits = []  # of these connections, the waits for answers have ended
        self.answers = SimpleNamespace(left=self.ended_waits.append)
        self.turn = ReadBatch(self)

    def unauthenticated(self, _protocol):
        return Principal(name="")

    def next_id(self):
        return 1

    def joined(self, connection):
        self.connection = connection

    def left(self, connection):
        self.connection = None

    def later(self, seconds, work):
        self.timers.append(Timer(work, seconds))
        return self.timers[-1]

    def publish(self, _endpoint, effect, size_bytes, denied=()):
        self.published.append((effect, size_bytes))
        self.denied = denied

    def wake(self, subscriber):
        self.woken.append(subscriber)

    def ready(self, _endpoint, effect):
        self.woken.append(effect.consumer)

    def paused(self, endpoint):
        self.waiting.append(endpoint)

    def calls_under_way(self, _endpoint):
        return self.calls


class ConnectionTransport:
    def __init__(self):
        self.written = []
        self.reading = True
        self.closing = self.aborted = self.closed = False
        self.protocol = None
        self.unread_bytes = 0

    def get_extra_info(self, name):
        return {"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 6)}.get(name)

    def set_write_buffer_limits(self, high):
        self.high = high

    def is_closing(self):
        return self.closing

    def write(self, data):
        self.written.append(data)

    def get_write_buffer_size(self):
        return self.unread_bytes

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def set_protocol(self, protocol):
        self.protocol = protocol

    def write_eof(self):
        self.closing = True

    def close(self):
        self.closing = self.closed = True

    def abort(self):
        self.closing = self.aborted = True


class EchoAdapter:
    """Publishes every read as one message and says what it was told."""

    wants_data = True

    def __init__(self):
        self.out = b""
        self.due = None
        self.ticks = 0
        self.effects = None

    def receive(self, data, *, now_ms):
        self.heard = data
        if data == b"bug":
            raise KeyError("a bug of ours")
        return self.effects or [Publish([Message("a", bytes(data))], Token(1))]

    def completed(self, token, outcome, *, now_ms):
        self.out += b"done"
        return ()

    def deliver(self, deliveries, *, now_ms):
        return len(deliveries.picks)

    def tick(self, *, now_ms):
        self.ticks += 1
        return ()

    def deadline_ms(self):
        return self.due

    def lost(self, *, now_ms):
        return [Publish([Message("a", b"will")], Token(2))]

    def shutdown(self, *, now_ms):
        return [Close()]

    superseded = shutdown

    def take_output(self):
        out, self.out = self.out, b""
        return out


class Factory:
    def connect(self, info, options, *, random):
        self.info = info
        return EchoAdapter()


class Shown(Connection):
    """A connection whose transport is `shown`, also when it has let go of it."""
