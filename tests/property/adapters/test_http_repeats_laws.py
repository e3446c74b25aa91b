"""Requests that repeat another take the short way, and are stored and answered as if they had been parsed."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Publish
from tests.support.http.http_driver import Gateway, request
from tests.support.process.examples import examples

NAMES = ("ce-id", "ce-time", "traceparent", "content-type", "ce-source", "ce-subject", "x-reply-to", "ce-ext", "accept")
VALUES = (
    "1",
    "a-b_c.~",
    '"quoted"',
    "50%25",
    "two words",
    "2026-11-23T02:45:00Z",
    "2026-11-23T02:45:00.120Z",
    "2026-11-23t02:45:60z",
    "1969-01-01T00:00:00Z",
    "//a/b",
    "text/plain",
    "application/cloudevents+json",
    "x" * 300,
)
OTHERS = (
    ("expect", "100-continue"),
    ("connection", "close"),
    ("idempotency-key", "k"),
    ("transfer-encoding", "chunked"),
    ("ce-partitionkey", "k"),
    ("ce-traceparent", "t"),
    ("Content-Length", "3"),
    ("host", "other"),
)
OPENING = request("GET", "/topics")  # by which the gateway learns who asks
EVENT = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "//a/b", "ce-type": "t"}
TARGETS = (
    "/events",
    "/topics/a/b",
    "/topics/a%20c?qos=1",
    "/topics/a?qos=0",
    "/topics/a?retain=true",
    "/topics/a?expiry=9",
)


ENVELOPES = [  # of one length
    b'{"specversion":"1.0","id":"%d","source":"/s","type":"t","subject":"a/%d"}' % (n, n) for n in range(4)
]

PLAIN = {
    "ce-id": ("1", "a-b_c.~", "{}"),
    "ce-time": ("2026-11-23T02:45:00Z", "2026-11-23T02:45:00.120Z", "2026-11-23T02:45:00.120000Z"),
    "traceparent": ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "t"),
}


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Draws requests that are mostly alike, structured or not, and now and then bytes that are none, or two at once."""

    def rarely() -> bool:
        return draw(st.integers(0, 19)) == 0

    target = draw(st.sampled_from(TARGETS if rarely() else TARGETS[:3]))
    fixed = dict(EVENT) if target == "/events" or draw(st.booleans()) else {}
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=3)):
        fixed[name] = draw(st.sampled_from(VALUES if rarely() or name not in PLAIN else PLAIN[name]))
    fixed.update({"ce-source": "/s"} if fixed.get("ce-source") and not rarely() else {})
    bodies = st.binary(max_size=12)
    if draw(st.integers(0, 4)) == 0:
        fixed["content-type"] = "application/cloudevents+json"
        bodies = st.sampled_from(ENVELOPES)
    reads: list[bytes] = []
    for _ in range(draw(st.integers(3, 8))):
        headers = dict(fixed)
        for name, values in PLAIN.items():
            if name in headers:
                headers[name] = draw(st.sampled_from(VALUES if rarely() else values))
        odd = [draw(st.sampled_from(OTHERS))] if rarely() else []
        read = request("POST", target, *headers.items(), *odd, body=draw(bodies))
        if rarely():
            cut = draw(st.integers(1, len(read) - 1))
            reads += [read[:cut], read[cut:]]
        else:
            reads.append(read + request("GET", "/topics") if rarely() else read)
    return reads


@settings(deadline=None, max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(conversations())
def test_the_short_way_says_and_stores_what_the_long_one_does(reads: list[bytes]) -> None:
    short, long = Gateway(), Gateway(short=False)
    assert short.feed(OPENING) == long.feed(OPENING)
    for read in reads:
        assert short.feed(read) == long.feed(read)
        assert short.messages == long.messages
        assert short.closed == long.closed


@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(conversations())
def test_a_message_can_change_to_the_long_way_at_any_time(reads: list[bytes]) -> None:
    short, long = Gateway(), Gateway(short=False)
    assert short.feed(OPENING) == long.feed(OPENING)
    short.hold = long.hold = True
    for read in reads:
        assert short.feed(read) == long.feed(read)
        assert [one.messages for one in short.held if isinstance(one, Publish)] == [
            one.messages for one in long.held if isinstance(one, Publish)
        ]
        assert short.release() == long.release()
        short.hold = long.hold = True


@settings(deadline=None, max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(conversations(), st.data())
def test_runs_of_requests_are_stored_and_answered_as_if_they_had_been_parsed(
    reads: list[bytes], data: st.DataObject
) -> None:
    """Several requests in a read, reads while others are under way, and some of the messages refused."""
    short, long = Gateway(), Gateway(short=False)
    pair = (short, long)
    assert short.feed(OPENING) == long.feed(OPENING)
    if data.draw(st.booleans(), label="refused"):
        for gateway in pair:
            gateway.refusals["a/b"] = Refusal(Cause.OVERLOAD, "full")
    while reads:
        count = data.draw(st.integers(1, 4), label="requests of a read")
        read, reads = b"".join(reads[:count]), reads[count:]
        if data.draw(st.booleans(), label="held"):
            short.hold = long.hold = True
        for gateway in pair:
            gateway.act(gateway.adapter.receive(read, now_ms=gateway.now_ms))
        if data.draw(st.booleans(), label="released"):
            short.release_all()
            long.release_all()
        if data.draw(st.integers(0, 9), label="goes down") == 0:
            for gateway in pair:
                gateway.act(gateway.adapter.shutdown(now_ms=gateway.now_ms))
        assert short.adapter.take_output() == long.adapter.take_output()
        assert short.messages == long.messages
        assert short.adapter.wants_data == long.adapter.wants_data
    short.release_all()
    long.release_all()
    assert short.adapter.take_output() == long.adapter.take_output()
    assert short.messages == long.messages
    assert short.closed == long.closed
