"""The datagram shell, over a hub of the test's own, while the clock is set."""

import socket

import pytest

from gateway.port.adapter import Deliveries, Outcome, Token
from gateway.runtime.datagram import DatagramEndpoint
from gateway.runtime.endpoint import CLOCK_STEP_MS, ListenerContext
from tests.support.gateway.connection_rig import ConnectionHub
from tests.support.process.clock import Clock

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000


class Told:
    """An adapter that notes its calls."""

    def __init__(self):
        self.calls = []
        self.due = None

    def receive(self, datagrams, *, now_ms):
        self.calls.append(("receive", now_ms))
        return ()

    def completed(self, token, outcome, *, now_ms):
        self.calls.append(("completed", now_ms))
        return ()

    def deliver(self, deliveries, *, now_ms):
        self.calls.append(("deliver", now_ms))
        return 0

    def tick(self, *, now_ms):
        self.calls.append(("tick", now_ms))
        return ()

    def deadline_ms(self):
        return self.due

    def take_output(self):
        return ()


class TimedTold(Told):
    """One that is told when the clock is set, too."""

    def clock_set(self, by_ms):
        self.calls.append(("set", by_ms))
        if self.due is not None:
            self.due += by_ms


@pytest.fixture
def clocks(monkeypatch):
    wall, steady = Clock(), Clock(5)
    for module in ("gateway.runtime.datagram", "gateway.runtime.endpoint"):
        monkeypatch.setattr(f"{module}.now_ms", wall)
    monkeypatch.setattr("gateway.runtime.datagram.steady_ms", steady)
    return wall, steady


@pytest.fixture
def shown(clocks):
    """Makes an endpoint of an adapter, and closes it in the end."""
    hub, endpoints = ConnectionHub(), []

    def make(adapter):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
        endpoints.append(
            DatagramEndpoint(hub, ListenerContext("test", "test", None, None), sock, adapter, loopback=True)
        )
        return hub, endpoints[-1]

    yield make
    for endpoint in endpoints:
        endpoint.close("")


def call(endpoint, what):
    if what == "completed":
        endpoint.completed(Token(1), Outcome())
    elif what == "deliver":
        endpoint.deliver(Deliveries(None, [0], [()]))
    else:
        endpoint._readable()


@pytest.mark.parametrize("what", ["completed", "deliver", "receive"])
@pytest.mark.parametrize("step_ms", [-HOUR_MS, -CLOCK_STEP_MS - 1, CLOCK_STEP_MS, CLOCK_STEP_MS + 1, HOUR_MS])
async def test_an_adapter_is_told_that_the_clock_was_set_before_it_is_called(shown, clocks, what, step_ms):
    (wall, steady), adapter = clocks, TimedTold()
    _, endpoint = shown(adapter)
    wall.ms, steady.ms = wall.ms + step_ms + 500, steady.ms + 500
    if what == "receive":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"x", endpoint.address)
    call(endpoint, what)
    told = [("set", step_ms)] if abs(step_ms) > CLOCK_STEP_MS else []
    assert adapter.calls == [*told, (what, wall.ms)]
    endpoint.completed(Token(2), Outcome())
    assert adapter.calls[len(told) + 1 :] == [("completed", wall.ms)]


async def test_an_adapter_that_fails_a_delivery_goes_on_for_everybody(shown):
    class Failing(Told):
        def deliver(self, deliveries, *, now_ms):
            raise KeyError(now_ms)

    hub, endpoint = shown(Failing())
    assert endpoint.deliver(Deliveries(None, [0], [()])) == 0
    assert not endpoint.gone
    assert hub.metrics.errors("test", "internal")._value.get() == 1


async def test_small_steps_come_to_a_large_one(shown, clocks):
    (wall, _), adapter = clocks, TimedTold()
    _, endpoint = shown(adapter)
    for _ in range(4):
        wall.ms -= CLOCK_STEP_MS // 2
        endpoint.completed(Token(1), Outcome())
    assert [by_ms for name, by_ms in adapter.calls if name == "set"] == [-3 * CLOCK_STEP_MS // 2]


async def test_one_that_measures_nothing_is_not_told(shown, clocks):
    (wall, _), adapter = clocks, Told()
    _, endpoint = shown(adapter)
    wall.ms -= HOUR_MS
    endpoint.completed(Token(1), Outcome())
    assert adapter.calls == [("completed", wall.ms)]


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
async def test_a_deadline_comes_when_it_was_to_come(shown, clocks, step_ms):
    (wall, steady), adapter = clocks, TimedTold()
    hub, endpoint = shown(adapter)
    adapter.due = wall.ms + 10_000
    endpoint.flush()
    (timer,) = hub.timers
    assert timer.seconds == 10
    wall.ms, steady.ms = wall.ms + step_ms + 4_000, steady.ms + 4_000
    endpoint.completed(Token(1), Outcome())
    assert [one.seconds for one in hub.timers if not one.cancelled] == [10], "it fires when it was to fire"
    adapter.due = wall.ms + 1_000
    endpoint.flush()
    assert [one.seconds for one in hub.timers if not one.cancelled] == [1]
    wall.ms, steady.ms = wall.ms + 1_000, steady.ms + 1_000
    hub.timers[-1].work()
    assert adapter.calls[-1] == ("tick", wall.ms)
