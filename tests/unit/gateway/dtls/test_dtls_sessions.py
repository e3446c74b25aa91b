"""DTLS sessions over a network of lists: cookies before state, limits, losses, and what is no DTLS."""

import contextlib
import json
from random import Random
from types import SimpleNamespace

import pytest

pytest.importorskip("OpenSSL", reason="pyOpenSSL, of the extra dtls, is not installed")

from OpenSSL import SSL
from OpenSSL._util import lib

from gateway.dtls import sessions
from gateway.dtls.adapter import DtlsAdapter
from gateway.dtls.context import DtlsContext
from gateway.dtls.psk_file import LOOK_INTERVAL_MS, PreSharedKey, PreSharedKeys, read_keys
from gateway.dtls.sessions import (
    CHECK_MS,
    HANDSHAKE_BYTES,
    HANDSHAKE_MS,
    IDLE_MS,
    PAGE_BYTES,
    SESSION_BYTES,
    DtlsSessions,
    datagrams_of,
    kept_bytes,
)
from gateway.security.auth_settings import TlsConfig
from store.base.listening import PeerBudget
from store.base.process_errors import ConfigError
from tests.support.coap.dtls_client import DtlsClient

KEYS = {b"dev1": PreSharedKey(b"key-of-dev1", "dev1"), b"gw": PreSharedKey(b"key-of-gateway", "dev2")}


class DtlsServer:
    def __init__(self, keys=KEYS, *, budget_bytes=1 << 30):
        self.keys = dict(keys)
        self.strangers = set()  # users that count as nobody
        self.budget = PeerBudget(budget_bytes)
        self.now_ms = 1_000_000
        self.joined, self.left, self.failed = [], [], []
        self.context = DtlsContext(TlsConfig(), self.keys.get)
        self.sessions = DtlsSessions(
            lambda: self.context,
            joined=self._joined,
            left=self.left.append,
            failed=lambda peer, reason: self.failed.append((peer, reason)),
            find_key=self.keys.get,
            budget=self.budget,
        )

    def _joined(self, peer, identified):
        self.joined.append((peer, identified.user))
        return identified.user not in self.strangers

    def hear(self, datagrams, peer):
        """Returns the plaintexts in datagrams, and adds what the session sends to `sent`."""
        found = []
        for data in datagrams:
            found += self.sessions.receive(data, peer, self.now_ms)
        return found

    def sent(self, peer=None):
        output, self.sessions.output = self.sessions.output, []
        return [data for data, to in output if peer in {None, to}]

    def connect(self, client, peer, rounds=10):
        datagrams = client.shake()
        for _ in range(rounds):
            self.hear(datagrams, peer)
            for data in self.sent(peer):
                client.connection.bio_write(data)
            datagrams = client.shake()
            if client.done and not datagrams:
                break
        return client.done


def begin(server, client, peer):
    """Shakes hands as far as the cookie; the client has the server's answer."""
    for _ in range(2):
        server.hear(client.shake(), peer)
        for data in server.sent(peer):
            client.connection.bio_write(data)


def test_a_session_carries_plaintexts_both_ways():
    server, client, peer = DtlsServer(), DtlsClient(), ("h", 1)
    assert server.connect(client, peer)
    assert server.joined == [(peer, "dev1")]
    assert server.hear(client.send(b"one") + client.send(b"two"), peer) == [b"one", b"two"]
    server.sessions.send(b"three", peer)
    assert client.read(server.sent(peer)) == [b"three"]
    client.connection.shutdown()
    assert server.hear(client.out(), peer) == []
    assert server.left == [peer]
    assert len(server.sessions) == 0


def test_a_peer_is_known_by_its_key():
    server = DtlsServer()
    assert server.connect(DtlsClient(b"gw", b"key-of-gateway"), ("h", 2))
    assert server.joined == [(("h", 2), "dev2")]


@pytest.mark.parametrize(
    ("identity", "key", "reason"),
    [
        (b"dev1", b"another", "it takes too long, as with a wrong key (identity 'dev1')"),
        (b"no\xffbody", b"key-of-dev1", r"no key has the identity 'no\ufffdbody'"),
    ],
)
def test_a_wrong_key_joins_nobody_and_is_said(identity, key, reason):
    server = DtlsServer()
    with contextlib.suppress(SSL.Error):  # the client is told, or not
        assert not server.connect(DtlsClient(identity, key), ("h", 1))
    server.now_ms += HANDSHAKE_MS
    server.sessions.tick(server.now_ms)
    assert server.joined == []
    assert len(server.sessions) == server.sessions.handshakes == 0
    assert server.failed == [(("h", 1), reason)]


def test_a_peer_without_a_cipher_in_common_is_said():
    server, client = DtlsServer(), DtlsClient(ciphers=b"PSK-AES256-CBC-SHA:@SECLEVEL=0")
    with contextlib.suppress(SSL.Error):
        server.connect(client, ("h", 1))
    assert server.failed == [(("h", 1), "no shared cipher")]


def test_nothing_is_kept_before_a_cookie_comes_back():
    server = DtlsServer()
    for n in range(100):
        server.hear(DtlsClient().shake(), ("h", n))
    assert server.sessions.handshakes == 0
    answers = server.sent()
    assert len(answers) == 100
    assert max(map(len, answers)) < 80, "and it gets less than it has sent"


def test_a_cookie_is_good_for_its_own_address_alone():
    server, client = DtlsServer(), DtlsClient()
    server.hear(client.shake(), ("h", 1))
    for data in server.sent():
        client.connection.bio_write(data)
    server.hear(client.shake(), ("stolen", 1))
    assert server.sessions.handshakes == 0


def test_handshakes_under_way_are_limited_and_end(monkeypatch):
    monkeypatch.setattr("gateway.dtls.sessions.HANDSHAKES_COUNT_MAX", 3)
    server = DtlsServer()
    for n in range(5):
        begin(server, DtlsClient(), ("h", n))
    assert server.sessions.handshakes == 3
    for _ in range(100):
        deadline = server.sessions.deadline_ms()
        if deadline is None:
            break
        server.now_ms = max(server.now_ms, deadline)
        server.sessions.tick(server.now_ms)
    assert server.now_ms <= 1_000_000 + HANDSHAKE_MS + 1
    assert server.sessions.handshakes == 0
    assert server.connect(DtlsClient(), ("h", 9))


def test_handshakes_that_do_not_end_keep_no_other_address_out(monkeypatch):
    monkeypatch.setattr("gateway.dtls.sessions.HANDSHAKES_COUNT_MAX", 3)
    server = DtlsServer()
    for n in range(6):  # each goes as far as its cookie, and says nothing more
        begin(server, DtlsClient(), ("10.0.0.1", n))
    assert server.sessions.handshakes == 3
    assert server.connect(DtlsClient(), ("10.0.0.2", 1))
    client = DtlsClient()
    begin(server, client, ("10.0.0.2", 2))  # it is slow, and the flood goes on
    for n in range(6, 12):
        begin(server, DtlsClient(), ("10.0.0.1", n))
    assert server.sessions.handshakes == 3
    assert server.connect(client, ("10.0.0.2", 2))
    assert [peer for peer, _ in server.joined] == [("10.0.0.2", 1), ("10.0.0.2", 2)]


def fragments(count, *, total=100_000, first=2):
    """Returns records that begin so many messages of a handshake, with a byte for each page of them."""
    for message in range(first, first + count):
        for at in range(0, total, PAGE_BYTES):
            head = bytes((11,)) + total.to_bytes(3, "big") + message.to_bytes(2, "big")
            body = head + at.to_bytes(3, "big") + (1).to_bytes(3, "big") + b"x"
            yield bytes((22, 254, 253, 0, 0)) + (1_000 + at).to_bytes(6, "big") + len(body).to_bytes(2, "big") + body


def test_handshakes_share_one_budget_with_what_they_have_sent_and_give_it_back():
    """The one that holds most, of the network that holds most, makes way."""
    server = DtlsServer(budget_bytes=6 * HANDSHAKE_BYTES)
    slow, peer = DtlsClient(), ("10.0.0.2", 1)
    begin(server, slow, peer)
    for n in range(3):
        begin(server, DtlsClient(), ("10.0.0.1", n))
    assert server.budget.held_bytes == 4 * HANDSHAKE_BYTES
    server.hear(fragments(4), ("10.0.0.1", 1))
    assert server.sessions.handshakes == 3
    assert server.budget.held_bytes <= 6 * HANDSHAKE_BYTES
    assert server.connect(slow, peer)
    server.now_ms += HANDSHAKE_MS
    server.sessions.tick(server.now_ms)
    assert (server.sessions.handshakes, server.budget.held_bytes) == (0, 0)


def test_a_whole_message_counts_as_it_is_and_a_fragment_takes_a_page():
    (fragment,) = fragments(1, total=2)
    (whole,) = fragments(1, total=1)
    assert kept_bytes(fragment) == len(fragment) + PAGE_BYTES
    assert kept_bytes(whole) == len(whole)
    assert kept_bytes(whole + fragment + fragment) == 3 * len(whole) + 2 * PAGE_BYTES
    assert kept_bytes(b"") == 0
    assert kept_bytes(fragment[:20]) == 20


def test_a_handshake_is_looked_at_once_however_often_it_is_heard():
    """Each datagram put it on the list of deadlines, and each of these entries renewed itself."""
    server, client = DtlsServer(), DtlsClient()
    begin(server, client, ("h", 1))
    for _ in range(5):
        server.hear(list(fragments(1)) * 8, ("h", 1))
        server.now_ms = max(server.now_ms, server.sessions.deadline_ms())
        server.sessions.tick(server.now_ms)
        assert len(server.sessions._due) <= 2
    assert server.sessions.handshakes == 1


def test_sessions_of_strangers_count_and_make_way_before_others(monkeypatch):
    monkeypatch.setattr("gateway.dtls.sessions.SESSIONS_COUNT_MAX", 4)
    server = DtlsServer()
    server.strangers.add("dev2")
    known = [("10.0.0.1", n) for n in range(2)]
    for peer in known:
        assert server.connect(DtlsClient(), peer)
    for n in range(2, 5):  # they come from the same address and from another one
        assert server.connect(DtlsClient(b"gw", b"key-of-gateway"), ("10.0.0.1", n))
    server.connect(DtlsClient(b"gw", b"key-of-gateway"), ("10.0.0.2", 1))
    assert server.left == [("10.0.0.1", 2), ("10.0.0.1", 3)]
    assert server.budget.held_bytes == 2 * SESSION_BYTES
    for n in (5, 6):
        assert server.connect(DtlsClient(), ("10.0.0.1", n))
    assert set(server.left[2:]) == {("10.0.0.1", 4), ("10.0.0.2", 1)}
    assert server.budget.held_bytes == 0
    server.connect(DtlsClient(b"gw", b"key-of-gateway"), ("10.0.0.2", 2))
    assert server.left[4:] == [("10.0.0.2", 2)], "there is no place but those of others"
    assert len(server.sessions) == 4


def test_sessions_of_strangers_are_few_and_end(monkeypatch):
    monkeypatch.setattr("gateway.dtls.sessions.STRANGERS_COUNT_MAX", 2)
    server = DtlsServer()
    server.strangers.add("dev1")
    for n in range(4):
        assert server.connect(DtlsClient(), ("10.0.0.1", n))
    assert server.left == [("10.0.0.1", 0), ("10.0.0.1", 1)]
    assert server.budget.held_bytes == 2 * SESSION_BYTES
    server.now_ms += IDLE_MS
    server.sessions.tick(server.now_ms)
    assert (len(server.sessions), server.budget.held_bytes) == (0, 0)


def test_the_session_that_was_silent_longest_gives_way(monkeypatch):
    monkeypatch.setattr("gateway.dtls.sessions.SESSIONS_COUNT_MAX", 2)
    server, clients = DtlsServer(), [DtlsClient() for _ in range(3)]
    for n in range(2):
        assert server.connect(clients[n], ("h", n))
    server.hear(clients[0].send(b"x"), ("h", 0))
    assert server.connect(clients[2], ("h", 2))
    assert server.left == [("h", 1)]


def test_a_silent_session_is_forgotten():
    server, peer = DtlsServer(), ("h", 1)
    server.connect(DtlsClient(), peer)
    server.now_ms += IDLE_MS
    server.sessions.tick(server.now_ms)
    assert server.left == [peer]
    assert server.sessions.deadline_ms() is None


def test_a_client_that_begins_anew_takes_its_sessions_place():
    """RFC 6347, 4.2.8: not before it has answered a cookie."""
    server, peer = DtlsServer(), ("h", 1)
    first, second = DtlsClient(), DtlsClient()
    assert server.connect(first, peer)
    server.hear(second.shake(), peer)
    assert server.left == [], "somebody else may have sent that"
    assert server.hear(first.send(b"x"), peer) == [b"x"]
    for data in server.sent(peer):
        second.connection.bio_write(data)
    assert server.connect(second, peer)
    assert server.left == [peer]
    assert server.hear(second.send(b"y"), peer) == [b"y"]


def test_a_client_that_begins_anew_in_the_midst_of_its_handshake_is_not_kept_waiting():
    """One that restarts on its port, or whose key was wrong, was shut out for as long as a handshake may take."""
    server, first, second, peer = DtlsServer(), DtlsClient(b"dev1", b"wrong"), DtlsClient(), ("h", 1)
    begin(server, first, peer)
    assert server.sessions.handshakes == 1
    assert server.connect(second, peer)
    assert server.sessions.handshakes == 0
    assert server.joined == [(peer, "dev1")]
    assert server.budget.held_bytes == 0


def test_a_client_hello_that_comes_twice_ends_no_session():
    server, client, peer = DtlsServer(), DtlsClient(), ("h", 1)
    server.hear(client.shake(), peer)
    for data in server.sent(peer):
        client.connection.bio_write(data)
    hello = client.shake()
    server.hear(hello, peer)
    for data in server.sent(peer):
        client.connection.bio_write(data)
    assert server.connect(client, peer)
    assert server.hear(hello, peer) == []
    assert server.left == []
    assert server.hear(client.send(b"x"), peer) == [b"x"]
    server.now_ms += HANDSHAKE_MS
    server.hear(hello, peer)
    assert server.left == [peer], "a device without entropy begins anew"


def test_a_session_whose_key_is_removed_ends():
    server, client, peer = DtlsServer(), DtlsClient(), ("h", 1)
    server.connect(client, peer)
    server.keys[b"dev1"] = PreSharedKey(b"another key", "dev1")
    assert server.hear(client.send(b"x"), peer) == [b"x"]
    server.now_ms += CHECK_MS
    assert server.hear(client.send(b"y"), peer) == []
    assert server.left == [peer]


def test_a_handshake_goes_on_with_the_context_that_it_began_with():
    """Its key joined as nobody where certificates were renewed meanwhile."""
    server, client, peer = DtlsServer(), DtlsClient(), ("h", 1)
    begin(server, client, peer)
    server.context = DtlsContext(TlsConfig(), server.keys.get)
    begin(server, DtlsClient(), ("h", 2))  # so that the other context is taken
    assert server.connect(client, peer)
    assert server.joined == [(peer, "dev1")]


def test_a_certificate_that_cannot_be_read_fails_the_handshake(monkeypatch):
    def unreadable(_certificate):
        raise ValueError("invalid URI")

    server, peer = DtlsServer(), ("h", 1)
    monkeypatch.setattr(sessions, "described", unreadable)
    monkeypatch.setattr(SSL.Connection, "get_peer_certificate", lambda *_, **__: object())
    client = DtlsClient()
    server.connect(client, peer)
    assert server.failed == [(peer, "its certificate cannot be read: invalid URI (identity 'dev1')")]
    assert server.joined == []
    assert (len(server.sessions), server.sessions.handshakes, server.budget.held_bytes) == (0, 0, 0)
    assert server.hear(client.send(b"one"), peer) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_handshake_outlives_losses(seed):
    random, server, client, peer = Random(seed), DtlsServer(), DtlsClient(), ("h", 1)
    datagrams = client.shake()
    for _ in range(200):
        server.hear([data for data in datagrams if random.random() < 0.7], peer)
        for data in server.sent(peer):
            if random.random() < 0.7:
                client.connection.bio_write(data)
        datagrams = client.shake()
        if client.done and len(server.sessions):
            break
        if not datagrams:
            server.now_ms += 1_100
            server.sessions.tick(server.now_ms)
            if client.connection.DTLSv1_get_timeout() is not None:
                lib.DTLSv1_handle_timeout(client.connection._ssl)
                datagrams = client.out()
        if server.now_ms > 1_000_000 + HANDSHAKE_MS:
            break
    assert server.sessions.handshakes <= 1


@pytest.mark.parametrize("seed", range(3))
def test_any_bytes_are_passed_over(seed):
    random, server, client, peer = Random(seed), DtlsServer(), DtlsClient(), ("h", 1)
    assert server.connect(client, peer)
    for n in range(600):
        data = bytearray(client.send(b"data")[0] if n % 3 else random.randbytes(random.randrange(80)))
        if data and n % 2:
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        other = ("h", 2) if n % 5 == 0 else peer
        for plain in server.hear([bytes(data)], other):
            assert plain == b"data"
    assert server.sessions.handshakes == 0
    assert server.connect(DtlsClient(), ("h", 3))


def test_records_are_never_cut():
    records = [
        bytes((22, 254, 253)) + bytes(8) + size.to_bytes(2, "big") + bytes(size) for size in (900, 900, 10, 1_300)
    ]
    assert [len(data) for data in datagrams_of(b"".join(records))] == [913, 936, 1_313]


def test_an_adapter_sees_plaintexts():
    inner = SimpleNamespace(
        receive=lambda datagrams, now_ms: list(datagrams),
        take_output=lambda: [(b"answer", ("h", 1))],
        deadline_ms=lambda: 5,
        tick=lambda now_ms: [],
    )
    server, client = DtlsServer(), DtlsClient()
    server.connect(client, ("h", 1))
    adapter = DtlsAdapter(inner, server.sessions)
    assert adapter.receive([(client.send(b"x")[0], ("h", 1))], now_ms=0) == [(b"x", ("h", 1))]
    assert adapter.receive([(b"noise", ("h", 2))], now_ms=0) == ()
    assert client.read([data for data, _ in adapter.take_output()]) == [b"answer"]
    assert adapter.deadline_ms() == 5


class Inner:
    """An adapter that may be told when the clock is set."""

    def __init__(self):
        self.told = []

    def receive(self, datagrams, *, now_ms):
        return list(datagrams)

    def tick(self, *, now_ms):
        return []

    def deadline_ms(self):
        return None

    def clock_set(self, by_ms):
        self.told.append(by_ms)


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
def test_a_session_is_no_older_or_younger_when_the_clock_is_set(by_ms):
    server, client, peer, inner = DtlsServer(), DtlsClient(), ("h", 1), Inner()
    server.connect(client, peer)
    adapter = DtlsAdapter(inner, server.sessions)
    due_ms = adapter.deadline_ms()
    adapter.clock_set(by_ms)
    assert inner.told == [by_ms]
    assert adapter.deadline_ms() == due_ms + by_ms
    now_ms = server.now_ms + by_ms
    adapter.tick(now_ms=now_ms)
    assert server.left == [], "it was not silent for long"
    del server.keys[b"dev1"]
    assert adapter.receive([(client.send(b"x")[0], peer)], now_ms=now_ms + CHECK_MS - 1) == [(b"x", peer)]
    assert adapter.receive([(client.send(b"y")[0], peer)], now_ms=now_ms + CHECK_MS) == ()
    assert server.left == [peer]


# ---- the file


def test_keys_are_read_again_when_the_file_changes(tmp_path):
    path, clock = tmp_path / "psk.json", [0]
    keys = PreSharedKeys(path, now_ms=lambda: clock[0])
    assert keys.find(b"dev1") is None
    path.write_text(json.dumps({"keys": [{"identity": "dev1", "key": "00" * 16}]}))
    clock[0] += LOOK_INTERVAL_MS
    assert keys.find(b"dev1") == PreSharedKey(bytes(16), "dev1")
    path.write_text("{")
    clock[0] += LOOK_INTERVAL_MS
    assert keys.find(b"dev1") is not None, "a file with a mistake changes nothing"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ({"identity": "a" * 129, "key": "00" * 16}, "identity"),
        ({"identity": "a", "key": "00" * 7}, "key: must have 8 to 256 bytes"),
        ({"identity": "a", "key": "xy"}, "key"),
        ({"identity": "a", "key": "00" * 16, "user": "a\0"}, "user"),
        ({"identity": "a\0b", "key": "00" * 16}, "identity"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, key, said):
    path = tmp_path / "psk.json"
    path.write_text(json.dumps({"keys": [key]}))
    with pytest.raises(ConfigError, match=said):
        read_keys(path)
