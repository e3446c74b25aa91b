"""Shared subscriptions of one client: joining and leaving, what is leased to it, and whose a message is."""

import pytest

from adapters.mqtt.codec.packets import (
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from adapters.mqtt.codec.properties import Properties
from adapters.mqtt.messages.options import Options
from adapters.mqtt.session.shared import DENIED_INTERVAL_MS, OFFERS_COUNT_MAX, REJOIN_INTERVAL_MS
from gateway.domain.errors import Cause, Refusal
from gateway.port import adapter as port
from gateway.port.adapter import Cancel, Consume, ConsumerCancelled, Leased, Outcome, Ready, SettleLeased
from gateway.port.reads import Retained
from gateway.port.sessions import OpenedSession, SaveSession
from gateway.port.shared import JoinShared, LeaveShared, SharedName
from store.api.message import Message
from tests.support.mqtt.mqtt_driver import NOW_MS, Driver

SHARE = "$share/g/t/#"
NUMBER = 77


def request(pattern=SHARE, qos=1, **options):
    return SubscriptionRequest(pattern=pattern, qos=qos, **options)


def message(body=b"x", qos=1, **fields):
    return Message("t/a", body, NOW_MS, "mqtt", "other", qos, **fields)


class Member:
    """A client that shares subscriptions, and the gateway that leases it messages."""

    def __init__(self, version=5, options=None, *, expiry_s=None, **connect):
        self.driver = driver = Driver(version, options)
        self.connect = connect
        if expiry_s is not None:
            connect["properties"] = Properties(session_expiry_s=expiry_s, **connect.pop("more", {}))
        elif "more" in connect:
            connect["properties"] = Properties(**connect.pop("more"))
        self.offset = 0
        self.connack = driver.connect(**connect)

    def subscribe(self, *requests, properties=None, packet_id=1):
        """Sends SUBSCRIBE, lets the client join at once, and returns the SUBACK."""
        packet = Subscribe(packet_id=packet_id, requests=requests, properties=properties or Properties())
        out = self.driver.send(packet)
        return out + self.joined()

    def joined(self):
        """Lets the client join all groups that it has asked for, and returns what it is sent."""
        out = []
        while calls := self.driver.calls(JoinShared):
            for call in calls:
                names = [shared.queue for shared in call.request.names]
                out += self.driver.complete(call, Outcome(value=names))
        for consume in self.driver.take(Consume):
            self.consume = consume
            out += self.driver.complete(consume)
        return out

    def lease(self, *messages, deliveries=0, consumer=None, offsets=None):
        """Returns how many messages it took."""
        offsets = list(range(self.offset, self.offset + len(messages))) if offsets is None else offsets
        counts = [deliveries] * len(messages)
        consumer = self.consume.consumer if consumer is None else consumer
        taken = self.driver.adapter.deliver(
            Leased(consumer, messages, offsets, counts, NUMBER), now_ms=self.driver.now_ms
        )
        self.offset += len(messages)
        return taken

    def settled(self):
        """Returns what was settled since, by outcome."""
        found = {}
        for effect in self.driver.take(SettleLeased):
            assert effect.number == NUMBER
            for disposition in effect.dispositions:
                found.setdefault(disposition.outcome, []).extend(disposition.offsets)
            if effect.token is not None:
                self.driver.complete(effect)
        return found

    def resume(self, **fields):
        """Resumes the session on another connection."""
        saved = self.driver.saved
        state = next((one.state for one in reversed(saved) if one.state is not None), b"")
        exchanges = next((one.exchanges for one in reversed(saved) if one.exchanges is not None), b"")
        driver = self.driver = Driver(self.driver.version, self.driver.options)
        driver.opened = Outcome(value=OpenedSession(present=True, state=state, exchanges=exchanges, cursor=()))
        fields = self.connect | fields | {"clean": False}
        self.connack, *rest = driver.send(Connect(version=driver.version, client_id="c1", **fields))
        return rest


@pytest.fixture(params=[5, 4])
def member(request):
    return Member(request.param)


# ---- joining and leaving


def test_joining_is_answered_when_it_is_durable(member):
    out = member.driver.send(Subscribe(packet_id=7, requests=(request(), request("t"), request("$share/h/x", qos=2))))
    assert out == []
    (call,) = member.driver.calls(JoinShared)
    assert call.request.names == (SharedName("g", "t/#"), SharedName("h", "x"))
    out = member.driver.complete(call, Outcome(value=["q1", "q2"]))
    assert out == [Suback(packet_id=7, codes=(1, 1, 2))]
    assert [(one.queue, one.settle_on_delivery, one.credit) for one in member.driver.take(Consume)] == [
        ("q1", False, 1024),
        ("q2", False, 1024),
    ]
    assert [one.pattern for one in member.driver.take(port.Subscribe)] == ["t"]


def test_a_durable_session_remembers_before_it_joins():
    member = Member(expiry_s=100)
    member.driver.saves = False
    assert member.driver.send(Subscribe(packet_id=7, requests=(request(),))) == []
    assert member.driver.calls(JoinShared) == []
    (save,) = member.driver.calls(SaveSession)
    assert member.driver.complete(save) == []
    (call,) = member.driver.calls(JoinShared)
    assert member.driver.complete(call, Outcome(value=["q"])) == [Suback(packet_id=7, codes=(1,))]


@pytest.mark.parametrize(
    ("cause", "code"),
    [(Cause.QUOTA, 0x97), (Cause.FORBIDDEN, 0x87), (Cause.UNAVAILABLE, 0x83), (Cause.OVERLOAD, 0x97)],
)
def test_what_the_gateway_refuses_is_no_subscription(member, cause, code):
    member.driver.send(Subscribe(packet_id=7, requests=(request(), request("t"))))
    (call,) = member.driver.calls(JoinShared)
    out = member.driver.complete(call, Outcome(value=[Refusal(cause, "no")]))
    assert out == [Suback(packet_id=7, codes=(code if member.driver.version == 5 else 0x80, 1))]
    assert member.driver.take(Consume) == []
    out = member.driver.send(Unsubscribe(packet_id=8, patterns=(SHARE,)))
    assert out == [Unsuback(packet_id=8, codes=(0x11,) if member.driver.version == 5 else ())]


def test_a_call_that_fails_refuses_all(member):
    member.driver.send(Subscribe(packet_id=7, requests=(request(), request("$share/h/x"))))
    (call,) = member.driver.calls(JoinShared)
    out = member.driver.complete(call, Outcome(error=Refusal(Cause.UNAVAILABLE, "no")))
    code = 0x83 if member.driver.version == 5 else 0x80
    assert out == [Suback(packet_id=7, codes=(code, code))]


@pytest.mark.parametrize("pattern", ["$share", "$share/g", "$share//a", "$share/+/a", "$share/g/", "$share/g/$SYS/#"])
def test_a_group_named_wrongly_is_refused(member, pattern):
    """MQTT-4.8.2-1, MQTT-4.8.2-2."""
    out = member.driver.send(Subscribe(packet_id=7, requests=(request(pattern),)))
    assert out == [Suback(packet_id=7, codes=(0x8F if member.driver.version == 5 else 0x80,))]


def test_no_local_on_a_shared_subscription_is_a_protocol_error():
    """MQTT-3.8.3-4."""
    member = Member()
    (packet,) = member.driver.send(Subscribe(packet_id=7, requests=(request(no_local=True),)))
    assert isinstance(packet, Disconnect)
    assert packet.code == 0x82


def test_they_can_be_switched_off():
    member = Member(options=Options(shared_subscriptions=False))
    assert member.connack.properties.shared_subscription_available == 0
    out = member.driver.send(Subscribe(packet_id=7, requests=(request(),)))
    assert out == [Suback(packet_id=7, codes=(0x9E,))]
    assert Member().connack.properties.shared_subscription_available is None


def test_no_retained_messages_are_sent(member):
    member.driver.retained = [message(retain=True)]
    assert member.subscribe(request()) == [Suback(packet_id=1, codes=(1,))]
    assert member.driver.tick() == []
    assert member.driver.calls(Retained) == []


def test_leaving_is_answered_when_it_is_durable(member):
    member.subscribe(request())
    assert member.driver.send(Unsubscribe(packet_id=8, patterns=("t", SHARE))) == []
    assert [one.consumer for one in member.driver.take(Cancel)] == [member.consume.consumer]
    (call,) = member.driver.calls(LeaveShared)
    assert call.request.names == (SharedName("g", "t/#"),)
    codes = (0x11, 0) if member.driver.version == 5 else ()
    assert member.driver.complete(call) == [Unsuback(packet_id=8, codes=codes)]
    assert member.lease(message()) == 0


def test_leaving_that_fails_is_said():
    member = Member()
    member.subscribe(request())
    member.driver.send(Unsubscribe(packet_id=8, patterns=(SHARE, "t")))
    (call,) = member.driver.calls(LeaveShared)
    out = member.driver.complete(call, Outcome(error=Refusal(Cause.UNAVAILABLE, "no")))
    assert out == [Unsuback(packet_id=8, codes=(0x83, 0x11))]


def test_changes_are_made_one_after_the_other(member):
    driver = member.driver
    driver.send(
        Subscribe(packet_id=1, requests=(request(),)),
        Unsubscribe(packet_id=2, patterns=(SHARE,)),
        Subscribe(packet_id=3, requests=(request(qos=2),)),
    )
    (call,) = driver.calls(JoinShared)
    assert driver.calls(LeaveShared) == []
    assert driver.complete(call, Outcome(value=["q"])) == [Suback(packet_id=1, codes=(1,))]
    assert driver.take(Consume) == []  # it was left before it had been joined
    (call,) = driver.calls(LeaveShared)
    assert [type(one) for one in driver.complete(call)] == [Unsuback]
    (call,) = driver.calls(JoinShared)
    assert driver.complete(call, Outcome(value=["q"])) == [Suback(packet_id=3, codes=(2,))]
    assert len(driver.take(Consume)) == 1


def test_a_refusal_is_not_of_the_subscription_that_came_after(member):
    driver = member.driver
    driver.send(
        Subscribe(packet_id=1, requests=(request(),)),
        Unsubscribe(packet_id=2, patterns=(SHARE,)),
        Subscribe(packet_id=3, requests=(request(),)),
    )
    (call,) = driver.calls(JoinShared)
    (suback,) = driver.complete(call, Outcome(error=Refusal(Cause.UNAVAILABLE, "no")))
    assert suback.codes == (0x83 if driver.version == 5 else 0x80,)
    (call,) = driver.calls(LeaveShared)
    driver.complete(call)
    (call,) = driver.calls(JoinShared)
    assert driver.complete(call, Outcome(value=["q"])) == [Suback(packet_id=3, codes=(1,))]
    (member.consume,) = driver.take(Consume)
    assert member.lease(message()) == 1


def test_a_refusal_is_told_to_all_who_waited_for_the_same(member):
    driver = member.driver
    driver.send(Subscribe(packet_id=1, requests=(request(),)), Subscribe(packet_id=2, requests=(request(),)))
    (call,) = driver.calls(JoinShared)
    out = driver.complete(call, Outcome(error=Refusal(Cause.UNAVAILABLE, "no")))
    code = 0x83 if driver.version == 5 else 0x80
    assert out == [Suback(packet_id=1, codes=(code,)), Suback(packet_id=2, codes=(code,))]
    assert driver.calls(JoinShared) == []


def test_a_client_that_never_waits_for_an_answer_is_cut_off():
    member = Member()
    packets = [Subscribe(packet_id=1 + n, requests=(request(f"$share/g/{n % 9}"),)) for n in range(1_100)]
    member.driver.send(*packets)
    out = member.driver.send()  # the rest of them
    assert out[-1].code == 0x97


def test_subscribing_again_changes_the_options(member):
    member.subscribe(request())
    first = member.consume.consumer
    assert member.subscribe(request(qos=2)) == [Suback(packet_id=1, codes=(2,))]
    assert member.consume.consumer == first
    assert member.subscribe(request(qos=0)) == [Suback(packet_id=1, codes=(0,))]
    assert [one.consumer for one in member.driver.take(Cancel)] == [first]
    assert (member.consume.settle_on_delivery, member.consume.credit) == (True, None)
    assert member.lease(message(), consumer=first) == 0


# ---- messages


def test_qos_1_is_settled_by_its_puback(member):
    member.subscribe(request())
    assert member.lease(message(b"1"), message(b"2"), message(b"0", qos=0), message(b"3", qos=2)) == 4
    out = member.driver.out()
    assert [(one.qos, one.payload, one.packet_id) for one in out] == [
        (1, b"1", 1),
        (1, b"2", 2),
        (0, b"0", None),
        (1, b"3", 3),
    ]
    assert member.driver.adapter.deadline_ms() == 0
    member.driver.tick()
    assert member.settled() == {"ack": [2]}
    member.driver.send(Puback(packet_id=2), Puback(packet_id=3), Puback(packet_id=9))
    assert member.settled() == {"ack": [1, 3]}


@pytest.mark.parametrize("last", ["disconnect", "protocol error", "lost", "taken over"])
def test_the_last_acknowledgements_of_a_connection_are_settled(member, last):
    member.subscribe(request())
    member.lease(message(b"1"), message(b"2"), message(b"3"))
    first, second, _ = member.driver.out()
    member.driver.send(Puback(packet_id=first.packet_id))
    member.settled()
    acknowledgement = Puback(packet_id=second.packet_id)
    match last:
        case "disconnect":
            member.driver.send(acknowledgement, Disconnect())
        case "protocol error":
            member.driver.send(acknowledgement, Connect(version=member.driver.version, client_id="c1"))
        case "lost":
            member.lease(message(b"4", qos=0))  # which has no acknowledgement
        case "taken over":
            member.lease(message(b"4", qos=0))
            member.driver.act(member.driver.adapter.superseded(now_ms=member.driver.now_ms))
    if last != "lost":
        kinds = [type(effect) for effect in member.driver.effects]
        assert kinds.index(SettleLeased) < kinds.index(port.Close)
    member.driver.lose()
    assert member.settled() == {"ack": [3 if last in ("lost", "taken over") else 1]}


def test_a_refused_message_is_not_sent_to_another():
    """MQTT-4.8.2-6."""
    member = Member()
    member.subscribe(request(qos=2))
    member.lease(message(b"1"), message(b"2", qos=2))
    member.driver.tick()
    assert member.settled() == {"ack": [1]}
    assert member.driver.send(Puback(packet_id=1, code=0x80), Pubrec(packet_id=2, code=0x97)) == []
    assert member.settled() == {"ack": [0]}


def test_a_subscription_of_qos_0_settles_by_delivery(member):
    member.subscribe(request(qos=0))
    assert member.consume.settle_on_delivery
    assert member.lease(*[message(b"%d" % n) for n in range(3)]) == 3
    assert [(one.qos, one.payload) for one in member.driver.out()] == [(0, b"0"), (0, b"1"), (0, b"2")]
    member.driver.tick()
    assert member.settled() == {}


def test_what_is_leased_before_a_higher_qos_is_granted_comes_at_qos_0(member):
    member.subscribe(request(qos=0))
    driver = member.driver
    driver.send(
        Unsubscribe(packet_id=8, patterns=("$share/h/x",)), Subscribe(packet_id=9, requests=(request("$share/h/x"),))
    )
    (call,) = driver.calls(JoinShared)
    assert driver.send(Subscribe(packet_id=10, requests=(request(qos=2),))) == []
    assert member.lease(message(qos=2)) == 1
    assert driver.out() == [Publish(topic="t/a", payload=b"x")]
    assert member.settled() == {}
    driver.complete(call, Outcome(value=["q2"]))
    assert [one.settle_on_delivery for one in driver.take(Consume)] == [False, False]


def test_no_more_is_taken_than_there_is_room_for():
    member = Member(more={"receive_maximum": 3})
    member.subscribe(request(), request("$share/h/t"))
    assert member.consume.credit == 3
    assert member.lease(*[message()] * 5) == 3
    assert member.lease(message()) == 0
    assert member.driver.take(Ready) == []
    member.driver.out()
    member.driver.send(Puback(packet_id=1), Puback(packet_id=2))
    assert [(one.consumer, one.credit) for one in member.driver.take(Ready)] == [(2, 2)]
    assert member.lease(message(), message(), message()) == 2


def test_ready_is_not_said_for_nothing():
    member = Member()
    member.subscribe(request())
    member.lease(*[message()] * 10)
    for packet_id in range(1, 11):
        member.driver.send(Puback(packet_id=packet_id))
    assert member.driver.take(Ready) == []
    member.lease(*[message()] * 600)
    member.driver.send(*[Puback(packet_id=packet_id) for packet_id in range(11, 611)])
    assert [one.credit for one in member.driver.take(Ready)] == [1024]


def test_what_takes_no_room_does_not_use_it_up():
    member = Member(more={"receive_maximum": 4, "maximum_packet_bytes": 60})
    member.subscribe(request())
    expired = message(expires_at_ms=NOW_MS - 1)
    assert member.lease(message(qos=0), expired, message(b"x" * 100), message(qos=0)) == 4
    assert member.driver.adapter.deadline_ms() == 0
    member.driver.tick()
    assert [one.credit for one in member.driver.take(Ready)] == [4]
    assert member.driver.adapter.deadline_ms() is None


def test_what_a_delivery_asks_for_is_done_at_once():
    member = Member()
    member.subscribe(request(qos=2))
    member.lease(message(qos=2))
    assert member.driver.adapter.deadline_ms() == 0
    member.driver.tick()
    assert member.settled() == {"ack": [0]}


def test_options_and_identifiers_are_the_subscriptions_own():
    member = Member()
    member.subscribe(request(retain_as_published=True), properties=Properties(subscription_ids=(9,)))
    member.lease(message(retain=True), message())
    assert [(one.retain, one.properties.subscription_ids) for one in member.driver.out()] == [
        (True, (9,)),
        (False, (9,)),
    ]
    member = Member()
    member.subscribe(request())
    member.lease(message(retain=True))
    assert [one.retain for one in member.driver.out()] == [False]


def test_the_time_to_live_is_counted_down():
    member = Member()
    member.subscribe(request())
    member.driver.now_ms += 3_000
    assert member.lease(message(expires_at_ms=NOW_MS + 10_000), message(expires_at_ms=NOW_MS + 2_000)) == 2
    (packet,) = member.driver.out()
    assert packet.properties.message_expiry_s == 7
    member.driver.tick()
    assert member.settled() == {"ack": [1]}


def test_a_message_too_large_is_offered_to_others_and_given_up_in_the_end():
    """MQTT-3.1.2-25."""
    member = Member(more={"maximum_packet_bytes": 60})
    member.subscribe(request())
    assert member.lease(message(b"x" * 100), message(b"small")) == 2
    assert [one.payload for one in member.driver.out()] == [b"small"]
    member.driver.tick()
    assert member.settled() == {"requeue": [0]}
    assert member.lease(message(b"x" * 100), deliveries=OFFERS_COUNT_MAX) == 1
    member.driver.tick()
    assert member.settled() == {"ack": [2]}


# ---- QoS 2


def test_qos_2_is_settled_when_it_is_sent():
    member = Member()
    member.subscribe(request(qos=2))
    assert member.lease(message(b"1", qos=2)) == 1
    (packet,) = member.driver.out()
    assert (packet.qos, packet.packet_id) == (2, 1)
    member.driver.tick()
    assert member.settled() == {"ack": [0]}
    assert member.driver.send(Pubrec(packet_id=1)) == [Pubrel(packet_id=1)]
    member.driver.send(Pubcomp(packet_id=1))
    assert member.settled() == {}


def test_a_durable_session_saves_before_it_settles_and_sends():
    member = Member(expiry_s=100)
    member.subscribe(request(qos=2))
    member.driver.saves = False
    assert member.lease(message(b"1", qos=2), message(b"2", qos=2)) == 2
    assert member.driver.tick() == []
    (save,) = member.driver.calls(SaveSession)
    assert member.settled() == {}
    out = member.driver.complete(save)
    assert [one.payload for one in out] == [b"1", b"2"]
    assert member.settled() == {"ack": [0, 1]}


@pytest.mark.parametrize("settled", [True, False])
def test_a_later_connection_completes_what_was_begun(settled):
    """MQTT-4.8.2-4."""
    member = Member(expiry_s=100)
    member.subscribe(request(qos=2, retain_as_published=True), properties=Properties(subscription_ids=(9,)))
    member.lease(message(b"1", qos=2, retain=True), message(b"2", qos=2))
    member.driver.tick()
    if settled:
        assert member.settled() == {"ack": [0, 1]}
    member.driver.send(Pubrec(packet_id=1))
    member.driver.lose()
    out = member.resume()
    assert out[0] == Pubrel(packet_id=1)
    (again,) = [one for one in out if isinstance(one, Publish)]
    assert (again.payload, again.packet_id, again.dup, again.qos) == (b"2", 2, True, 2)
    assert (again.retain, again.properties.subscription_ids) == (False, (9,))
    member.joined()
    assert member.driver.send(Pubcomp(packet_id=1), Pubrec(packet_id=2)) == [Pubrel(packet_id=2)]
    member.driver.send(Pubcomp(packet_id=2))
    # Unless the gateway had settled them they may be leased once more: never to be sent once more.
    member.driver.take(SettleLeased)
    assert member.lease(message(b"1", qos=2), message(b"2", qos=2), message(b"3", qos=2), offsets=[0, 1, 2]) == 3
    payloads = [one.payload for one in member.driver.out() + member.driver.tick() if isinstance(one, Publish)]
    assert payloads[-1] == b"3"
    assert (b"2" in payloads) is settled


def test_what_was_not_saved_is_for_others():
    member = Member(expiry_s=100)
    member.subscribe(request(qos=2))
    member.driver.saves = False
    member.lease(message(b"1", qos=2))
    member.driver.tick()
    member.driver.calls(SaveSession)
    member.driver.saves = True
    member.driver.lose()
    out = member.resume()
    assert [one for one in out if isinstance(one, Publish)] == []


def test_qos_1_is_not_a_later_connections():
    member = Member(expiry_s=100)
    member.subscribe(request())
    member.lease(message(b"1"), message(b"2"))
    member.driver.out()
    member.driver.lose()
    assert member.settled() == {}
    assert member.resume() == []


def test_large_qos_2_messages_wait_for_room():
    member = Member(expiry_s=100)
    member.subscribe(request(qos=2))
    assert member.lease(*[message(b"x" * 30_000, qos=2)] * 5) == 3
    member.driver.tick()
    member.driver.take(Ready)
    member.driver.send(Pubrec(packet_id=1))
    assert len(member.driver.take(Ready)) == 1


def test_nothing_new_is_taken_while_something_is_to_be_sent_again():
    member = Member(expiry_s=100)
    member.subscribe(request(qos=2))
    member.lease(*[message(b"%d" % n, qos=2) for n in range(3)])
    member.driver.tick()
    member.settled()
    member.driver.lose()
    member.connect["properties"] = Properties(session_expiry_s=100, receive_maximum=2)
    out = member.resume()
    assert [one.payload for one in out if isinstance(one, Publish)] == [b"0", b"1"]
    member.joined()
    assert member.lease(message(b"3", qos=2)) == 0
    out = member.driver.send(Pubrec(packet_id=1), Pubcomp(packet_id=1))
    assert [one.payload for one in out if isinstance(one, Publish)] == [b"2"]
    member.driver.send(Pubrec(packet_id=2), Pubcomp(packet_id=2))
    assert [one.credit for one in member.driver.take(Ready)] == [1]
    assert member.lease(message(b"3", qos=2)) == 1


# ---- what happens to a member


def test_a_session_joins_again_when_it_is_taken_up():
    member = Member(expiry_s=100)
    member.subscribe(request(), request("t"))
    member.driver.lose()
    member.resume()
    (call,) = member.driver.calls(JoinShared)
    assert call.request.names == (SharedName("g", "t/#"),)
    assert [one.pattern for one in member.driver.take(port.Subscribe)] == ["t"]
    member.driver.complete(call, Outcome(value=["q"]))
    assert len(member.driver.take(Consume)) == 1


@pytest.mark.parametrize("how", ["cancelled", "refused"])
def test_a_member_whose_queue_is_gone_joins_again(how):
    member = Member()
    if how == "cancelled":
        member.subscribe(request())
        cancelled = ConsumerCancelled(member.consume.consumer)
        assert member.driver.adapter.deliver(cancelled, now_ms=member.driver.now_ms) == 0
    else:
        member.driver.send(Subscribe(packet_id=1, requests=(request(),)))
        (call,) = member.driver.calls(JoinShared)
        member.driver.complete(call, Outcome(value=["q"]))
        (consume,) = member.driver.take(Consume)
        member.driver.complete(consume, Outcome(error=Refusal(Cause.NOT_FOUND, "gone")))
    assert member.driver.adapter.deadline_ms() == member.driver.now_ms + REJOIN_INTERVAL_MS
    member.driver.tick(REJOIN_INTERVAL_MS)
    (call,) = member.driver.calls(JoinShared)
    member.driver.complete(call, Outcome(error=Refusal(Cause.UNAVAILABLE, "not yet")))
    member.driver.tick(REJOIN_INTERVAL_MS)
    member.joined()
    assert member.lease(message()) == 1
    assert member.driver.adapter.deadline_ms() is None


def test_a_member_whose_queue_is_gone_joins_again_when_the_clock_is_set_back():
    member = Member()
    member.subscribe(request())
    member.driver.adapter.deliver(ConsumerCancelled(member.consume.consumer), now_ms=member.driver.now_ms)
    member.driver.tick(-3_600_000)
    assert len(member.driver.calls(JoinShared)) == 1


def test_a_session_that_may_not_read_what_it_shares_any_more_asks_seldom_and_is_a_member_again():
    member = Member()
    member.subscribe(request())
    member.driver.adapter.deliver(ConsumerCancelled(member.consume.consumer), now_ms=member.driver.now_ms)
    member.driver.tick(REJOIN_INTERVAL_MS)
    (call,) = member.driver.calls(JoinShared)
    member.driver.complete(call, Outcome(value=[Refusal(Cause.FORBIDDEN, "no")]))
    assert member.driver.adapter.deadline_ms() == member.driver.now_ms + DENIED_INTERVAL_MS
    member.driver.tick(DENIED_INTERVAL_MS)
    member.joined()
    assert member.lease(message()) == 1


@pytest.mark.parametrize("version", [4, 5])
def test_a_member_whose_right_was_revoked_is_told_and_disconnected(version):
    member = Member(version=version)
    member.subscribe(request())
    cancelled = ConsumerCancelled(member.consume.consumer, denied=True)
    assert member.driver.adapter.deliver(cancelled, now_ms=member.driver.now_ms) == 0
    assert member.driver.adapter.deadline_ms() == 0
    said = member.driver.tick()
    assert [packet.code for packet in said if isinstance(packet, Disconnect)] == [0x87] * (version == 5)
    assert len(member.driver.take(port.Close)) == 1


def test_a_consumer_stopped_before_it_began_is_cancelled_when_it_has(member):
    member.driver.send(Subscribe(packet_id=1, requests=(request(),)))
    (call,) = member.driver.calls(JoinShared)
    member.driver.complete(call, Outcome(value=["q"]))
    (consume,) = member.driver.take(Consume)
    member.driver.send(Unsubscribe(packet_id=2, patterns=(SHARE,)))
    assert len(member.driver.take(Cancel)) == 1
    member.driver.complete(consume)
    assert len(member.driver.take(Cancel)) == 1


def test_a_client_that_is_away_takes_nothing(member):
    member.subscribe(request())
    member.driver.lose()
    assert member.lease(message()) == 0
