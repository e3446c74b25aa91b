"""CoAP over TCP (RFC 8323), driven by bytes and a clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.coap.codec.registry import (
    BLOCK1,
    BLOCK2,
    CHANGED,
    CONTENT,
    CREATED,
    EMPTY,
    GET,
    OBSERVE,
    POST,
    PUT,
)
from adapters.coap.codec.wire import encode_options, encode_uint
from adapters.coap.messages.request import Block
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.stream import IDLE_FRAMES_MAX, StreamsContext
from adapters.coap.stream.connection import OUTPUT_BYTES_MAX, REQUESTS_MAX
from adapters.coap.stream.frames import FrameError, encode_frame, read_head
from adapters.coap.stream.signals import ABORT, CSM, PING, PONG, RELEASE
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import (
    Close,
    Settled,
)
from store.api.message import Message
from tests.support.coap.coap_streams import CoapStreamPeer, csm, request


def value(text: str) -> Message:
    return Message(address="a/b", body=text.encode(), id=f"id-{text}")


# ---- frames


@given(st.integers(0, 255), st.binary(max_size=8), st.one_of(st.binary(max_size=400), st.just(bytes(66_000))))
def test_a_frame_reads_as_it_was_written(code: int, token: bytes, rest: bytes) -> None:
    data = b"??" + encode_frame(code, token, rest)
    head = read_head(data, 2)
    assert head is not None
    assert (head.code, head.end) == (code, len(data) - 2)
    assert data[2 + head.token_at : 2 + head.options_at] == token
    assert data[2 + head.options_at :] == rest
    assert all(read_head(data[: 2 + cut], 2) is None for cut in range(2))


@pytest.mark.parametrize(("length", "head"), [(0, 2), (12, 2), (13, 3), (268, 3), (269, 4), (65_804, 4), (65_805, 6)])
def test_lengths_take_as_many_bytes_as_they_must(length: int, head: int) -> None:
    assert len(encode_frame(1, b"", bytes(length))) == head + length


@pytest.mark.parametrize("tkl", range(9, 16))
def test_too_long_a_token_is_no_frame(tkl: int) -> None:
    with pytest.raises(FrameError):
        read_head(bytes((tkl, 1)) + bytes(20), 0)


# ---- signaling


def test_both_sides_begin_with_a_csm() -> None:
    client = CoapStreamPeer(opened=False, max_body_bytes=1_000)
    (first,) = client.sent()
    assert (first.code, first.options) == (CSM, {2: encode_uint(1_000 + 16_384), 4: b""})
    assert client.send(csm()) == []
    assert client.closed is None


@pytest.mark.parametrize(
    ("data", "bad_option"),
    [
        (request("t/a"), None),
        (encode_frame(PING), None),
        (csm((3, b"x")), b"\x03"),
        (csm((2, b"\x01")), None),
        (encode_frame(CSM, rest=b"\xf0"), None),
        (b"\x0f\x01", None),
    ],
)
def test_another_beginning_is_aborted(data: bytes, bad_option: bytes | None) -> None:
    client = CoapStreamPeer(opened=False)
    client.sent()
    (frame,) = client.send(data)
    assert frame.code == ABORT
    assert frame.options.get(2) == bad_option
    assert frame.payload
    assert client.closed is not None


def test_empty_messages_before_the_csm_are_passed_over_and_do_not_put_its_time_off() -> None:
    client = CoapStreamPeer(opened=False)
    client.sent()
    assert client.send(encode_frame(EMPTY), csm()) == []
    assert client.closed is None
    slow = CoapStreamPeer(opened=False)
    slow.sent()
    for _ in range(3):
        assert slow.send(encode_frame(EMPTY)) == slow.wait(3_000) == []
    slow.send(csm()[:1])
    (frame,) = slow.wait(1_000)
    assert frame.code == ABORT
    assert slow.closed is not None


def test_an_unknown_signal_is_aborted_and_unknown_classes_and_empty_frames_are_passed_over() -> None:
    client = CoapStreamPeer()
    assert client.send(encode_frame(EMPTY), encode_frame(0x45, b"x"), encode_frame(0x20), encode_frame(PONG)) == []
    assert client.closed is None
    (frame,) = client.send(encode_frame(0xEF))
    assert frame.code == ABORT


@pytest.mark.parametrize("code", [PING, PONG, RELEASE], ids=["Ping", "Pong", "Release"])
def test_a_critical_option_of_a_signal_that_is_not_understood_aborts(code: int) -> None:
    peer = CoapStreamPeer()
    assert peer.send(encode_frame(code, b"p", encode_options([(8, b""), (9, b"")])))[-1].code == ABORT
    assert peer.closed is not None
    other = CoapStreamPeer()
    other.send(encode_frame(PING, b"p", encode_options([(8, b"")])))
    assert other.closed is None
    other.send(encode_frame(ABORT, rest=encode_options([(9, b"")])))
    assert other.closed is not None
    assert other.sent() == []


def test_a_ping_is_answered_and_with_custody_behind_what_was_asked_for() -> None:
    client = CoapStreamPeer()
    client.holds = True
    assert [(frame.code, frame.token, frame.options) for frame in client.send(encode_frame(PING, b"p"))] == [
        (PONG, b"p", {})
    ]
    custody = encode_frame(PING, b"q", encode_options([(2, b"")]))
    assert client.send(request("t/a"), custody) == []
    assert [(frame.code, frame.options) for frame in client.answer()] == [(CREATED, {}), (PONG, {2: b""})]


@pytest.mark.parametrize("code", [PING, PONG, EMPTY])
def test_a_read_with_hundreds_of_frames_that_ask_for_nothing_ends_the_connection(code: int) -> None:
    client = CoapStreamPeer()
    answers = client.send(encode_frame(code) * IDLE_FRAMES_MAX, request("t/a"))
    assert CREATED in [frame.code for frame in answers]
    answers = client.send(encode_frame(code) * (IDLE_FRAMES_MAX + 1))
    assert answers[-1].code == ABORT


def test_a_release_waits_for_the_answers() -> None:
    client = CoapStreamPeer()
    client.holds = True
    assert client.send(request("t/a") + encode_frame(RELEASE) + request("t/b")) == []
    assert client.closed is None
    assert [frame.code for frame in client.answer()] == [CREATED]
    assert client.closed == Close(reason="")
    assert len(client.stored) == 1


def test_an_abort_closes() -> None:
    client = CoapStreamPeer()
    assert client.send(encode_frame(ABORT)) == []
    assert client.closed is not None


def test_who_says_nothing_is_closed() -> None:
    client = CoapStreamPeer(opened=False)
    client.sent()
    assert client.wait(0) == client.wait(9_999) == []
    (frame,) = client.wait(1)
    assert frame.code == ABORT


def test_who_is_silent_is_asked_first() -> None:
    client = CoapStreamPeer(observe_confirm_ms=5_000)
    assert [frame.code for frame in client.wait(5_000)] == [PING]
    client.send(encode_frame(PONG))
    assert [frame.code for frame in client.wait(5_000)] == [PING]
    assert client.closed is None
    client.wait(93_000)
    assert client.closed is not None


def test_a_shutdown_releases() -> None:
    client = CoapStreamPeer()
    client.act(client.connection.shutdown(now_ms=client.now_ms))
    assert [frame.code for frame in client.sent()] == [RELEASE]
    assert client.closed is not None


# ---- requests


def test_a_certificates_user_is_the_device_of_its_messages() -> None:
    """Unless it may speak for other devices: then the address says, as it does for strangers."""
    found = []
    for principal in (
        Principal(name="dev1"),
        Principal(name="dev1", device="plant/dev1"),
        Principal(name="gateway", trusted_gateway=True),
        Principal(name=""),
    ):
        client = CoapStreamPeer()
        client.principal = principal
        for _ in range(2):
            client.send(request("t/telemetry/site1/dev42"))
        found.append([(message.device, message.principal) for message in client.stored])
    assert found == [
        *([("dev1", None)] * 2, [("plant/dev1", None)] * 2, [("dev42", "gateway")] * 2, [("dev42", "")] * 2),
    ]


def test_requests_are_answered_by_their_tokens() -> None:
    client = CoapStreamPeer()
    client.last = value("7")
    (created,) = client.send(request("t/a/b", token=b"1", payload=b"x"))
    (got,) = client.send(request("t/a/b", GET, token=b"22"))
    assert (created.code, created.token) == (CREATED, b"1")
    assert (got.code, got.token, got.payload) == (CONTENT, b"22", b"7")
    assert [(message.address, message.body, message.qos) for message in client.stored] == [("a/b", b"x", 1)]


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(0, 3))
def test_frames_may_be_cut_anywhere(cuts: list[int], kind: int) -> None:
    client = CoapStreamPeer()
    data = b"".join(request(f"t/a/{n}", (POST, PUT)[n % 2], token=bytes((n,)), payload=bytes(n)) for n in range(1, 9))
    data += encode_frame((PING, EMPTY, PONG, 0x45)[kind], b"p")
    at, sent = 0, []
    for cut in cuts:
        sent += client.send(data[at : at + cut])
        at += cut
    sent += client.send(data[at:])
    assert sorted([message.address for message in client.stored]) == [f"a/{n}" for n in range(1, 9)]
    answered = [frame.token for frame in sent if frame.code in {CREATED, CHANGED}]
    assert sorted(answered) == [bytes((n,)) for n in range(1, 9)]


def test_the_same_token_again_is_a_new_request() -> None:
    client = CoapStreamPeer()
    for _ in range(3):
        assert len(client.send(request("t/a", token=b""))) == 1
    assert len(client.stored) == 3


@pytest.mark.slow
def test_message_ids_that_come_round_are_new_requests() -> None:
    client = CoapStreamPeer()
    data = request("t/a", token=b"") * 1_000
    for _ in range(70):
        client.send(data)
    assert len(client.stored) == 70_000


def test_a_large_body_comes_in_one_message() -> None:
    client = CoapStreamPeer()
    body = bytes(range(256)) * 4_000
    (frame,) = client.send(request("t/a", payload=body))
    assert frame.code == CREATED
    assert client.stored[0].body == body
    assert client.context.arriving_bytes == 0


def test_bodies_are_read_in_blocks_that_the_peer_can_take() -> None:
    client = CoapStreamPeer(opened=False)
    client.sent()
    client.last = value("x" * 3_000)
    client.send(csm((2, encode_uint(400))))
    (frame,) = client.send(request("t/a/b", GET))
    assert (len(frame.payload), Block.decode(frame.options[BLOCK2], "").size) == (256, 256)
    client.send(csm((2, encode_uint(200))))  # it counts from now on (RFC 8323, 5.3)
    (frame,) = client.send(request("t/a/b", GET))
    assert (len(frame.payload), Block.decode(frame.options[BLOCK2], "").size) == (64, 64)
    client.send(csm((2, encode_uint(100_000))))
    (frame,) = client.send(request("t/a/b", GET))
    assert len(frame.payload) == 1_024
    last = (BLOCK2, Block(2, False, 6).encode())
    client.send(request("t/a/b", GET, options=(last,)))
    assert len(client.context.transfers.snapshots) == 0  # a stream loses nothing


def test_a_body_may_come_in_blocks_and_goes_with_the_connection() -> None:
    client = CoapStreamPeer()
    first = (BLOCK1, Block(0, True, 2).encode())
    (frame,) = client.send(request("t/a", PUT, payload=bytes(64), options=(first,)))
    assert frame.code == 0x5F
    assert len(client.context.transfers.uploads) == 1
    client.connection.lost(now_ms=client.now_ms)
    assert len(client.context.transfers.uploads) == 0


def test_a_row_of_blocks_may_come_in_one_message() -> None:
    client = CoapStreamPeer()
    body = bytes(range(256)) * 20 + b"end"
    first, last = (BLOCK1, Block(0, True, 7).encode()), (BLOCK1, Block(4, False, 7).encode())
    (frame,) = client.send(request("t/a", PUT, payload=body[:4_096], options=(first,)))
    assert (frame.code, frame.options[BLOCK1]) == (0x5F, first[1])
    (frame,) = client.send(request("t/a", PUT, payload=body[4_096:], options=(last,)))
    assert frame.code == CREATED
    assert client.stored[0].body == body
    (frame,) = client.send(request("t/a", PUT, payload=body[:4_095], options=(first,)))
    assert frame.code == 0x80


def test_a_malformed_request_is_aborted() -> None:
    client = CoapStreamPeer()
    (frame,) = client.send(encode_frame(POST, b"t", b"\xf0"))
    assert frame.code == ABORT
    assert client.stored == []


def test_too_large_a_message_is_aborted_before_it_comes() -> None:
    client = CoapStreamPeer(max_body_bytes=1_000)
    (frame,) = client.send(encode_frame(POST, b"", bytes(20_000))[:6])
    assert frame.code == ABORT


def test_large_messages_that_arrive_are_bounded_over_all_connections() -> None:
    context = StreamsContext(CoapOptions(block_bytes_max=2 << 20))
    large = request("t/a", payload=bytes(1_000_000))
    clients = [known(context) for _ in range(3)]
    assert [client.send(large[:-100]) for client in clients[:2]] == [[], []]
    (frame,) = clients[2].send(large[:-100])
    assert frame.code == ABORT
    assert [frame.code for frame in clients[0].send(large[-100:])] == [CREATED]
    clients[1].connection.lost(now_ms=0)
    assert context.arriving_bytes == 0


def known(context: StreamsContext) -> CoapStreamPeer:
    """Returns a peer that was let in with its first request."""
    client = CoapStreamPeer(context=context)
    client.send(request("t/a"))
    return client


def test_large_messages_that_are_only_announced_keep_nobody_out() -> None:
    context = StreamsContext(CoapOptions(block_bytes_max=2 << 20))
    large = request("t/a", payload=bytes(1_000_000))
    announced = [CoapStreamPeer(context=context) for _ in range(100)]
    assert [client.send(large[:100]) for client in announced] == [[]] * 100
    client = CoapStreamPeer(context=context)
    assert client.send(large[:-100]) == []
    assert [frame.code for frame in client.send(large[-100:])] == [CREATED]


def test_peers_that_nobody_has_let_in_leave_room_for_those_who_are() -> None:
    context = StreamsContext(CoapOptions(block_bytes_max=4 << 20))
    large = request("t/a", payload=bytes(1_000_000))
    guest = known(context)
    strangers = [CoapStreamPeer(context=context) for _ in range(4)]
    codes = [frame.code for client in strangers for frame in client.send(large[:-100])]
    assert codes == [ABORT] * 2
    assert guest.send(large[:-100]) == []
    assert [frame.code for frame in guest.send(large[-100:])] == [CREATED]
    for client in strangers:
        client.connection.lost(now_ms=0)
    assert context.arriving_bytes == 0


def test_a_large_message_that_does_not_come_is_aborted() -> None:
    client = CoapStreamPeer()
    large = request("t/a", payload=bytes(1_000_000))
    client.send(large[:100])
    assert client.wait(30_000) == []
    assert [frame.code for frame in client.wait(1_000_000)] == [ABORT]
    assert client.context.arriving_bytes == 0


def test_requests_under_way_are_bounded_and_none_is_lost() -> None:
    client = CoapStreamPeer()
    client.holds = True
    client.send(request("t/a") * (2 * REQUESTS_MAX))
    assert not client.connection.wants_data
    codes = [frame.code for _ in range(2) for frame in client.answer()]
    assert codes == [CREATED] * (2 * REQUESTS_MAX)
    assert client.connection.wants_data


def test_all_requests_of_who_is_not_let_in_are_refused() -> None:
    client = CoapStreamPeer(opened=False)
    client.sent()
    client.refusal = Refusal(Cause.UNAUTHENTICATED, "who are you?")
    sent = client.send(csm() + request("t/a") * 3)
    assert [frame.code for frame in sent] == [0x81] * 3
    assert client.stored == []


# ---- Observe


def observing() -> CoapStreamPeer:
    client = CoapStreamPeer()
    client.last = value("0")
    (frame,) = client.send(request("t/a/b", GET, options=((OBSERVE, b""),)))
    assert OBSERVE in frame.options
    return client


def test_each_message_is_a_notification() -> None:
    client = observing()
    heard = []
    for n in range(1, 101):
        assert client.deliver(value(str(n))) == 1
        heard += client.sent()
    assert [frame.payload for frame in heard] == [str(n).encode() for n in range(1, 101)]
    assert {frame.token for frame in heard} == {b"tk"}


def test_who_does_not_read_is_sent_no_more_until_he_does() -> None:
    client = observing()
    large = "x" * 1_000
    taken = sum(client.deliver(value(f"{n}{large}")) for n in range(1_000))
    assert OUTPUT_BYTES_MAX // 2 < taken * 1_000 < 2 * OUTPUT_BYTES_MAX
    client.sent()
    effects = client.connection.tick(now_ms=client.now_ms)
    assert Settled() in effects
    assert client.deliver(value("more")) == 1
