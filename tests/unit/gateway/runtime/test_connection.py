"""The stream shell, over a transport and a hub of the test's own."""

from types import SimpleNamespace

import pytest

from gateway.domain.errors import Cause
from gateway.domain.principal import Principal
from gateway.port.adapter import DONE, Close, ConsumerId, Deliveries, HandOver, Publish, Token
from gateway.runtime.connection import CLOCK_STEP_MS, LINGERING_MAX, LONG_READ_S, Connection
from gateway.runtime.endpoint import OUTSTANDING_BYTES_MAX, ListenerContext
from gateway.runtime.unread import CLOSE_TIMEOUT_S, STALL_TIMEOUT_S, UnreadBudget
from gateway.security.limits import REFUSING_COUNT_MAX, ConnectionLimiter
from gateway.security.limits_settings import LimitsConfig
from store.api.message import Message
from store.base.listening import PeerBudget
from tests.support.gateway.connection_rig import ConnectionHub, ConnectionTransport, EchoAdapter, Factory, Shown
from tests.support.process.clock import Clock


class OtherHolder:
    def __init__(self, unread_bytes):
        self.unread_now = lambda: unread_bytes
        self.cut_off = False

    def cancel(self):
        self.cut_off = True


@pytest.fixture
def hub():
    return ConnectionHub()


@pytest.fixture
def connection(hub):
    factory = Factory()
    connection = Shown(hub, ListenerContext("test", "test", factory, None))
    connection.shown = ConnectionTransport()
    connection.connection_made(connection.shown)
    assert factory.info.loopback
    return connection


def test_a_read_is_published_and_its_outcome_answered(hub, connection):
    connection.data_received(b"hello")
    [(effect, size)] = hub.published
    assert (effect.messages[0].body, size) == (b"hello", 5)
    connection.published(Token(1), DONE, size)
    assert connection.shown.written == [b"done"]
    assert connection.outstanding_count == connection.outstanding_bytes == 0


class Silent(EchoAdapter):
    """Nothing comes of what it is given."""

    def receive(self, data, *, now_ms):
        return ()


def test_what_strangers_have_sent_in_vain_counts_in_one_budget_of_the_process(hub, monkeypatch):
    budget = PeerBudget(100_000)
    monkeypatch.setattr("gateway.runtime.connection.UNAUTHENTICATED", budget)
    nobody = Principal(name="")
    hub.unauthenticated = lambda _: nobody
    hub.connection_limiter = ConnectionLimiter(LimitsConfig(), 100, now_ms=0)
    found = []
    for _ in range(20):
        one = Shown(hub, ListenerContext("test", "test", Factory(), None))
        one.shown = ConnectionTransport()
        one.connection_made(one.shown)
        one.adapter = Silent()
        one.data_received(bytes(8_000))
        assert budget.held_bytes <= 100_000
        found.append(one)
    cut_off = [one for one in found if one.shown.aborted]
    assert len(cut_off) == 20 - 12
    last = next(one for one in found if not one.shown.aborted)
    last.principal = Principal(name="ada")  # it has said who it is
    last.data_received(bytes(50_000))
    assert budget.held_bytes == 11 * 8_000
    for one in found:
        one.connection_lost(None)
    assert budget.held_bytes == 0


def test_a_message_that_came_in_many_reads_counts_as_a_whole(hub, connection):
    connection.adapter.effects = [Publish([Message("a", b"x" * 500_000)], Token(1))]
    connection.data_received(b"end")
    assert connection.outstanding_bytes == 500_000


def test_it_is_not_read_while_its_share_is_full(hub, connection):
    connection.data_received(b"x" * OUTSTANDING_BYTES_MAX)
    assert not connection.shown.reading
    connection.published(Token(1), DONE, OUTSTANDING_BYTES_MAX)
    assert connection.shown.reading


def test_it_is_not_read_while_its_adapter_wants_nothing(connection):
    connection.adapter.wants_data = False
    connection.data_received(b"x")
    assert not connection.shown.reading
    connection.adapter.wants_data = True
    connection.flush()
    assert connection.shown.reading


def test_two_reasons_for_not_reading_are_two_reasons(hub, connection):
    connection.data_received(b"x" * OUTSTANDING_BYTES_MAX)
    hub.crowded = True
    connection.flush()
    assert hub.waiting == [connection]
    hub.crowded = False
    connection.flush()  # the hub's call: the crowd is over, the share still full
    hub.crowded = True
    connection.published(Token(1), DONE, OUTSTANDING_BYTES_MAX)
    assert hub.waiting == [connection, connection]
    hub.crowded = False
    connection.flush()
    assert connection.shown.reading


def test_a_peer_that_does_not_read_is_not_read_from_nor_delivered_to(hub, connection):
    connection.consumers.add(ConsumerId(7))
    connection.pause_writing()
    assert not connection.shown.reading
    assert connection.deliver(Deliveries(None, [0], [()])) == 0
    connection.resume_writing()
    assert connection.shown.reading
    assert hub.woken == [connection.subscriber, 7]
    assert hub.timers[-1].cancelled


def test_a_peer_that_never_reads_is_cut_off(hub, connection):
    connection.pause_writing()
    hub.timers[-1].work()
    assert connection.shown.aborted


def test_a_peer_that_reads_slowly_is_not_cut_off(hub, connection):
    connection.shown.unread_bytes = 900_000
    connection.pause_writing()
    for left_bytes in (600_000, 590_000):
        connection.shown.unread_bytes = left_bytes
        hub.timers[-1].work()
        assert not connection.shown.aborted
    connection.shown.unread_bytes -= 100  # in a minute
    hub.timers[-1].work()
    assert connection.shown.aborted


@pytest.mark.parametrize("ended", [False, True])
def test_a_peer_that_reads_the_last_response_slowly_gets_all_of_it(hub, connection, ended):
    connection.ended = ended
    connection.shown.unread_bytes = 900_000
    before = len(hub.timers)
    connection.close("")
    (stall,) = [timer for timer in hub.timers[before:] if timer.seconds == CLOSE_TIMEOUT_S]
    for left_bytes in range(800_000, -1, -100_000):
        for _ in range(3):  # reads the kernel's buffer first
            stall.work()
            stall = hub.timers[-1]
        connection.shown.unread_bytes = left_bytes
    stall.work()
    assert not connection.shown.aborted
    hub.timers[-1].work()  # all is read, and the peer does not go
    assert connection.shown.aborted


def test_a_peer_that_does_not_read_the_last_response_is_cut_off(hub, connection):
    connection.shown.unread_bytes = 900_000
    connection.close("")
    (stall,) = [timer for timer in hub.timers if timer.seconds == CLOSE_TIMEOUT_S]
    for _ in range(int(STALL_TIMEOUT_S / CLOSE_TIMEOUT_S)):
        assert not connection.shown.aborted
        stall.work()
        stall = hub.timers[-1]
    assert connection.shown.aborted


def test_the_connection_that_holds_most_output_makes_way_for_others(hub, connection):
    """Of what the socket does not take and what the adapter holds, over all connections of a process."""
    hub.unread = UnreadBudget(1_000_000)
    assert 2 * hub.write_buffer_bytes_max < 300_000
    hub.unread.hold(OtherHolder(300_000), connection._network, 300_000)
    connection._responder = SimpleNamespace(unread_bytes=400_000)
    connection.shown.unread_bytes = 300_000
    connection.flush()
    assert hub.unread.held_bytes == 700_000
    connection.pause_writing()
    assert hub.unread.held_bytes == 1_000_000
    assert not connection.shown.aborted
    connection._responder.unread_bytes += 1
    connection.data_received(b"x")
    assert connection.shown.aborted
    assert hub.unread.held_bytes == 300_000
    connection.connection_lost(None)
    assert hub.unread.held_bytes == 300_000


def test_output_that_is_read_counts_no_more(hub, connection):
    connection._responder = SimpleNamespace(unread_bytes=0)
    connection.shown.unread_bytes = 300_000
    connection.pause_writing()
    assert hub.unread.held_bytes == 300_000
    connection.resume_writing()
    assert hub.unread.held_bytes == 0


def test_output_of_a_connection_that_closes_counts_until_it_is_read(hub, connection):
    connection.shown.unread_bytes = 300_000
    connection.close("")
    peer = connection.shown.protocol
    hub.timers[-1].work()  # the connection is told of its end
    assert hub.unread.held_bytes == 300_000
    peer.resume_writing()
    assert hub.unread.held_bytes == 0
    peer.connection_lost(None)
    assert hub.lingering == 0


def test_of_connections_that_close_who_holds_most_is_cut_off(hub, connection):
    hub.unread = UnreadBudget(1_000_000)
    hub.unread.hold(OtherHolder(900_000), connection._network, 900_000)
    connection.shown.unread_bytes = 950_000
    connection.close("")
    assert connection.shown.aborted
    assert hub.unread.held_bytes == 900_000


@pytest.mark.parametrize("ended", [False, True])
def test_what_is_not_read_of_a_connection_that_closes_is_given_back_with_it(hub, connection, ended):
    connection.ended = ended  # then nothing lingers
    connection.shown.unread_bytes = 300_000
    connection.close("")
    assert hub.unread.held_bytes == 300_000
    (connection if ended else connection.shown.protocol).connection_lost(None)
    assert hub.unread.held_bytes == 0


def test_output_of_protocols_without_long_responses_does_not_count(hub, connection):
    """A burst to many healthy subscribers waits in their sockets, and is bounded there."""
    connection.shown.unread_bytes = 300_000
    connection.pause_writing()
    assert hub.unread.held_bytes == 0


def test_another_adapter_goes_on_with_the_connection_as_a_strangers(hub, connection):
    first = connection.adapter
    hub.others = {"other": ListenerContext("other", "q", Factory(), None)}
    connection.principal = Principal(name="alice")
    first.effects = [HandOver(listener="other", data=b"what it was")]
    connection.data_received(b"x")
    second = connection.adapter
    assert second is not first
    assert (second.heard, connection.protocol, connection.listener_name) == (b"what it was", "q", "other")
    assert connection.principal.name == ""
    assert [effect.messages[0].body for effect, _ in hub.published] == [b"what it was"]
    assert (connection.flow.accepted, hub.metrics.flow("test").open) == (1, -1)  # this hub counts none that begin


def test_a_connection_with_requests_under_way_is_not_handed_over(hub, connection):
    hub.others = {"other": ListenerContext("other", "q", Factory(), None)}
    connection.data_received(b"published")
    connection.adapter.effects = [HandOver(listener="other", data=b"x")]
    connection.data_received(b"x")
    assert connection.shown.closing
    assert len(hub.published) == 1


def test_an_adapters_bug_ends_its_connection_alone(hub, connection):
    connection.data_received(b"bug")
    assert connection.shown.closing
    assert not hub.published


def test_a_will_is_published_when_the_connection_is_gone_and_nothing_answered(hub, connection):
    connection.data_received(b"x")
    connection.connection_lost(None)
    assert [effect.messages[0].body for effect, _ in hub.published] == [b"x", b"will"]
    connection.published(Token(1), DONE, 1)
    connection.data_received(b"late")
    assert not connection.shown.written
    assert len(hub.published) == 2
    assert hub.connection is None


def test_a_half_closed_peer_gets_its_answers_and_then_the_end(hub, connection):
    connection.data_received(b"x")
    assert connection.eof_received()
    assert hub.ended_waits == [connection]
    connection.flush()
    assert not connection.shown.closing
    connection.published(Token(1), DONE, 1)
    assert connection.shown.written == [b"done"]
    assert connection.shown.closing


def test_who_asked_nothing_is_closed_at_its_end(connection):
    assert not connection.eof_received()


def test_a_tick_comes_when_it_is_due(hub, connection):
    connection.adapter.due = 0
    connection.flush()
    hub.timers[-1].work()
    assert connection.adapter.ticks == 1


def test_a_timer_that_is_early_looks_again(hub, connection):
    connection.adapter.due = 1 << 60
    connection.flush()
    first = len(hub.timers)
    connection.adapter.due = (1 << 60) + 1
    connection.flush()
    assert len(hub.timers) == first
    hub.timers[-1].work()
    assert connection.adapter.ticks == 0
    assert len(hub.timers) == first + 1


@pytest.mark.parametrize("step_ms", [-3_600_000, -CLOCK_STEP_MS - 1, CLOCK_STEP_MS, CLOCK_STEP_MS + 1, 3_600_000])
def test_silence_does_not_count_when_the_clock_was_set(hub, monkeypatch, step_ms):
    lead = Clock()
    monkeypatch.setattr("gateway.runtime.connection.lead_ms", lead)
    connection = Shown(hub, ListenerContext("test", "test", Factory(), None))
    connection.shown = ConnectionTransport()
    connection.connection_made(connection.shown)
    connection.adapter.heard, connection.adapter.due = None, 1 << 60
    connection.flush()
    lead.ms += step_ms
    hub.timers[-1].work()
    assert connection.adapter.heard == (None if step_ms == CLOCK_STEP_MS else b"")
    connection.adapter.heard = None
    hub.timers[-1].work()
    assert connection.adapter.heard is None
    assert connection.adapter.ticks == 0


def test_an_adapter_that_measures_time_is_told_by_how_much_the_clock_was_set(hub, monkeypatch):
    lead = Clock()
    monkeypatch.setattr("gateway.runtime.connection.lead_ms", lead)
    connection = Shown(hub, ListenerContext("test", "test", Factory(), None))
    connection.shown = ConnectionTransport()
    connection.connection_made(connection.shown)
    told = []
    connection.adapter.clock_set = told.append
    connection.adapter.due = 1 << 60
    for step_ms in (-3_600_000, 0, CLOCK_STEP_MS, 3_600_000):
        connection.flush()
        lead.ms += step_ms
        hub.timers[-1].work()
    assert told == [-3_600_000, 3_600_000]


def another(hub):
    connection = Shown(hub, ListenerContext("test", "test", Factory(), None))
    connection.shown = ConnectionTransport()
    connection.connection_made(connection.shown)
    return connection


def test_one_too_many_has_a_while_to_be_told_why(hub, connection):
    late = another(hub)
    assert (connection.turned_away, late.turned_away.cause) == (None, Cause.QUOTA)
    assert not late.shown.closing
    late._turn_away()
    assert late.shown.closing


def test_of_many_too_many_some_are_cut_off(hub, connection):
    for _ in range(REFUSING_COUNT_MAX):
        assert not another(hub).transport.closing
    last = another(hub)
    assert last.transport.aborted
    last.connection_lost(None)


# ---- how fast it may send


def test_a_read_that_takes_long_is_followed_by_a_turn_of_the_others(hub, monkeypatch):
    spent_s = iter([0.0, LONG_READ_S / 2, 1.0, 1.0 + LONG_READ_S, 2.0, 2.0 + LONG_READ_S, 3.0, 4.0])
    monkeypatch.setattr("gateway.runtime.connection.thread_time", lambda: next(spent_s))
    connection = another(hub)
    connection.data_received(b"x")
    assert connection.shown.reading
    connection.data_received(b"x")
    assert not connection.shown.reading
    connection.published(Token(1), DONE, 1)  # an outcome does not end the pause
    assert not connection.shown.reading
    (turn,) = [timer for timer in hub.timers if timer.work == connection.resume_reading]
    connection.data_received(b"x")  # it had been read already
    assert [timer for timer in hub.timers if timer.work == connection.resume_reading] == [turn]
    turn.work()
    assert connection.shown.reading
    connection.data_received(b"x")
    connection.connection_lost(None)
    assert hub.timers[-1].cancelled


@pytest.fixture
def clock(monkeypatch):
    clock = Clock(1_000_000)
    for module in ("gateway.runtime.connection", "gateway.runtime.endpoint"):
        monkeypatch.setattr(f"{module}.now_ms", clock)
    return clock


def test_a_connection_that_sends_too_much_is_not_read_for_a_while(hub, clock):
    hub.limits = LimitsConfig(bytes_per_s=1_000, bytes_burst=500)
    connection = another(hub)
    connection.data_received(b"x" * 500)
    assert connection.shown.reading
    connection.data_received(b"x" * 300)
    assert not connection.shown.reading
    (pause,) = [timer for timer in hub.timers if timer.work == connection.resume_reading]
    connection.published(Token(1), DONE, 800)  # an outcome does not end the pause
    assert len(hub.timers) == 1
    clock.ms += 299
    pause.work()
    assert not connection.shown.reading
    clock.ms += 1
    hub.timers[-1].work()
    assert connection.shown.reading
    connection.connection_lost(None)


def test_a_pause_ends_with_its_connection(hub, clock):
    hub.limits = LimitsConfig(messages_per_s=0.1, messages_burst=1)
    connection = another(hub)
    connection.data_received(b"1")
    connection.data_received(b"2")
    assert not connection.shown.reading
    connection.connection_lost(None)
    assert connection._pause.cancelled


def test_what_comes_too_fast_is_refused_where_that_is_asked_for(hub, clock):
    hub.limits = LimitsConfig(messages_per_s=1, messages_burst=1, on_excess="refuse")
    connection = another(hub)
    for _ in range(3):
        connection.data_received(b"x")
    assert connection.shown.reading
    assert {index: (refusal.cause, refusal.retry_after_ms) for index, refusal in hub.denied.items()} == {
        0: (Cause.RATE, 1_000)
    }
    clock.ms += 1_000
    connection.data_received(b"x")
    assert hub.denied == ()


def test_one_that_is_not_read_is_not_silent(hub, clock, connection):
    connection.adapter.due = clock.ms
    connection.adapter.wants_data = False
    connection.adapter.effects = [Close(reason="")]
    connection.flush()
    connection.adapter.heard = None
    connection._fire()
    assert connection.adapter.heard == b""


@pytest.mark.parametrize("end", ["shut_down", "supersede"])
def test_it_is_told_of_its_end(hub, connection, end):
    getattr(connection, end)()
    assert connection.shown.closing
    hub.timers[-2].work()  # a peer that does not take the last words
    assert connection.shown.aborted


def test_few_connections_wait_for_their_peers_to_go(hub, connection):
    hub.lingering = LINGERING_MAX - 1
    connection.close("enough")
    assert connection.shown.protocol is not None
    assert not connection.shown.closed
    assert hub.lingering == LINGERING_MAX
    other = Connection(hub, connection._listener)
    other.connection_made(transport := ConnectionTransport())
    other.close("enough")
    assert transport.closed
    connection.shown.protocol.connection_lost(None)
    assert hub.lingering == LINGERING_MAX - 1


def test_no_connection_has_a_dictionary(hub):
    shell = Connection(hub, ListenerContext("test", "test", Factory(), None))
    shell.connection_made(ConnectionTransport())
    assert not hasattr(shell, "__dict__")
    assert not hasattr(shell.subscriber, "__dict__")
