"""`$SYS`: values as retained messages at first, and what has changed every interval."""

import pytest

from adapters.mqtt.codec.packets import Connect, Publish, Suback, Subscribe, SubscriptionRequest, Unsubscribe
from adapters.mqtt.codec.properties import Properties
from adapters.mqtt.messages.options import Options
from adapters.mqtt.session.sys_feed import LOST_COUNT_MAX
from gateway.domain.access import AccessRules, Identity, Permissions
from gateway.domain.access_settings import AccessConfig, AccessRule
from gateway.domain.batch import LostRange
from gateway.domain.errors import Cause, Refusal
from gateway.port import adapter as port
from gateway.port.adapter import Outcome
from gateway.port.reads import Retained, RetainedPage
from gateway.port.sessions import OpenedSession
from store.api.message import Message
from store.format.frame import LogOffset
from tests.support.mqtt.mqtt_driver import NOW_MS, Driver

INTERVAL_MS = 10_000


def page(**values):
    found = [Message(f"$SYS/broker/{name}", text, NOW_MS, "mqtt", "", 0, True) for name, text in values.items()]
    return Outcome(value=RetainedPage(messages=found, after=None))


class SysDriver(Driver):
    """Questions for retained messages wait in `effects`."""

    def answer_effect(self, effect):
        if isinstance(effect, port.Call) and isinstance(effect.request, Retained):
            return None
        return super().answer_effect(effect)

    def answer(self, outcome, pattern="$SYS/#"):
        (call,) = self.calls(Retained)
        assert call.request.pattern == pattern
        return [(one.topic, one.payload, one.retain) for one in self.complete(call, outcome)]


def subscribed(*patterns, version=5, options=None, **request):
    driver = SysDriver(version, options)
    driver.connect()
    requests = tuple(SubscriptionRequest(pattern=pattern, qos=1, **request) for pattern in patterns)
    (suback,) = driver.send(Subscribe(packet_id=1, requests=requests))
    assert suback == Suback(packet_id=1, codes=(1,) * len(patterns))
    return driver


def begin(driver, pattern, outcome):
    """Sends what is there as retained messages; the next report is compared with it."""
    first, second = driver.calls(Retained)
    asked = {first.request.pattern: first, second.request.pattern: second}
    assert asked.keys() == {pattern, "$SYS/#"}
    assert driver.complete(asked["$SYS/#"], outcome) == []
    return [(one.topic, one.payload, one.retain) for one in driver.complete(asked[pattern], outcome)]


@pytest.mark.parametrize("version", [4, 5])
def test_what_is_there_and_what_changes(version):
    driver = subscribed("$SYS/broker/+", version=version)
    assert driver.take(port.Subscribe) == []  # the log has none of it
    found = begin(driver, "$SYS/broker/+", page(uptime=b"0", version=b"1"))
    assert found == [("$SYS/broker/uptime", b"0", True), ("$SYS/broker/version", b"1", True)]
    assert driver.adapter.deadline_ms() == NOW_MS + INTERVAL_MS
    assert driver.tick(INTERVAL_MS) == []
    found = driver.answer(page(uptime=b"10", version=b"1", nested=b"x"))
    assert found == [("$SYS/broker/uptime", b"10", False), ("$SYS/broker/nested", b"x", False)]
    driver.tick(INTERVAL_MS)
    assert driver.answer(page(uptime=b"20", version=b"1", nested=b"x")) == [("$SYS/broker/uptime", b"20", False)]


def test_a_value_goes_once_to_overlapping_subscriptions():
    driver = SysDriver(5)
    driver.connect()
    for n, pattern in enumerate(("$SYS/#", "$SYS/broker/uptime"), 1):
        request = SubscriptionRequest(pattern=pattern, qos=0, retain_handling=2)
        driver.send(
            Subscribe(packet_id=n, requests=(request,), properties=Properties(subscription_ids=(n,))),
        )
    driver.answer(page(uptime=b"0"))
    driver.tick(INTERVAL_MS)
    (call,) = driver.calls(Retained)
    (packet,) = driver.complete(call, page(uptime=b"1"))
    assert (packet.qos, packet.properties.subscription_ids) == (0, (1, 2))


def test_retain_as_published():
    driver = subscribed("$SYS/#", retain_as_published=True, retain_handling=2)
    driver.answer(page(uptime=b"0"))
    driver.tick(INTERVAL_MS)
    assert driver.answer(page(uptime=b"1")) == [("$SYS/broker/uptime", b"1", True)]


def test_nobody_asks_when_nobody_wants_to_know():
    driver = subscribed("#", "+/broker/uptime", "$SYSTEM/#", retain_handling=2)
    assert driver.calls(Retained) == []
    assert len(driver.take(port.Subscribe)) == 3
    driver = subscribed("$SYS/#", retain_handling=2)
    driver.answer(page(uptime=b"0"))
    driver.send(Unsubscribe(packet_id=2, patterns=("$SYS/#",)))
    assert driver.take(port.Unsubscribe) == []
    assert driver.adapter.deadline_ms() is None
    driver.tick(INTERVAL_MS)
    assert driver.calls(Retained) == []


def test_it_can_be_switched_off():
    driver = subscribed("$SYS/#", options=Options(sys_interval_s=0))
    assert driver.answer(page(uptime=b"0")) == [("$SYS/broker/uptime", b"0", True)]
    assert driver.adapter.deadline_ms() is None


def test_a_client_that_does_not_read_is_sent_no_more():
    driver = subscribed("$SYS/#", retain_handling=2)
    driver.answer(page(uptime=b"0"))
    driver.tick(INTERVAL_MS)
    (call,) = driver.calls(Retained)
    driver.act(driver.adapter.completed(call.token, page(uptime=b"1"), now_ms=driver.now_ms))
    driver.now_ms += INTERVAL_MS
    driver.act(driver.adapter.tick(now_ms=driver.now_ms))
    assert driver.calls(Retained) == []
    assert [one.payload for one in driver.out()] == [b"1"]
    driver.tick(INTERVAL_MS)
    assert driver.answer(page(uptime=b"3")) == [("$SYS/broker/uptime", b"3", False)]


def test_a_session_that_is_taken_up_goes_on():
    driver = SysDriver(5)
    driver.connect(properties=Properties(session_expiry_s=100))
    request = SubscriptionRequest(pattern="$SYS/#", qos=0, retain_handling=2)
    driver.send(Subscribe(packet_id=1, requests=(request,)))
    state = driver.saved[-1].state
    again = SysDriver(5)
    again.opened = Outcome(value=OpenedSession(present=True, state=state, cursor=()))
    again.send(Connect(version=5, client_id="c1", clean=False, properties=Properties(session_expiry_s=100)))
    assert again.take(port.Subscribe) == []
    again.answer(page(uptime=b"0"))
    again.tick(INTERVAL_MS)
    assert again.answer(page(uptime=b"1")) == [("$SYS/broker/uptime", b"1", False)]


def test_what_is_refused_is_asked_for_again():
    driver = subscribed("$SYS/#", retain_handling=2)
    driver.answer(page(uptime=b"0"))
    driver.tick(INTERVAL_MS)
    assert driver.answer(Outcome(error=Refusal(Cause.UNAVAILABLE, "no"))) == []
    driver.tick(INTERVAL_MS)
    (packet,) = [one for call in driver.calls(Retained) for one in driver.complete(call, page(uptime=b"2"))]
    assert isinstance(packet, Publish)


def lose(driver, start, end):
    """Leads the session past a range of the log; messages before it that its client was not sent yet stay."""
    lost = LostRange(LogOffset(start), LogOffset(end), {1})
    assert driver.adapter.deliver(port.Deliveries(batch=lost, picks=(), subs=()), now_ms=driver.now_ms) == 0


def told(packets):
    return [(one.topic, one.payload, one.qos, one.retain) for one in packets]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("interval_s", [0, 10])
@pytest.mark.parametrize("pattern", ["$SYS/session/lost", "$SYS/#"])
def test_a_session_is_told_of_the_lost_ranges_that_it_was_led_past(version, interval_s, pattern):
    """Otherwise a gap looks like silence."""
    options = Options(sys_interval_s=interval_s)
    driver = subscribed("a/#", pattern, version=version, options=options, retain_handling=2 if version == 5 else 0)
    lose(driver, 200, 300)
    [packet] = driver.out()
    assert told([packet]) == [("$SYS/session/lost", b'{"from":"c8.0","to":"12c.0"}', 0, False)]
    if version == 5:
        assert packet.properties.content_type == "application/json"
    driver.send(Unsubscribe(packet_id=9, patterns=(pattern,)))
    lose(driver, 300, 400)
    assert driver.out() == []


def test_a_client_that_did_not_ask_for_it_is_told_nothing_of_lost_ranges():
    for patterns in (("#",), ("#", "$SYS/broker/#")):
        driver = subscribed(*patterns, retain_handling=2)
        lose(driver, 200, 300)
        assert driver.out() == []


def test_of_too_many_lost_ranges_at_once_those_of_a_log_become_one():
    driver = subscribed("a/#", "$SYS/session/lost", options=Options(sys_interval_s=0), retain_handling=2)
    for n in range(LOST_COUNT_MAX + 10):
        lose(driver, 16 * n, 16 * n + 8)
    other = 1 << 48
    lose(driver, other, other + 8)
    assert len(driver.out()) == LOST_COUNT_MAX
    first, last = LOST_COUNT_MAX * 16, (LOST_COUNT_MAX + 9) * 16 + 8
    assert [one[1] for one in told(driver.tick())] == [
        b'{"from":"%x.0","to":"%x.0"}' % (first, last),
        b'{"from":"%x.0","to":"%x.0"}' % (other, other + 8),
    ]
    lose(driver, last + 8, last + 16)
    assert len(driver.out()) == 1


def test_who_may_not_read_it_any_more_is_told_nothing_of_lost_ranges():
    driver = SysDriver(5)
    rules = AccessRules(AccessConfig(default="deny", rules=(AccessRule(effect="allow", filters=("a/#",)),)))
    permissions = Permissions(Identity(name="ada", protocol="mqtt"), None)
    driver.principal = Outcome(value=port.Principal(name="ada", permissions=permissions))
    driver.connect()
    requests = tuple(SubscriptionRequest(pattern=one, qos=0, retain_handling=2) for one in ("a/#", "$SYS/session/lost"))
    driver.send(Subscribe(packet_id=1, requests=requests))
    permissions.access = rules.access(Identity(name="ada"))
    lose(driver, 200, 300)
    assert driver.out() == []
