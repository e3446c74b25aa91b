"""All DTLS sessions of one UDP socket, without the socket: records in, plaintext and records out.

A peer takes no memory until it has answered a cookie (RFC 6347, 4.2.1). Handshakes in progress, and sessions, are
limited. The oldest handshake of the network that has most gives way to a new one, so that no network can keep others
out by handshakes that do not end. The session that was silent longest gives way to a new one, and a silent one is
forgotten after a time; those of peers let in without an identity give way before any other.

Handshakes, and sessions of peers without an identity, count in the process's budget of unauthenticated input.
"""

import contextlib
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cryptography import x509
from OpenSSL import SSL

from gateway.dtls.context import DATAGRAM_BYTES, DtlsContext, described, why_failed
from gateway.dtls.psk_file import PreSharedKey
from gateway.port.adapter import Peer
from gateway.security.limits import network_of
from store.base.listening import UNAUTHENTICATED, PeerBudget
from store.base.listening.peer_budget import Holder
from store.base.listening.places import ConnectionSlots

RECORD_BYTES: Final = 13  # of a record's header
HANDSHAKE, CLIENT_HELLO = 22, 1
FRAGMENT_BYTES: Final = 12  # of the header of a handshake's message, or of a fragment of it
VERSION_BYTES, RANDOM_BYTES = 2, 32  # of a ClientHello (RFC 5246, 7.4.1.2)
SESSIONS_COUNT_MAX: Final = 16_384  # established, of one socket
STRANGERS_COUNT_MAX: Final = 1_024  # of them, of peers let in without an identity
SESSION_BYTES: Final = 80 << 10  # that one takes
HANDSHAKES_COUNT_MAX: Final = 512  # in progress
HANDSHAKE_BYTES: Final = 96 << 10  # that one takes, besides `kept_bytes`
PAGE_BYTES: Final = 4 << 10  # a fragment takes one of the buffer for its message, whose size the peer announces
HANDSHAKE_MS: Final = 30_000  # that a handshake may take
LOOK_MS: Final = 100  # by which a look at a handshake may be late
IDLE_MS: Final = 3_600_000  # that a session may be silent
CHECK_MS: Final = 10_000  # how long the key of a session counts as provisioned
READ_BYTES: Final = 65_536


class Identified(NamedTuple):
    """A peer whose handshake is done: the user of its key, or the names in its certificate, or neither."""

    user: str | None
    certificate: Any


@dataclass(slots=True, eq=False)
class _Session:
    connection: SSL.Connection
    context: DtlsContext  # of its connection, which OpenSSL tells of keys
    peer: Peer
    network: bytes
    number: int
    began_ms: int
    received_ms: int
    forget: Callable[["_Session"], None]
    random: bytes  # of the ClientHello that began it
    due_ms: int = 0  # when to look at its handshake
    queued_ms: int | None = None  # the same, as the heap has it, which may be later by less than LOOK_MS
    held_bytes: int = 0  # that count in the budget
    established: bool = False
    key: tuple[bytes, PreSharedKey] | None = None  # and its identity
    unknown: bytes | None = None  # the identity that it has named, where there is no key
    checked_ms: int = 0  # when the key was looked for last

    def cancel(self) -> None:
        """See `Holder`: it makes way."""
        self.forget(self)

    def is_begun_anew(self, hello: bytes, now_ms: int) -> bool:
        """Returns whether a ClientHello is of another handshake, and not this one's again.

        Its random says so, but not of a device that has the same one behind each reboot.
        """
        return random_of(hello) != self.random or now_ms - self.began_ms >= HANDSHAKE_MS


class DtlsSessions:
    """Sessions by peer. `joined` and `left` are called with those that begin and end; `output` has records to send.

    `failed` is called with the peer of each handshake that fails, and why.
    """

    def __init__(
        self,
        new_context: Callable[[], DtlsContext],
        *,
        joined: Callable[[Peer, Identified], bool],
        left: Callable[[Peer], None],
        failed: Callable[[Peer, str], object],
        find_key: Callable[[bytes], PreSharedKey | None] | None = None,
        budget: PeerBudget[Holder] = UNAUTHENTICATED,
    ) -> None:
        """Begins without sessions. `joined` returns whether a peer is let in with an identity.

        `new_context` may give another context.
        """
        self._new_context = new_context
        self._context = new_context()
        self._joined = joined
        self._left = left
        self._failed = failed
        self._find_key = find_key
        self._spare = self._context.connection()  # listens to peers that have no session
        self._established: dict[Peer, _Session] = {}  # the one that was silent longest first
        self._strangers = ConnectionSlots()  # those of peers without an identity; <= STRANGERS_COUNT_MAX
        self._handshakes: dict[Peer, _Session] = {}
        self._places = ConnectionSlots()  # of handshakes; <= HANDSHAKES_COUNT_MAX
        self._due: list[tuple[int, int]] = []  # a heap: when to look at a handshake, and its number; some are stale
        self._watched: dict[int, _Session] = {}  # handshakes in progress, by number
        self._count = 0
        self._budget = budget
        self.output: list[tuple[bytes, Peer]] = []

    def __len__(self) -> int:
        return len(self._established)

    @property
    def handshakes(self) -> int:
        """Returns how many handshakes are in progress."""
        return len(self._handshakes)

    # ---- input

    def receive(self, data: bytes, peer: Peer, now_ms: int) -> list[bytes]:
        """Takes a datagram; returns the plaintexts in it."""
        if len(data) < RECORD_BYTES:
            return []
        session = self._handshakes.get(peer) or self._established.get(peer)
        if session is None or (_is_client_hello(data) and session.is_begun_anew(data, now_ms)):
            self._listen(data, peer, now_ms)
            return []
        return self._read(session, data, now_ms)

    def _listen(self, data: bytes, peer: Peer, now_ms: int) -> None:
        """Takes a datagram of a peer without a session, or one that begins anew: a cookie is all it gets at first."""
        if not _is_client_hello(data):
            return
        self._refresh()
        self._context.peer = peer
        connection, context = self._spare, self._context
        try:
            connection.bio_write(data)
            connection.DTLSv1_listen()
        except SSL.WantReadError:
            self._collect(connection, peer)
            return
        except SSL.Error:
            self._spare = self._context.connection()
            return
        self._spare = self._context.connection()
        for before in (self._handshakes.get(peer), self._established.get(peer)):
            if before is not None:
                self._forget(before)
        self._count += 1
        network = network_of(str(peer[0])).encode()
        times = now_ms, now_ms
        session = _Session(connection, context, peer, network, self._count, *times, self._forget, random_of(data))
        self._handshakes[peer] = self._watched[session.number] = session
        self._places.take(session, network, HANDSHAKES_COUNT_MAX)
        if self._holds_more(session, HANDSHAKE_BYTES):
            self._shake(session, now_ms)

    def _refresh(self) -> None:
        """Takes another context once there is one, for new sessions."""
        context = self._new_context()
        if context is not self._context:
            self._context = context
            self._spare = context.connection()

    def _read(self, session: _Session, data: bytes, now_ms: int) -> list[bytes]:
        """Takes a datagram of a session, and returns its plaintexts."""
        connection = session.connection
        session.received_ms = now_ms
        if not self._holds(session, now_ms):
            self.close(session.peer)
            return []
        if not session.established and not self._holds_more(session, kept_bytes(data)):
            return []
        connection.bio_write(data)
        if not session.established and not self._shake(session, now_ms):
            return []
        self._established[session.peer] = self._established.pop(session.peer)
        found: list[bytes] = []
        try:
            while True:
                found.append(connection.recv(READ_BYTES))
        except SSL.WantReadError:
            self._collect(connection, session.peer)
        except SSL.ZeroReturnError:
            self.close(session.peer)
        except SSL.Error:  # an alert, or an error after which OpenSSL does not go on
            self._collect(connection, session.peer)
            self._forget(session)
        return found

    def _holds_more(self, session: _Session, size_bytes: int) -> bool:
        """Counts a handshake's memory; returns whether it goes on, or has had to make way."""
        if self._handshakes.get(session.peer) is session:
            session.held_bytes += size_bytes
            self._budget.hold(session, session.network, session.held_bytes)
        return self._handshakes.get(session.peer) is session

    def _holds(self, session: _Session, now_ms: int) -> bool:
        """Returns whether the key of a session is still the client's; it is looked for now and then."""
        if session.key is None or not session.established or now_ms - session.checked_ms < CHECK_MS:
            return True
        session.checked_ms = now_ms
        identity, key = session.key
        return self._find_key is None or self._find_key(identity) == key

    def _shake(self, session: _Session, now_ms: int) -> bool:
        """Goes on with a handshake; returns whether it is done."""
        context = session.context
        context.peer, context.identified, context.unknown = session.peer, None, None
        try:
            session.connection.do_handshake()
        except SSL.WantReadError:
            session.key = context.identified or session.key
            session.unknown = context.unknown or session.unknown
            self._collect(session.connection, session.peer)
            self._watch(session, now_ms)
            return False
        except SSL.Error as error:
            session.unknown = context.unknown or session.unknown
            self._collect(session.connection, session.peer)
            self._fail(session, why_failed(error))
            return False
        self._collect(session.connection, session.peer)
        session.key = context.identified or session.key
        return self._establish(session, now_ms)

    def _establish(self, session: _Session, now_ms: int) -> bool:
        """Lets a peer in whose handshake is done, or not; returns whether it is."""
        user = None if session.key is None else session.key[1].user
        try:
            certificate = session.connection.get_peer_certificate(as_cryptography=True)
            known = None if certificate is None else described(certificate)
        except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
            self._fail(session, f"its certificate cannot be read: {error}")
            return False
        self._leave_handshakes(session)
        session.established, session.checked_ms = True, now_ms
        self._established[session.peer] = session
        if self._joined(session.peer, Identified(user, known)):
            self._budget.release(session, session.network)
            if len(self._established) > SESSIONS_COUNT_MAX:
                if len(self._strangers):
                    self._strangers.keep(len(self._strangers) - 1)
                else:
                    self.close(next(iter(self._established)))
        else:
            others_count = len(self._established) - len(self._strangers) - 1
            most = min(STRANGERS_COUNT_MAX, SESSIONS_COUNT_MAX - others_count)
            self._strangers.take(session, session.network, most)
            if session.peer in self._established:
                self._budget.hold(session, session.network, SESSION_BYTES)
        return self._established.get(session.peer) is session

    # ---- output

    def send(self, data: bytes, peer: Peer) -> None:
        """Sends a plaintext to a peer that has a session."""
        session = self._established.get(peer)
        if session is None:
            return
        try:
            session.connection.send(data)
        except SSL.Error:
            self._forget(session)
            return
        self._collect(session.connection, peer)

    def close(self, peer: Peer) -> None:
        """Ends a session with an alert (RFC 5246, 7.2.1)."""
        session = self._established.get(peer)
        if session is None:
            return
        with contextlib.suppress(SSL.Error):  # it may have ended already
            session.connection.shutdown()
        self._collect(session.connection, peer)
        self._forget(session)

    def _collect(self, connection: SSL.Connection, peer: Peer) -> None:
        """Takes the records that a session has made: as many in a datagram as fit."""
        try:
            data = connection.bio_read(READ_BYTES)
        except SSL.WantReadError:
            return
        self.output += [(datagram, peer) for datagram in datagrams_of(data)]

    # ---- time

    def tick(self, now_ms: int) -> None:
        """Retransmits flights of handshakes, and gives up handshakes that take too long and silent sessions."""
        while self._due and self._due[0][0] <= now_ms:
            due_ms, number = heapq.heappop(self._due)
            session = self._watched.get(number)
            if session is None or session.queued_ms != due_ms:
                continue
            session.queued_ms = None
            if now_ms - session.began_ms >= HANDSHAKE_MS:
                self._fail(session, "it takes too long, as with a wrong key")
                continue
            if session.due_ms <= now_ms:
                try:
                    session.connection.DTLSv1_handle_timeout()
                except SSL.Error as error:
                    self._fail(session, why_failed(error))
                    continue
                self._collect(session.connection, session.peer)
            self._watch(session, now_ms)
        while self._established:
            session = next(iter(self._established.values()))
            if now_ms - session.received_ms < IDLE_MS:
                break
            self.close(session.peer)

    def deadline_ms(self) -> int | None:
        """Returns when `tick` is due."""
        deadlines = [self._due[0][0]] if self._due else []
        if self._established:
            deadlines.append(next(iter(self._established.values())).received_ms + IDLE_MS)
        return min(deadlines, default=None)

    def _watch(self, session: _Session, now_ms: int) -> None:
        """Notes when to look at a handshake: there is one entry for it, however often it is heard."""
        timeout_s = session.connection.DTLSv1_get_timeout()
        session.due_ms = session.began_ms + HANDSHAKE_MS
        if timeout_s is not None:
            session.due_ms = min(session.due_ms, now_ms + max(1, int(timeout_s * 1_000)))
        if session.queued_ms is None or session.due_ms <= session.queued_ms - LOOK_MS:
            session.queued_ms = session.due_ms
            heapq.heappush(self._due, (session.due_ms, session.number))

    def _fail(self, session: _Session, reason: str) -> None:
        """Gives a handshake up, and says why; a name without a key is the better reason."""
        if session.unknown is not None:
            reason = f"no key has the identity {session.unknown.decode(errors='replace')!a}"
        elif session.key is not None:
            reason = f"{reason} (identity {session.key[0].decode(errors='replace')!a})"
        self._failed(session.peer, reason)
        self._forget(session)

    def _leave_handshakes(self, session: _Session) -> None:
        del self._handshakes[session.peer], self._watched[session.number]
        self._places.leave(session)

    def _forget(self, session: _Session) -> None:
        self._budget.release(session, session.network)
        if self._handshakes.get(session.peer) is session:
            self._leave_handshakes(session)
        if self._established.get(session.peer) is session:
            del self._established[session.peer]
            self._strangers.leave(session)
            self._left(session.peer)


def _is_client_hello(data: bytes) -> bool:
    """Returns whether a datagram begins a handshake: a ClientHello that nothing protects (epoch 0)."""
    if len(data) <= RECORD_BYTES or data[0] != HANDSHAKE or data[3:5] != b"\0\0":
        return False
    return data[RECORD_BYTES] == CLIENT_HELLO


def random_of(data: bytes) -> bytes:
    """Returns the random of a ClientHello: a client that begins anew has another one (RFC 6347, 4.2.1)."""
    begin = RECORD_BYTES + FRAGMENT_BYTES + VERSION_BYTES
    return data[begin : begin + RANDOM_BYTES]


def datagrams_of(data: bytes) -> Iterator[bytes]:
    """Returns records in datagrams, none cut, as many in each as fit."""
    begin = at = 0
    while at < len(data):
        end = at + RECORD_BYTES + int.from_bytes(data[at + 11 : at + 13], "big")
        if end - begin > DATAGRAM_BYTES and at > begin:
            yield data[begin:at]
            begin = at
        at = end
    if begin < len(data):
        yield data[begin:]


def kept_bytes(data: bytes) -> int:
    """Returns how much OpenSSL keeps of a datagram of a handshake, at most.

    A message has, from its first fragment on, a buffer of the announced size, and each fragment takes a part of it.
    """
    kept = len(data)
    at = 0
    while at + RECORD_BYTES <= len(data):
        begin, at = at, at + RECORD_BYTES + int.from_bytes(data[at + 11 : at + 13], "big")
        if data[begin] != HANDSHAKE:
            continue
        fragment = begin + RECORD_BYTES
        while fragment + FRAGMENT_BYTES <= min(at, len(data)):
            size = int.from_bytes(data[fragment + 9 : fragment + 12], "big")
            if size < int.from_bytes(data[fragment + 1 : fragment + 4], "big"):
                kept += PAGE_BYTES
            fragment += FRAGMENT_BYTES + size
    return kept
