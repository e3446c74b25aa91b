"""Server-sent events over both versions."""

import json
from typing import Any

import h2.settings
import msgspec
import pytest

from adapters.http import HttpOptions
from adapters.http.wire.h1 import OUTPUT_BYTES_MAX
from adapters.http.wire.http2.streams import STREAM_BUFFER_BYTES
from gateway.domain.batch import Batch, LostRange
from gateway.port.adapter import Deliveries, Outcome, Settled, SubscriptionId
from store.api.message import Message
from store.format.frame import LogOffset, Position, origin_of
from tests.support.http.http_driver import Gateway, Http1Client, Http2Client, parse_responses, request


def subscribe(client: Any, *filters: str, last: str | None = None) -> int:
    headers = () if last is None else (("last-event-id", last),)
    target = "/subscribe?" + "&".join(f"filter={text}" for text in filters)
    if isinstance(client, Http1Client):
        client.gateway.opening = client.gateway.feed(request("GET", target, *headers))
        return 0
    stream = client.send("GET", target, *headers)
    client.flush()
    return stream


def events(text: bytes) -> list[dict[str, str]]:
    found = []
    for block in text.decode().split("\n\n"):
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, colon, value = line.partition(": ")
            if colon:
                fields[name] = f"{fields[name]}\n{value}" if name in fields else value
        if "data" in fields:
            found.append(fields)
    return found


def message(address: str = "a/b", body: bytes = b'{"v":\r\n 1}') -> Message:
    return Message(address=address, body=body, time_ms=0, protocol="mqtt", content_type="application/json")


def test_events_over_http_1_1() -> None:
    client = Http1Client(Gateway())
    gateway = client.gateway
    opening = gateway.feed(request("GET", "/subscribe?filter=a/+&filter=b"))
    assert [effect.pattern for effect in gateway.subscriptions.values()] == ["a/+", "b"]
    assert gateway.deliver([message(), message("c"), message("b")]) == 2
    (answer,) = parse_responses(opening + gateway.adapter.take_output())
    assert (answer.status, answer["content-type"], answer["cache-control"]) == (200, "text/event-stream", "no-store")
    assert answer.body.startswith(b"retry: 2000\n\n")
    first, second = events(answer.body)
    assert (first["id"], first["event"], second["id"]) == ("64.0", "message", "64.2")
    event = json.loads(first["data"])
    assert (event["subject"], event["data"], event["id"]) == ("a/b", {"v": 1}, "64.0")
    assert '"data":{"v": \n 1}' in first["data"]


def test_a_stream_is_told_that_a_range_of_the_log_is_lost() -> None:
    """Otherwise a gap looks like silence."""
    client = Http2Client(Gateway())
    streams = [subscribe(client, "a/+"), subscribe(client, "#")]
    adapter, now_ms = client.gateway.adapter, client.gateway.now_ms
    client.gateway.deliver([message("c")])
    for subs in ({2}, {1, 2}):
        lost = LostRange(LogOffset(200), LogOffset(300), subs)
        assert adapter.deliver(Deliveries(batch=lost, picks=(), subs=()), now_ms=now_ms) == 0
    client.read(adapter.take_output())
    said = {"event": "lost", "data": '{"from":"c8.0","to":"12c.0"}'}
    first, second = (events(client.answer(stream).body) for stream in streams)
    assert first == [said]
    assert second[1:] == [said, said]
    assert second[0]["event"] == "message"


def test_an_event_is_not_sent_behind_its_time_to_live() -> None:
    """Two streams come to it at different times; the second one goes on behind it."""
    client = Http2Client(Gateway())
    streams = [subscribe(client, "#"), subscribe(client, "#")]
    adapter, now_ms = client.gateway.adapter, client.gateway.now_ms
    lives = [msgspec.structs.replace(message(), expires_at_ms=now_ms + at_ms) for at_ms in (0, 5, 20)]
    batch = Batch(LogOffset(100), LogOffset(101), lives, [0, 1, 2], [16] * 3)
    for sub, later_ms in ((1, 0), (2, 10)):
        offered = Deliveries(batch, [0, 1, 2], [(SubscriptionId(sub),)] * 3)
        assert adapter.deliver(offered, now_ms=now_ms + later_ms) == 3
    client.read(adapter.take_output())
    assert [ids(client, stream) for stream in streams] == [["64.1", "64.2"], ["64.2"]]


def test_an_event_is_not_sent_on_a_websocket_behind_its_time_to_live() -> None:
    gateway = Gateway()
    upgrade = [("upgrade", "websocket"), ("connection", "Upgrade"), ("sec-websocket-version", "13")]
    named = [("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="), ("sec-websocket-protocol", "cloudevents.json")]
    assert gateway.feed(request("GET", "/subscribe?filter=%23", *upgrade, *named)).startswith(b"HTTP/1.1 101 ")
    dead, alive = (msgspec.structs.replace(message(), expires_at_ms=gateway.now_ms + at_ms) for at_ms in (-1, 1))
    assert gateway.deliver([dead]) == 1
    assert gateway.adapter.take_output() == b""
    assert gateway.deliver([dead, alive], frame=200) == 2
    assert gateway.adapter.take_output().count(b'"specversion"') == 1


def test_events_over_http_1_0_end_with_the_connection() -> None:
    gateway = Gateway()
    opening = gateway.feed(b"GET /subscribe?filter=a HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
    gateway.deliver([message("a")])
    (answer,) = parse_responses(opening + gateway.adapter.take_output())
    assert answer["transfer-encoding"] is None
    assert answer["connection"] == "close"
    assert len(events(answer.body)) == 1


def test_events_over_http_2() -> None:
    client = Http2Client(Gateway())
    first, second = subscribe(client, "a/+"), subscribe(client, "#")
    assert client.gateway.deliver([message(), message("c")]) == 2
    client.read(client.gateway.adapter.take_output())
    assert [event["id"] for event in events(client.answer(first).body)] == ["64.0"]
    assert [event["id"] for event in events(client.answer(second).body)] == ["64.0", "64.1"]


def test_a_client_goes_on_behind_what_it_has_seen() -> None:
    client = Http2Client(Gateway())
    stream = subscribe(client, "#", last="64.1")
    (effect,) = client.gateway.subscriptions.values()
    assert effect.start == (Position(LogOffset(0x64), 2),)
    client.gateway.deliver([message(), message(), message()])
    client.read(client.gateway.adapter.take_output())
    assert [event["id"] for event in events(client.answer(stream).body)] == ["64.2"]


def test_a_client_that_has_seen_nothing_goes_on_where_its_stream_began() -> None:
    """Otherwise it misses messages that are published between its first two connections."""
    ends = (Position(LogOffset(0x40), 3), Position(SECOND, 0))
    client = Http2Client(Gateway(ends=ends))
    stream = subscribe(client, "#")
    client.read(client.gateway.adapter.take_output())
    opening = client.answer(stream).body
    assert events(opening) == [], "it is no event"
    seen = opening.decode().partition("id: ")[2].partition("\n\n")[0]
    again = Gateway(ends=ends)
    subscribe(Http1Client(again), "#", last=seen)
    (effect,) = again.subscriptions.values()
    assert effect.start == ends


def test_a_stream_that_begins_in_no_log_has_no_id() -> None:
    """The gateway would refuse it."""
    client = Http2Client(Gateway())
    stream = subscribe(client, "#")
    (effect,) = client.gateway.subscriptions.values()
    client.gateway.act(client.gateway.adapter.completed(effect.token, Outcome(value=()), now_ms=client.gateway.now_ms))
    client.read(client.gateway.adapter.take_output())
    assert b"id:" not in client.answer(stream).body


@pytest.mark.parametrize("client_type", [Http1Client, Http2Client])
def test_a_client_that_has_seen_more_than_there_is_gets_what_comes_now(client_type: type) -> None:
    client = client_type(Gateway())
    stream = subscribe(client, "#", last="ffffffffffff.0")
    assert client.gateway.deliver([message()]) == 1
    out = client.gateway.adapter.take_output()
    if isinstance(client, Http2Client):
        client.read(out)
        out = client.answer(stream).body
    assert b"id: 64.0\n" in out


def test_a_cursor_that_goes_back_for_one_stream_repeats_nothing_to_the_other() -> None:
    client = Http2Client(Gateway())
    first = subscribe(client, "#")
    client.gateway.deliver([message(), message()])
    second = subscribe(client, "#", last="64.0")
    client.gateway.deliver([message(), message()])
    client.read(client.gateway.adapter.take_output())
    assert [event["id"] for event in events(client.answer(first).body)] == ["64.0", "64.1"]
    assert [event["id"] for event in events(client.answer(second).body)] == ["64.1"]


def test_heartbeats() -> None:
    gateway = Gateway(HttpOptions(sse_heartbeat_s=10, idle_timeout_s=1))
    gateway.feed(request("GET", "/subscribe?filter=a"))
    assert gateway.tick(after_ms=9_999) == b""
    assert gateway.tick(after_ms=1) == b"3\r\n:\n\n\r\n"
    gateway.tick(after_ms=5_000)
    gateway.deliver([message("a")])
    gateway.adapter.take_output()
    assert gateway.tick(after_ms=5_000) == b""
    assert gateway.tick(after_ms=5_000) == b"3\r\n:\n\n\r\n"
    assert not gateway.closed


def test_a_reset_ends_the_subscription() -> None:
    client = Http2Client(Gateway())
    stream = subscribe(client, "a", "b")
    assert len(client.gateway.subscriptions) == 2
    client.h2.reset_stream(stream)
    client.flush()
    assert client.gateway.subscriptions == {}
    assert client.gateway.deliver([message("a")]) == 0


def test_a_window_that_is_shut_holds_the_cursor_until_it_opens() -> None:
    client = Http2Client(Gateway())
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 100})
    client.flush()
    client.acknowledge = False
    stream = subscribe(client, "#")
    large = message(body=b'"' + b"x" * (STREAM_BUFFER_BYTES // 2) + b'"')
    assert client.gateway.deliver([large] * 5) == 2
    assert client.gateway.deliver([large], frame=101) == 0
    assert not any(isinstance(effect, Settled) for effect in client.gateway.effects)
    client.h2.increment_flow_control_window(STREAM_BUFFER_BYTES * 2)
    client.h2.increment_flow_control_window(STREAM_BUFFER_BYTES * 2, stream)
    client.flush()
    assert sum(isinstance(effect, Settled) for effect in client.gateway.effects) == 1
    assert client.gateway.deliver([large] * 3, frame=101) == 2


def test_a_stream_that_takes_nothing_is_ended_and_the_others_go_on() -> None:
    client = Http2Client(Gateway(HttpOptions(sse_stall_s=20, sse_heartbeat_s=3600)))
    client.acknowledge = False
    large = message(body=b'"' + b"x" * STREAM_BUFFER_BYTES + b'"')
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    client.flush()
    stalled = subscribe(client, "a/b")
    subscribe(client, "#")
    assert client.gateway.deliver([large, large]) == 1
    client.read(client.gateway.tick(after_ms=19_999))
    assert client.received[stalled].reset is None
    client.read(client.gateway.tick(after_ms=1))
    assert client.received[stalled].reset is not None
    assert [effect.pattern for effect in client.gateway.subscriptions.values()] in (["#"], [])


def test_a_stream_whose_window_stays_shut_is_ended_even_if_nothing_more_is_for_it() -> None:
    client = Http2Client(Gateway(HttpOptions(sse_stall_s=20, sse_heartbeat_s=15)))
    stream = subscribe(client, "a/b")
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    client.flush()
    client.read(client.gateway.tick(after_ms=10_000))
    assert client.gateway.deliver([message()]) == 1
    for _ in range(3):
        client.read(client.gateway.tick(after_ms=6_600))
    assert client.received[stream].reset is None  # the time counts from the message on
    client.read(client.gateway.tick(after_ms=200))
    assert client.received[stream].reset is not None
    assert client.gateway.subscriptions == {}


def test_http_1_1_takes_a_turns_share_and_asks_for_more() -> None:
    gateway = Gateway()
    gateway.feed(request("GET", "/subscribe?filter=%23"))
    large = message(body=b'"' + b"x" * (OUTPUT_BYTES_MAX // 2) + b'"')
    assert gateway.deliver([large] * 5) == 2
    assert gateway.deliver([large] * 3, frame=101) == 0
    assert len(gateway.adapter.take_output()) > OUTPUT_BYTES_MAX
    assert gateway.adapter.deadline_ms() == 0
    gateway.tick()
    assert sum(isinstance(effect, Settled) for effect in gateway.effects) == 1
    assert gateway.deliver([large] * 3, frame=101) == 2


@pytest.mark.parametrize("client_type", [Http1Client, Http2Client])
def test_a_stream_that_takes_part_of_a_frame_asks_for_the_rest(client_type: type) -> None:
    """It stood still for good where its output was written before more was offered."""
    gateway = Gateway()
    client = client_type(gateway)
    stream = subscribe(client, "#")
    sent = b""
    left = [message(body=b'"' + b"x" * (OUTPUT_BYTES_MAX // 2) + b'"')] * 7
    for settled in range(1, 4):
        taken = gateway.deliver(left, frame=100 + settled)
        assert taken == 2
        left = left[taken:]
        sent += gateway.adapter.take_output()
        if client_type is Http2Client:
            client.read(sent)
            client.flush()
            sent = b""
        sent += gateway.tick()
        assert sum(isinstance(effect, Settled) for effect in gateway.effects) == settled
    assert gateway.deliver(left, frame=200) == 1
    sent += gateway.adapter.take_output()
    if client_type is Http2Client:
        client.read(sent)
        client.flush()
    seen = sent if client_type is Http1Client else client.answer(stream).body
    assert seen.count(b"event: message") == 7
    assert gateway.adapter.deadline_ms() != 0


def test_a_full_stream_behind_an_unanswered_request_waits_for_its_answer() -> None:
    """It asked for more each millisecond, in vain: the bytes that wait for their turn were not looked at."""
    gateway = Gateway()
    Http1Client(gateway).ask("GET", "/topics/a")  # its sender is known now
    gateway.hold = True
    gateway.feed(request("GET", "/topics/a") + request("GET", "/subscribe?filter=%23"))
    large = message(body=b'"' + b"x" * OUTPUT_BYTES_MAX + b'"')
    assert gateway.deliver([large] * 2) == 1
    deadline_ms = gateway.adapter.deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms > gateway.now_ms
    assert len(gateway.release()) > OUTPUT_BYTES_MAX
    assert gateway.adapter.deadline_ms() == 0
    gateway.tick()
    assert sum(isinstance(effect, Settled) for effect in gateway.effects) == 1
    assert gateway.deliver([large], frame=101) == 1


@pytest.mark.parametrize("client_type", [Http1Client, Http2Client])
def test_shutdown_ends_streams(client_type: type) -> None:
    client = client_type(Gateway())
    stream = subscribe(client, "a")
    client.gateway.act(client.gateway.adapter.shutdown(now_ms=client.gateway.now_ms))
    out = client.gateway.adapter.take_output()
    if isinstance(client, Http2Client):
        client.read(out)
        assert client.answer(stream).ended
    else:
        assert out.endswith(b"0\r\n\r\n")
    assert client.gateway.closed
    assert client.gateway.subscriptions == {}


def test_an_event_is_encoded_once_for_all_connections() -> None:
    gateways = [Gateway(), Gateway()]
    for gateway in gateways:
        gateway.feed(request("GET", "/subscribe?filter=%23"))
    batch = Batch(LogOffset(1), LogOffset(2), [message()], [0], [16])
    outputs = []
    for gateway in gateways:
        deliveries = Deliveries(batch, [0], [(SubscriptionId(1),)])
        assert gateway.adapter.deliver(deliveries, now_ms=gateway.now_ms) == 1
        outputs.append(gateway.adapter.take_output())
    assert outputs[0] == outputs[1]
    assert list(batch.memo) == ["http.sse"]


# ---- several logs

SECOND = origin_of(1)


@pytest.fixture
def two_logs() -> Gateway:
    return Gateway(ends=(Position(LogOffset(0x40), 0), Position(SECOND, 0)))


def ids(client: Http2Client, stream: int) -> list[str]:
    client.read(client.gateway.adapter.take_output())
    return [event["id"] for event in events(client.answer(stream).body)]


def test_an_id_says_where_the_stream_goes_on_in_the_other_logs(two_logs: Gateway) -> None:
    client = Http2Client(two_logs)
    stream = subscribe(client, "a/#")
    two_logs.deliver([message(), message("b"), message()])
    two_logs.deliver([message("b"), message()], frame=SECOND + 9)
    two_logs.deliver([message()], frame=200)
    assert ids(client, stream) == [
        f"64.0,{SECOND:x}.0",
        f"64.2,{SECOND:x}.0",
        f"{SECOND + 9:x}.1,64.3",
        f"c8.0,{SECOND + 9:x}.2",
    ]


def test_streams_of_one_connection_say_each_its_own(two_logs: Gateway) -> None:
    client = Http2Client(two_logs)
    first = subscribe(client, "#")
    two_logs.deliver([message()], frame=SECOND + 9)
    second = subscribe(client, "a/#", last=f"64.0,{SECOND + 9:x}.1")
    two_logs.deliver([message()], frame=200)
    assert ids(client, first) == [f"{SECOND + 9:x}.0,40.0", f"c8.0,{SECOND + 9:x}.1"]
    assert [event["id"] for event in events(client.answer(second).body)] == [f"c8.0,{SECOND + 9:x}.1"]


def test_a_client_goes_on_in_every_log(two_logs: Gateway) -> None:
    client = Http2Client(two_logs)
    subscribe(client, "a/#", "b", last=f"{SECOND + 9:x}.1,64.3,2000000000000.0")
    starts = {effect.start for effect in two_logs.subscriptions.values()}
    assert starts == {
        (Position(LogOffset(SECOND + 9), 2), Position(LogOffset(0x64), 3), Position(LogOffset(origin_of(2)), 0))
    }
    assert [effect.token is None for effect in two_logs.subscriptions.values()] == [False, True]


@pytest.mark.parametrize(
    "text", ["64.0,", ",", ",64.0,64.1", "64.0,64.1", "64.0, 65.0", "64.0,x", f"64.0,{1 << 63:x}.0"]
)
def test_what_is_no_id_of_several_logs(two_logs: Gateway, text: str) -> None:
    answer = two_logs.feed(request("GET", "/subscribe?filter=a", ("last-event-id", text)))
    (refused,) = parse_responses(answer)
    assert refused.status == 400
    assert b"last-event-id" in refused.body
