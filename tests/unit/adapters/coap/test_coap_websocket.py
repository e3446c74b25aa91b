"""CoAP over WebSocket (RFC 8323, 4), spoken to by the client of `websockets`, by bytes and a clock."""

import tracemalloc
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from adapters.coap.codec.registry import CONTENT, CREATED, GET, OBSERVE, POST, URI_PATH
from adapters.coap.codec.wire import encode_options, read_options
from adapters.coap.factory import CoapFactory
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.stream import FREE_BYTES, IDLE_FRAMES_MAX
from adapters.coap.stream.frames import FrameError, encode_frame
from adapters.coap.stream.signals import ABORT, CSM, PING, PONG, RELEASE
from adapters.coap.websocket.framing import FRAGMENT_BYTES_MIN
from adapters.coap.websocket.messages import to_frame, to_messages
from adapters.websocket.connection import CLOSING_MS
from gateway.domain.forwarding import ForwardingSettings
from gateway.domain.forwarding_settings import ForwardingConfig
from gateway.domain.principal import Principal
from gateway.port.adapter import DONE, Authenticate, Call, Close, ConnectionInfo, Outcome, Publish
from store.api.message import Message

PEER = ("192.0.2.7", 40_000)
TARGET = "ws://gateway.example/.well-known/coap"


def message(code: int, token: bytes = b"", options: Any = (), payload: bytes = b"") -> bytes:
    """Returns a CoAP message as a WebSocket message carries it: Len is 0."""
    rest = encode_options(list(options)) + (b"\xff" + payload if payload else b"")
    return bytes((len(token), code)) + token + rest


def path(text: str) -> list[tuple[int, bytes]]:
    return [(URI_PATH, level.encode()) for level in text.split("/")]


class Peer:
    """A client, and the gateway's side, which stores and answers at once."""

    def __init__(
        self,
        *,
        uri: str = TARGET,
        offers: Any = ("coap",),
        origin: str | None = None,
        forwarded: str = "",
        factory: CoapFactory | None = None,
        **options: Any,
    ) -> None:
        self.now_ms = 1_000_000
        forwarding = ForwardingSettings(ForwardingConfig(proxies=("192.0.2.0/24",))) if forwarded else None
        info = ConnectionInfo(peer=PEER, local=PEER, websocket=True, forwarding=forwarding)
        settings = options.pop("settings", None) or CoapOptions(**options)
        self.adapter = (factory or CoapFactory()).connect(info, settings, random=Random(7))
        self.client = ClientProtocol(parse_uri(uri), subprotocols=list(offers) if offers else None, origin=origin)
        self.stored: list[Message] = []
        self.asked: list[Authenticate] = []
        self.last: Message | None = None
        self.closed: Close | None = None
        request = self.client.connect()
        if forwarded:
            request.headers["X-Forwarded-For"] = forwarded
        self.client.send_request(request)
        self.flush()
        self.answer, *self.early = self.client.events_received()
        assert isinstance(self.answer, Response)

    def flush(self) -> None:
        """Takes what the client sends to the adapter, and what that answers back."""
        for data in self.client.data_to_send():
            if data:
                self.act(self.adapter.receive(data, now_ms=self.now_ms))
        self.client.receive_data(self.adapter.take_output())

    def act(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, Close):
                self.closed = effect
            elif isinstance(effect, Call) and isinstance(effect.request, Authenticate):
                self.asked.append(effect.request)
                self.complete(effect, Outcome(value=Principal(name="")))
            elif isinstance(effect, Publish):
                self.stored += effect.messages
                self.complete(effect, DONE)
            elif isinstance(effect, Call):
                self.complete(effect, Outcome(value=self.last))

    def complete(self, effect: Any, outcome: Outcome) -> None:
        self.act(self.adapter.completed(effect.token, outcome, now_ms=self.now_ms))

    def send(self, *messages: bytes) -> list[bytes]:
        for one in messages:
            self.client.send_binary(one)
        self.flush()
        return self.heard()

    def heard(self) -> list[bytes]:
        """Returns the messages that the client has received."""
        found, self.early = [*self.early, *self.client.events_received()], []
        return [bytes(one.data) for one in found if isinstance(one, Frame) and one.opcode is Opcode.BINARY]

    def wait(self, ms: int) -> list[bytes]:
        self.now_ms += ms
        while (due := self.adapter.deadline_ms()) is not None and due <= self.now_ms:
            self.act(self.adapter.tick(now_ms=self.now_ms))
        self.client.receive_data(self.adapter.take_output())
        return self.heard()


def opened(**options: Any) -> Peer:
    peer = Peer(**options)
    (csm,) = peer.send(message(CSM))
    assert csm[:2] == bytes((0, CSM))
    return peer


# ---- the handshake (4.1)


def test_the_subprotocol_is_coap() -> None:
    peer = Peer()
    assert (peer.answer.status_code, peer.answer.headers["Sec-WebSocket-Protocol"]) == (101, "coap")
    assert peer.client.state is OPEN


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"offers": ("mqtt",)}, 400),
        ({"offers": None}, 400),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "https://evil.example", "websocket_origins": ("https://other.example",)}, 403),
    ],
)
def test_another_handshake_is_refused_in_http(changes: Any, status: int) -> None:
    peer = Peer(**changes)
    assert peer.answer.status_code == status
    assert peer.closed is not None
    assert peer.closed.reason
    assert peer.adapter.receive(b"x", now_ms=peer.now_ms) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"origin": "https://gateway.example"},
        {"origin": "https://app.example", "websocket_origins": ("https://app.example",)},
        {"origin": "https://app.example", "websocket_origins": ("*",)},
    ],
)
def test_pages_that_may_connect_do(changes: Any) -> None:
    assert Peer(**changes).answer.status_code == 101


def test_what_is_no_handshake_is_refused() -> None:
    info = ConnectionInfo(peer=PEER, local=PEER, websocket=True)
    adapter = CoapFactory().connect(info, CoapOptions(), random=Random(7))
    (effect,) = adapter.receive(b"GET / HTTP/1.1\r\nno header\r\n\r\n", now_ms=0)
    assert isinstance(effect, Close)
    assert adapter.take_output().startswith(b"HTTP/1.1 400 ")


def test_another_version_is_told_the_one_that_is_known() -> None:
    info = ConnectionInfo(peer=PEER, local=PEER, websocket=True)
    adapter = CoapFactory().connect(info, CoapOptions(), random=Random(7))
    request = (
        b"GET /.well-known/coap HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 8\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"sec-websocket-protocol: coap\r\n\r\n"
    )
    (effect,) = adapter.receive(request, now_ms=0)
    assert isinstance(effect, Close)
    output = adapter.take_output()
    assert output.startswith(b"HTTP/1.1 426 ")
    assert b"\r\nDate: " in output
    assert b"\r\nSec-WebSocket-Version: 13\r\n" in output
    assert b"\r\nContent-Type: application/problem+json\r\n" in output


def test_behind_a_proxy_the_client_is_who_the_proxy_says() -> None:
    peer = opened(forwarded="203.0.113.9")
    peer.send(message(POST, b"t", path("t/a"), b"x"))
    assert [(one.address, one.sole) for one in peer.asked] == [("203.0.113.9", True)]


# ---- what a WebSocket message is (4.2)


@given(st.integers(0, 255), st.binary(max_size=8), st.one_of(st.binary(max_size=300), st.just(bytes(66_000))))
def test_a_message_is_a_frame_whose_length_says_nothing(code: int, token: bytes, rest: bytes) -> None:
    frame, one = encode_frame(code, token, rest), bytes((len(token), code)) + token + rest
    assert to_frame(one) == frame
    assert to_frame(bytes((0xF0 | one[0],)) + one[1:]) == frame  # it is ignored
    assert list(to_messages(frame * 3)) == [one] * 3


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x02\x01a"])
def test_what_is_cut_short_is_no_message(data: bytes) -> None:
    with pytest.raises(FrameError):
        to_frame(data)


def test_requests_are_answered_each_in_a_message_of_its_own() -> None:
    peer = opened()
    answers = peer.send(*[message(POST, bytes((number,)), path("t/a/b"), b"%d" % number) for number in range(3)])
    assert [one[:3] for one in answers] == [bytes((1, CREATED, number)) for number in range(3)]
    assert [(one.address, one.body) for one in peer.stored] == [("a/b", b"0"), ("a/b", b"1"), ("a/b", b"2")]
    peer.last = Message(address="a/b", body=b"2", id="m")
    (answer,) = peer.send(message(GET, b"g", path("t/a/b")))
    assert answer[:3] == bytes((1, CONTENT)) + b"g"
    assert answer.endswith(b"\xff2")


def test_a_message_may_come_in_fragments_and_its_bytes_one_by_one() -> None:
    peer = opened()
    whole = message(POST, b"t", path("t/a"), b"x" * 40)
    peer.client.send_binary(whole[:9], fin=False)
    peer.client.send_continuation(whole[9:20], fin=False)
    peer.client.send_continuation(whole[20:], fin=True)
    for byte in b"".join(peer.client.data_to_send()):
        peer.act(peer.adapter.receive(bytes((byte,)), now_ms=peer.now_ms))
    assert [one.body for one in peer.stored] == [b"x" * 40]


def test_observers_hear_of_it_and_the_first_answer_has_the_option() -> None:
    peer = opened()
    peer.last = Message(address="a", body=b"1", id="m")
    (answer,) = peer.send(message(GET, b"o", [(OBSERVE, b""), *path("t/a")]))
    options, _ = read_options(answer, 3)
    assert OBSERVE in dict(options)


def test_the_first_message_is_a_csm() -> None:
    peer = Peer()
    (csm,) = peer.heard()
    assert csm[:2] == bytes((0, CSM))


def test_a_silent_client_is_asked_by_a_ping_of_coap() -> None:
    """(RFC 8323, 4.4)"""
    peer = opened(observe_confirm_ms=5_000)
    peer.now_ms += 5_000
    peer.act(peer.adapter.tick(now_ms=peer.now_ms))
    peer.client.receive_data(peer.adapter.take_output())
    (frame,) = peer.client.events_received()
    assert isinstance(frame, Frame)
    assert (frame.opcode, frame.data[1]) == (Opcode.BINARY, PING)


def test_pings_of_both_kinds_are_answered() -> None:
    peer = opened()
    assert peer.send(message(PING, b"p")) == [message(PONG, b"p")]
    peer.client.send_ping(b"w")
    peer.flush()
    (pong,) = peer.client.events_received()
    assert (pong.opcode, pong.data) == (Opcode.PONG, b"w")


@pytest.mark.parametrize(("data", "code"), [(b"", 1002), (b"\x00", 1002), (b"\x03\x01a", 1002)])
def test_a_malformed_message_closes_the_websocket(data: bytes, code: int) -> None:
    peer = opened()
    peer.send(message(POST, b"t", path("t/a"), b"x"), data)
    assert [one.body for one in peer.stored] == [b"x"]  # it came before
    assert peer.client.close_rcvd is not None
    assert peer.client.close_rcvd.code == code
    peer.flush()  # the client's close frame
    assert peer.closed is not None


@pytest.mark.parametrize(
    "frame",
    [Frame(Opcode.PING, b""), Frame(Opcode.PONG, b"x"), Frame(Opcode.CONT, b"x", fin=False)],
    ids=["ping", "pong", "fragment of a byte"],
)
def test_a_flood_of_frames_that_bring_nothing_closes_the_websocket(frame: Frame) -> None:
    """One read of them took a tenth of a second, and nobody counted them."""
    peer = opened()
    if frame.opcode is Opcode.CONT:
        peer.act(peer.adapter.receive(Frame(Opcode.BINARY, b"\0", fin=False).serialize(mask=True), now_ms=peer.now_ms))
    for count, code in ((IDLE_FRAMES_MAX, None), (IDLE_FRAMES_MAX + 1, 1008)):
        peer.act(peer.adapter.receive(frame.serialize(mask=True) * count, now_ms=peer.now_ms))
        peer.client.receive_data(peer.adapter.take_output())
        assert (peer.client.close_rcvd and peer.client.close_rcvd.code) == code


def test_a_flood_of_empty_messages_aborts_the_connection() -> None:
    peer = opened()
    flood = Frame(Opcode.BINARY, b"\0\0").serialize(mask=True) * (IDLE_FRAMES_MAX + 1)
    peer.act(peer.adapter.receive(flood, now_ms=peer.now_ms))
    peer.client.receive_data(peer.adapter.take_output())
    assert [one[1] for one in peer.heard()] == [ABORT]
    assert peer.client.close_rcvd is not None


def test_text_closes_the_websocket() -> None:
    peer = opened()
    peer.client.send_text(message(GET, b"t", path("t/a")))
    peer.flush()
    assert peer.client.close_rcvd.code == 1003


def test_a_token_that_is_too_long_is_aborted() -> None:
    peer = opened()
    (abort,) = peer.send(b"\x09\x01" + bytes(20))
    assert abort[1] == ABORT
    assert peer.client.close_rcvd.code == 1002


def test_a_client_that_does_not_close_back_is_not_waited_for() -> None:
    peer = opened()
    peer.send(b"")
    assert peer.closed is None
    peer.wait(CLOSING_MS)
    assert peer.closed is not None
    assert peer.adapter.deadline_ms() is None


def test_the_client_may_close() -> None:
    peer = opened()
    peer.client.send_close(1000)
    peer.flush()
    assert peer.closed == Close()
    assert peer.client.close_rcvd.code == 1000


def test_a_shut_down_releases_the_connection_and_says_that_it_goes_away() -> None:
    peer = opened()
    peer.act(peer.adapter.shutdown(now_ms=peer.now_ms))
    peer.client.receive_data(peer.adapter.take_output())
    (release,) = peer.heard()
    assert release[1] == RELEASE
    assert peer.client.close_rcvd.code == 1001
    assert peer.closed is not None


def test_a_client_that_says_nothing_is_given_up() -> None:
    peer = Peer()
    for _ in range(2):
        peer.wait(60_000)
    assert peer.client.close_rcvd is not None
    assert "CSM" in peer.client.close_rcvd.reason


# ---- limits


def test_a_message_beyond_the_limit_is_refused_by_its_head() -> None:
    peer = opened(max_body_bytes=1_000)
    peer.send(message(POST, b"t", path("t/a"), bytes(40_000)))
    assert peer.client.close_rcvd.code == 1009
    assert peer.closed is not None
    assert not peer.stored


def test_what_arrives_at_once_is_bounded_over_all_connections() -> None:
    factory, settings = CoapFactory(), CoapOptions(max_body_bytes=1 << 20, block_bytes_max=1 << 20)
    peers = [Peer(factory=factory, settings=settings) for _ in range(12)]
    part = b"x" * (FREE_BYTES * 2)
    for peer in peers:
        peer.send(message(CSM))
        peer.client.send_binary(part, fin=False)
        peer.flush()
    refused = [peer for peer in peers if peer.client.close_rcvd is not None]
    assert {peer.client.close_rcvd.code for peer in refused} == {1013}
    assert 0 < len(refused) < len(peers)
    for peer in peers:
        peer.adapter.lost(now_ms=peer.now_ms)
    assert (
        factory.connect(ConnectionInfo(peer=PEER, local=PEER), settings, random=Random(1))._context.arriving_bytes == 0
    )


def test_a_message_in_small_frames_takes_hardly_more_memory_than_its_bytes() -> None:
    """As a list of its parts it took forty times what was counted."""
    peer, count = opened(), 20_000
    frames = Frame(Opcode.BINARY, b"\0", fin=False).serialize(mask=True)
    frames += Frame(Opcode.CONT, bytes(FRAGMENT_BYTES_MIN), fin=False).serialize(mask=True) * count
    tracemalloc.start()
    try:
        peer.adapter.receive(frames, now_ms=peer.now_ms)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 2 * FRAGMENT_BYTES_MIN * count
