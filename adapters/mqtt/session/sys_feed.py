"""The gateway's own topics, `$SYS/...`, for a client that has subscribed to them. Their messages are not in the log.

The present values of `$SYS/broker/...` come as retained messages do, and every `sys_interval_s` those that have changed
since are sent as live messages are, at QoS 0. A client that does not read is sent nothing meanwhile.

`$SYS/session/lost` is of the client's own session: a message for each lost range of the log that it skips.
"""

from adapters.mqtt.connecting.connection_context import ConnectionContext
from adapters.mqtt.session.encoded import encode_message, size_bytes
from adapters.mqtt.session.subscriptions import Subscription, Subscriptions
from gateway.domain.batch import LostRange
from gateway.domain.errors import Refusal
from gateway.domain.filters import FilterTrie
from gateway.port.adapter import Outcome, SubscriptionId
from gateway.port.reads import Retained, RetainedPage
from store.api.message import Message
from store.format.frame import LogOffset, Position, group_of

LOST_COUNT_MAX = 64  # messages about lost ranges between two times that the client's output is taken

_ALL = "$SYS/#"
_LOST = "$SYS/session/lost"


class SysFeed:
    """Asks for all values once an interval, while there is a subscription that wants some; tells of lost ranges."""

    __slots__ = (
        "_awaiting",
        "_context",
        "_due_ms",
        "_last_values",
        "_lost_count",
        "_lost_held",
        "_lost_takes",
        "_subscriptions",
        "_trie",
        "_written_at",
    )

    def __init__(self, context: ConnectionContext, subscriptions: Subscriptions) -> None:
        self._context = context
        self._subscriptions = subscriptions
        self._trie: FilterTrie[SubscriptionId] = FilterTrie()
        self._due_ms: int | None = None  # when values are asked for next; None: no subscription wants any
        self._last_values: dict[str, bytes] | None = None  # the last values; None: a new subscriber gets all anyway
        self._awaiting = False
        self._written_at = -1  # `context.takes` when values were sent last
        self._lost_takes = -1  # `context.takes` when a lost range was told last
        self._lost_count = 0  # <= LOST_COUNT_MAX; told since then
        self._lost_held: dict[int, tuple[LogOffset, LogOffset]] = {}  # by log: ranges to report when output was taken

    def add(self, subscription: Subscription) -> None:
        """Begins to send values to a subscription."""
        self._trie.add(subscription.pattern, subscription.sub)
        if self._context.options.sys_interval_s and self._due_ms is None:
            self._due_ms = 0

    def remove(self, subscription: Subscription) -> None:
        """Stops sending values to a subscription."""
        self._trie.discard(subscription.pattern, subscription.sub)
        if not len(self._trie):
            self._due_ms = self._last_values = None

    def deadline_ms(self) -> int | None:
        """Returns when `pump` is due; 0: at once."""
        return None if self._awaiting else self._due_ms

    def pump(self, now_ms: int) -> None:
        """Asks for the values if it is time to."""
        if self._lost_held and self._lost_takes != self._context.takes:
            held, self._lost_held = self._lost_held, {}
            for start, end in held.values():
                self._send_lost(start, end, now_ms)
        if self._due_ms is None or now_ms < self._due_ms or self._awaiting:
            return
        self._due_ms = now_ms + self._context.options.sys_interval_s * 1_000
        if self._written_at != self._context.takes:
            self._awaiting = True
            self._context.call(Retained(pattern=_ALL), self._found)

    def lose(self, lost: LostRange, now_ms: int) -> None:
        """Tells of a range of the log that the session was led past. Of too many at once, a log's become one."""
        group = group_of(lost.frame)
        if self._lost_count < LOST_COUNT_MAX or self._lost_takes != self._context.takes:
            self._send_lost(lost.frame, lost.end, now_ms)
        else:
            start, _ = self._lost_held.get(group, (lost.frame, lost.end))
            self._lost_held[group] = start, lost.end

    def _send_lost(self, start: LogOffset, end: LogOffset, now_ms: int) -> None:
        context = self._context
        subs = tuple(sorted(self._trie.match(_LOST)))
        if not subs:
            return
        try:
            context.permissions.check("subscribe", _LOST)
        except Refusal:
            return
        if self._lost_takes != context.takes:
            self._lost_takes, self._lost_count = context.takes, 0
        self._lost_count += 1
        body = b'{"from":"%b","to":"%b"}' % (str(Position(start, 0)).encode(), str(Position(end, 0)).encode())
        message = Message(_LOST, body, now_ms, "mqtt", qos=0, content_type="application/json")
        plan = self._subscriptions.plan(subs)
        assert plan is not None, "an ended subscription wants nothing"
        piece = encode_message(message, plan, context.dialect, now_ms, retained=False)
        if size_bytes(piece) <= context.packet_bytes_max:
            context.out.append(piece[1])

    def _found(self, outcome: Outcome, now_ms: int) -> None:
        self._awaiting = False
        if outcome.error is not None or self._due_ms is None:
            return
        page: RetainedPage = outcome.value
        said, context = self._last_values, self._context
        self._last_values = {message.address: message.body for message in page.messages}
        if said is None:
            return
        for message in page.messages:
            subs = tuple(sorted(self._trie.match(message.address)))
            if not subs or said.get(message.address) == message.body:
                continue
            plan = self._subscriptions.plan(subs)
            assert plan is not None, "an ended subscription wants nothing"
            piece = encode_message(message, plan, context.dialect, now_ms, retained=False)
            if size_bytes(piece) <= context.packet_bytes_max:
                context.out.append(piece[1])
                self._written_at = context.takes
