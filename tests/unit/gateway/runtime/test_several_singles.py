"""Several single messages of one HTTP connection in flight: each has its own answer, and they come in their order."""

import socket
from contextlib import closing
from types import SimpleNamespace

import msgspec
import pytest

from adapters.http.handlers.repeats import SINGLES_MAX
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.runtime import endpoint, turn
from gateway.runtime.endpoint import OUTSTANDING_BYTES_MAX
from gateway.runtime.turn import ReadBatch, StreamEndpoint
from gateway.sockets import batches, plain_batches
from store.format.frame import LogOffset, Position
from tests.support.gateway.http_client import HttpClient, event


@pytest.fixture(params=[False, True], ids=["transport", "plain"])
def client(request):
    """Makes a client whose answers its transport writes, or that are written to its socket directly."""
    with closing(HttpClient(plain=request.param)) as client:
        yield client


def broken(*_, **__):
    raise KeyError("a bug of ours")


@pytest.fixture
def other(monkeypatch):
    """Makes another client, that no bug which the first one meets may reach."""
    monkeypatch.setattr(turn, "log", SimpleNamespace(exception=lambda *_, **__: None))
    monkeypatch.setattr(endpoint, "log", SimpleNamespace(exception=lambda *_, **__: None))
    other = HttpClient()
    other.post("x")
    return other


def ids(answers):
    return [(one.status, one.json.get("id")) for one in answers]


def test_a_request_behind_one_that_is_in_flight_takes_the_short_way_too(client):
    client.post("a", "b", "c")
    assert client.in_flight == ["a", "b", "c"]
    assert not client.hub.published
    client.store(0, 1, 2)
    answers = client.said()
    assert ids(answers) == [(200, "a"), (200, "b"), (200, "c")]
    assert [one.json["position"] for one in answers] == ["7.0", "7.1", "7.2"]
    assert client.rests


def test_requests_of_one_read_take_the_short_way_behind_others(client):
    client.post("a")
    client.send(event("b"), event("c"))
    assert client.in_flight == ["a", "b", "c"]
    client.store(0)
    assert ids(client.said()) == [(200, "a")]
    client.post("d")
    client.store(0, 1, 2, frame=8)
    assert ids(client.said()) == [(200, "b"), (200, "c"), (200, "d")]
    assert client.rests


def test_one_that_is_stored_first_is_answered_behind_those_before_it(client):
    client.post("a", "b", "c")
    client.store(1, frame=9)
    assert client.said() == []
    client.store(0, frame=7)
    answers = client.said()
    assert [(one.json["id"], one.json["position"]) for one in answers] == [("a", "7.0"), ("b", "9.0")]
    client.store(0, frame=8)
    assert ids(client.said()) == [(200, "c")]
    assert client.rests
    client.post("d")
    client.store(0)
    assert ids(client.said()) == [(200, "d")]


@pytest.mark.parametrize("failed", [0, 1, 2])
def test_one_that_fails_touches_no_other(client, failed):
    client.post("a", "b", "c")
    client.fail(failed, Cause.OVERLOAD)
    assert [one.status for one in client.said()] == [503] * (failed == 0)
    client.store(0, 1)
    statuses = [200, 200, 200]
    statuses[failed] = 503
    assert [one.status for one in client.said()] == statuses[failed == 0 :]
    assert client.rests


class Permissions:
    """Of a user who may not publish `b`."""

    identity = SimpleNamespace(client_id="")

    def __init__(self, *, bug=""):
        self.access, self._bug = self, bug

    def refused(self, messages):
        if messages[0].id == self._bug:
            broken()
        return {0: Refusal(Cause.FORBIDDEN, "no")} if messages[0].id == "b" else {}


def test_one_that_may_not_publish_is_refused_in_its_turn(client):
    template = client.connection.adapter.repeats._template
    template.who = Principal(name="ada", permissions=Permissions())
    client.send(event("a"), event("b"), event("c"))
    assert client.in_flight == ["a", "c"]
    client.publish(0, refused=client.hub.denied[0])
    assert client.said() == []
    client.store(0, 1)
    assert [one.status for one in client.said()] == [200, 403, 200]
    assert client.rests


@pytest.mark.parametrize("last", [event("c", ("idempotency-key", "k")), event("c", ("x-other", "1"))])
def test_a_request_that_repeats_none_is_answered_behind_them(client, last):
    client.post("a", "b")
    client.send(last)
    assert client.in_flight == ["a", "b"]
    client.publish(0)
    assert client.said() == []
    client.store(0, 1)
    assert ids(client.said()) == [(200, "a"), (200, "b"), (200, "c")]
    assert client.rests


def test_while_such_a_request_is_in_flight_none_takes_the_short_way(client):
    client.post("a")
    client.send(event("b", ("x-other", "1")))
    client.post("c")
    assert client.in_flight == ["a"]
    assert len(client.hub.published) == 2


def test_a_malformed_request_is_answered_behind_them_and_ends_the_connection(client):
    client.post("a", "b")
    client.send(b"\0\r\n\r\n")
    assert client.said() == []
    client.store(0, 1)
    assert [one.status for one in client.said()] == [200, 200, 400]
    assert client.rests
    assert client.transport.is_closing()


def test_they_are_answered_when_the_gateway_goes_down(client):
    client.post("a", "b")
    client.connection.shut_down()
    client.store(0, 1)
    answers = client.said()
    assert ids(answers) == [(200, "a"), (200, "b")]
    assert [one["connection"] for one in answers] == [None, "close"]
    assert client.rests


def test_a_half_closed_peer_gets_all_answers_and_then_the_end(client):
    client.post("a", "b")
    assert client.connection.eof_received()
    client.store(0)
    assert not client.transport.closed
    client.store(0)
    assert ids(client.said()) == [(200, "a"), (200, "b")]
    assert client.transport.closed


@pytest.mark.parametrize("stored", [True, False])
def test_nothing_is_said_to_one_that_has_gone(client, stored):
    client.post("a", "b")
    client.transport.lose()
    for _ in range(2):
        client.store(0) if stored else client.fail(0, Cause.UNAVAILABLE)
    assert client.said() == []
    assert client.rests


def test_answers_wait_for_a_peer_that_does_not_read(client):
    client.post("a", "b")
    client.transport.pause()
    client.store(0, 1)
    assert client.said() == []
    client.transport.resume()
    assert ids(client.said()) == [(200, "a"), (200, "b")]
    assert client.rests


@pytest.mark.parametrize(
    ("differs", "takes"),
    [
        ({}, True),
        ({"told": [None]}, False),
        ({"outstanding_bytes": OUTSTANDING_BYTES_MAX}, False),
        ({"adapter": SimpleNamespace(singles_max=2)}, False),
    ],
    ids=["singles alone", "told", "bytes", "enough"],
)
def test_another_may_be_in_flight_beside_singles_that_the_adapter_does_not_know(differs, takes):
    state = {
        "adapter": SimpleNamespace(singles_max=3),
        "outstanding_bytes": OUTSTANDING_BYTES_MAX - 1,
        "singles_in_flight": [None, None],
        "told": [],
    }
    assert StreamEndpoint.takes_more.fget(SimpleNamespace(**{**state, **differs})) is takes


@pytest.mark.parametrize("beside", [(), ("a",)])
def test_while_anything_else_is_in_flight_the_adapter_is_not_asked(client, beside):
    client.post(*beside)
    client.connection.outstanding_count += 1
    client.post("b")
    assert client.in_flight == [*beside]
    assert len(client.hub.published) == 1


def test_each_of_a_read_has_its_share_of_the_bytes(client):
    reads = (event("a"), event("b"), event("c"))
    client.send(*reads)
    assert client.connection.outstanding_bytes == sum(map(len, reads)) // 3 * 3
    client.store(1)
    assert client.connection.outstanding_bytes == sum(map(len, reads)) // 3 * 2
    client.store(0, 1)
    assert client.rests


def test_behind_one_of_unknown_rights_none_of_its_read_is_stored(client, other):
    template = client.connection.adapter.repeats._template
    template.who = Principal(name="ada", permissions=Permissions(bug="b"))
    client.send(event("a"), event("b"), event("c"))
    assert client.transport.is_closing()
    assert client.in_flight == ["a"]
    assert client.connection.outstanding_count == 1


def test_no_more_are_read_than_may_be_pipelined():
    client = HttpClient(max_pipelined=2)
    client.post("a", "b")
    assert client.transport.reading
    client.post("c")
    assert client.in_flight == ["a", "b"]
    assert not client.transport.reading
    client.publish(0)
    client.store(0, 1)
    assert ids(client.said()) == [(200, "a"), (200, "b"), (200, "c")]
    assert client.transport.reading
    assert client.rests


def test_a_read_is_taken_whole_while_another_may_be_in_flight():
    client = HttpClient(max_pipelined=2)
    client.post("a")
    client.send(*map(event, "bcde"))
    assert client.in_flight == ["a", "b", "c", "d", "e"]
    client.post("f")
    assert len(client.in_flight) == 5


@pytest.mark.parametrize(("max_pipelined", "singles_max"), [(1, 1), (SINGLES_MAX, SINGLES_MAX), (10_000, SINGLES_MAX)])
def test_so_many_are_in_flight_that_looking_for_one_is_quick(max_pipelined, singles_max):
    assert HttpClient(max_pipelined=max_pipelined).connection.adapter.singles_max == singles_max


def test_no_more_are_read_than_one_connection_may_have_us_hold(client):
    for id_ in "abc":
        client.send(event(id_, body=bytes(OUTSTANDING_BYTES_MAX // 2)))
    assert client.in_flight == ["a", "b"]
    assert not client.transport.reading


def test_one_whose_adapter_knows_no_way_for_it_ends_and_no_other(client, other):
    client.post("a", "b")
    client.connection.adapter.publish_of = broken
    client.hub.turn.acknowledged([client.hub.singles[1], *other.hub.singles], Position(LogOffset(7), 0))
    assert client.transport.is_closing()
    assert ids(other.said()) == [(200, "x")]
    client.hub.turn.acknowledged(client.hub.singles[:1], Position(LogOffset(8), 0))
    assert client.said() == []
    assert client.rests


def test_one_whose_answer_cannot_be_made_ends_and_no_other(client, other):
    client.post("a")
    connection, single, size_bytes = client.hub.singles.pop()
    single = connection.singles_in_flight[0] = msgspec.structs.replace(single, answer=broken)
    client.hub.turn.acknowledged([(connection, single, size_bytes), *other.hub.singles], Position(LogOffset(7), 0))
    assert client.transport.is_closing()
    assert ids(other.said()) == [(200, "x")]


def test_one_that_fails_and_whose_adapter_does_too_ends(client, other):
    client.post("a", "b")
    client.connection.adapter.publish_of = broken
    client.fail(1, Cause.OVERLOAD)
    assert client.transport.is_closing()
    client.fail(0, Cause.OVERLOAD)
    assert client.said() == []
    assert client.rests


def test_messages_whose_adapter_does_not_know_them_are_published_and_nothing_behind_them_is(client, other):
    client.post("a", "b")
    client.connection.adapter.publish_of = broken
    client.send(event("c", ("x-other", "1")))
    assert client.transport.is_closing()
    assert client.hub.published == []
    effects = [client.connection.publish_of(single) for _, single, _ in client.hub.singles]
    assert [message.id for effect in effects for message in effect.messages] == ["a", "b"]


def test_one_that_may_not_publish_and_whose_adapter_fails_ends_and_no_other(client, other):
    template = client.connection.adapter.repeats._template
    template.who = Principal(name="ada", permissions=Permissions())
    client.connection.adapter.publish_of = broken
    other.connection.hub = other.connection._hub = client.hub
    client.hub.turn.received([(client.connection, event("b")), (other.connection, event("y"))])
    assert client.transport.is_closing()
    assert client.in_flight == ["y"]


@pytest.mark.parametrize("made", [plain_batches, batches.CALLS], ids=["plain", "chosen"])
def test_the_answers_of_a_frame_are_one_write(made):
    """A socket that takes only a part of the first one must not get the second in its middle."""
    client = HttpClient()
    ours, peer = socket.socketpair()
    with ours, peer:
        ours.setblocking(False)
        peer.setblocking(False)
        left = []
        client.connection.plain = SimpleNamespace(
            writable_number=ours.fileno(), wrote=lambda data, taken: left.append(data[taken:])
        )
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        filled = 0
        try:
            while True:
                filled += ours.send(bytes(1_000))
        except BlockingIOError:
            pass
        client.post("a", "b", "c")
        waiting, client.hub.singles = client.hub.singles, []
        ReadBatch(client.hub, batches=made).acknowledged(waiting, Position(LogOffset(7), 0))
        client.transport.written += left
    assert len(left) == 1
    assert ids(client.said()) == [(200, "a"), (200, "b"), (200, "c")]
    assert client.rests
