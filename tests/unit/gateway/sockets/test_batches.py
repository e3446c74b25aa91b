"""Reads and writes of many sockets in one call: compiled and in Python they do the same."""

import errno
import gc
import os
import select
import socket
import subprocess
import sys
import weakref
from contextlib import ExitStack, suppress

import pytest

from gateway.sockets import batches, calls, plain_batches

try:
    from gateway.sockets import _batches as compiled
except ImportError:  # no C compiler was there when the project was installed
    compiled = None

WITHOUT = pytest.mark.skipif(compiled is None, reason="the calls are not compiled here")
MUCH = 1 << 24


class BatchRig:
    """Pairs of sockets, of which one end each is looked at."""

    def __init__(self, made, stack):
        self.batches = made
        self.epoll = stack.enter_context(select.epoll())
        self.pairs = []
        self.readers = {}
        self._stack = stack

    def add(self, name=None, events=select.EPOLLIN):
        """Returns our end, and the peer's; without a name our end has no reader."""
        ours, peers = (self._stack.enter_context(one) for one in socket.socketpair())
        ours.setblocking(False)
        self.epoll.register(ours.fileno(), events | select.EPOLLET)
        if name is not None:
            self.readers[ours.fileno()] = name
        return ours, peers

    def receive(self, count_max=64, read_bytes=calls.READ_BYTES, bytes_max=1 << 20):
        return self.batches.receive(self.epoll, count_max, self.readers, read_bytes, bytes_max)


@pytest.fixture(params=["plain", pytest.param("compiled", marks=WITHOUT)])
def rig(request):
    with ExitStack() as stack:
        yield BatchRig(plain_batches if request.param == "plain" else compiled, stack)


def test_one_look_reads_each_socket_once(rig):
    pairs = [rig.add(name) for name in ("first", "second", "third")]
    pairs[0][1].send(b"x" * 100)
    pairs[2][1].send(b"y")
    reads, full, others, size_bytes = rig.receive()
    assert sorted(reads) == [("first", b"x" * 100), ("third", b"y")]
    assert (full, others, size_bytes) == ([], [], 101)
    assert rig.receive() == ([], [], [], 0)


def test_a_socket_without_a_reader_is_named_and_not_read(rig):
    ours, peers = rig.add()
    peers.send(b"x")
    assert rig.receive() == ([], [], [(ours.fileno(), select.EPOLLIN)], 0)
    assert ours.recv(10) == b"x"


def test_a_reader_of_another_socket_is_left_alone(rig):
    ours, peers = rig.add("its")
    rig.readers[ours.fileno() + 1_000] = "another's"
    peers.send(b"x")
    assert rig.receive()[0] == [("its", b"x")]


def test_an_end_and_an_error_are_left_to_the_owner(rig):
    ended, gone = rig.add("ended"), rig.add("gone")
    ended[1].shutdown(socket.SHUT_WR)
    gone[1].close()
    reads, full, others, size_bytes = rig.receive()
    assert (reads, full, size_bytes) == ([], [], 0)
    found = dict(others)
    assert found[ended[0].fileno()] & select.EPOLLIN
    assert found[gone[0].fileno()] & select.EPOLLHUP


def test_a_socket_that_can_be_written_too_is_left_to_the_owner(rig):
    ours, peers = rig.add("its", events=select.EPOLLIN | select.EPOLLOUT)
    peers.send(b"x")
    assert rig.receive() == ([], [], [(ours.fileno(), select.EPOLLIN | select.EPOLLOUT)], 0)


def test_a_socket_that_was_read_meanwhile_is_left_to_the_owner(rig):
    ours, peers = rig.add("its")
    peers.send(b"x")
    ours.recv(1)
    reads, full, others, size_bytes = rig.receive()
    assert (reads, full, size_bytes) == ([], [], 0)
    assert others in ([], [(ours.fileno(), select.EPOLLIN)])


def test_a_read_that_may_have_left_something_is_named(rig):
    ours, peers = rig.add("its")
    peers.send(b"0123456789")
    assert rig.receive(read_bytes=10) == ([("its", b"0123456789")], [ours.fileno()], [], 10)
    peers.send(b"0123456789")
    assert rig.receive(read_bytes=4) == ([("its", b"0123")], [ours.fileno()], [], 4)
    assert ours.recv(100) == b"456789"


def test_a_read_takes_all_that_one_may(rig):
    ours, peers = rig.add("its")
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MUCH)
    peers.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MUCH)
    peers.setblocking(False)
    data = os.urandom(calls.READ_BYTES)
    sent = peers.send(data)
    reads, _, _, size_bytes = rig.receive()
    assert reads == [("its", data[:sent])]
    assert size_bytes == sent


def test_what_is_read_together_has_a_limit(rig):
    for name in ("first", "second", "third"):
        rig.add(name)[1].send(b"x" * 60)
    reads, full, others, size_bytes = rig.receive(bytes_max=100)
    assert (len(reads), len(full), len(others), size_bytes) == (2, 0, 1, 120)
    (left,) = others
    assert left == (next(n for n, name in rig.readers.items() if name not in dict(reads)), select.EPOLLIN)


def test_a_look_names_no_more_sockets_than_it_may(rig):
    for name in range(5):
        rig.add(name)[1].send(b"x")
    assert len(rig.receive(count_max=3)[0]) == 3
    assert len(rig.receive(count_max=3)[0]) == 2


def test_what_is_no_epoll_object_is_an_error(rig):
    rig.epoll.close()
    with pytest.raises((OSError, ValueError)):
        rig.receive()


def test_nothing_is_written_for_no_sockets(rig):
    assert rig.batches.send([], []) == []


def test_bytes_are_written_to_each_socket(rig):
    pairs = [rig.add() for _ in range(3)]
    said = [b"a", b"", b"ccc"]
    assert rig.batches.send([ours.fileno() for ours, _ in pairs], said) == []
    assert pairs[0][1].recv(10) == b"a"
    assert pairs[2][1].recv(10) == b"ccc"


def test_what_a_socket_does_not_take_is_counted(rig):
    (full, _), (free, reading) = rig.add(), rig.add()
    full.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10_000)
    ((index, taken),) = rig.batches.send([full.fileno(), free.fileno()], [bytes(MUCH), b"x"])
    assert index == 0
    assert 0 <= taken < MUCH
    assert reading.recv(10) == b"x"
    while full.fileno() >= 0:
        try:
            full.send(bytes(1_000))
        except BlockingIOError:
            break
    assert rig.batches.send([full.fileno()], [b"more"]) == [(0, 0)]


def test_a_peer_that_has_gone_is_an_error_of_its_socket_and_of_no_other(rig):
    (gone, its), (good, reading) = rig.add(), rig.add()
    its.close()
    with socket.socket() as one:
        closed = one.fileno()
    answer = rig.batches.send([gone.fileno(), good.fileno(), closed], [b"x", b"y", b"z"])
    assert answer == [(0, -errno.EPIPE), (2, -errno.EBADF)]
    assert reading.recv(10) == b"y"


def test_a_file_that_is_no_socket_is_an_error_of_it(rig, tmp_path):
    with (tmp_path / "file").open("wb") as file:
        assert rig.batches.send([file.fileno()], [b"x"]) == [(0, -errno.ENOTSOCK)]


def test_lists_that_differ_write_nothing_compiled_and_raise(rig):
    ours, peers = rig.add()
    with pytest.raises(ValueError, match=r"length|shorter|longer"):
        rig.batches.send([ours.fileno()], [])
    peers.setblocking(False)
    with pytest.raises(BlockingIOError):
        peers.recv(1)


@WITHOUT
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ([1],),
        ((1,), [b"x"]),
        ([1], (b"x",)),
        ([1], b"x"),
        (["1"], [b"x"]),
        ([1.0], [b"x"]),
        ([None], [b"x"]),
        ([1], ["x"]),
        ([1], [bytearray(b"x")]),
        ([-1], [b"x"]),
        ([1 << 31], [b"x"]),
        ([1 << 100], [b"x"]),
        ([1, 2], [b"x"]),
    ],
)
def test_wrong_arguments_of_a_compiled_write_are_refused(arguments):
    with pytest.raises((TypeError, ValueError)):
        compiled.send(*arguments)


@WITHOUT
@pytest.mark.parametrize(
    "arguments",
    [
        (0, {}, 1, 1),
        (batches.SOCKETS_MAX + 1, {}, 1, 1),
        (-1, {}, 1, 1),
        ("1", {}, 1, 1),
        (1.0, {}, 1, 1),
        (1, [], 1, 1),
        (1, None, 1, 1),
        (1, {}, 0, 1),
        (1, {}, calls.READ_BYTES + 1, 1),
        (1, {}, 1, 0),
        (1, {}, 1, 1 << 31),
        (1, {}, 1, 1 << 80),
        (1, {}, 1),
        (1, {}, 1, 1, 1),
        (),
    ],
)
def test_wrong_arguments_of_a_compiled_look_are_refused(arguments):
    with select.epoll() as epoll, pytest.raises((TypeError, ValueError)):
        compiled.receive(epoll, *arguments)


@WITHOUT
@pytest.mark.parametrize("wrong", [None, -1, "x", object(), 1 << 40])
def test_a_compiled_look_at_no_epoll_object_is_refused(wrong):
    with pytest.raises((TypeError, ValueError, OverflowError)):
        compiled.receive(wrong, 1, {}, 1, 1)


@WITHOUT
def test_a_compiled_look_at_another_file_is_an_error():
    with socket.socket() as one, pytest.raises(OSError, match="Invalid argument"):
        compiled.receive(one, 1, {}, 1, 1)


@WITHOUT
def test_a_finalizer_may_change_the_lists_of_a_compiled_write():
    """An allocation may collect garbage, whose finalizers may do anything."""
    numbers, data = [999_999] * 50, [b"x"] * 50

    class Ring:
        def __init__(self):
            self.ring = self

    def change(_):
        numbers.clear()
        data.clear()

    before = gc.get_threshold()
    kept = weakref.ref(Ring(), change)
    gc.set_threshold(1, 1, 1)
    try:
        with suppress(IndexError):
            compiled.send(numbers, data)
        compiled.send([999_999], [b"x"])
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert kept() is None


@WITHOUT
def test_compiled_calls_keep_no_memory():
    with ExitStack() as stack:
        rig = BatchRig(compiled, stack)
        ours, peers = rig.add(object())
        reader = rig.readers[ours.fileno()]
        closed = 1 << 20

        def once():
            peers.send(b"x" * 1_000)
            rig.receive(read_bytes=100)
            rig.receive()
            ours.recv(2_000)
            compiled.send([ours.fileno(), closed], [b"y", b"z" * 5_000])
            peers.recv(10)
            for wrong in (([closed], ["x"]), ([-1], [b"x"]), ([1], [])):
                with pytest.raises((TypeError, ValueError)):
                    compiled.send(*wrong)

        for _ in range(100):
            once()
        gc.collect()
        counted, blocks = sys.getrefcount(reader), sys.getallocatedblocks()
        for _ in range(1_000):
            once()
        gc.collect()
        assert sys.getrefcount(reader) == counted
        assert sys.getallocatedblocks() - blocks < 500


@WITHOUT
def test_compiled_calls_are_chosen_unless_nobody_wants_them(monkeypatch):
    assert batches.chosen({}) is compiled
    assert batches.chosen({batches.PURE: ""}) is compiled
    assert batches.chosen({batches.PURE: "1"}) is plain_batches
    monkeypatch.setattr(plain_batches, "VERSION", -1)
    assert batches.chosen({}) is plain_batches


def test_without_compiled_calls_python_does_their_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "gateway.sockets._batches", None)
    monkeypatch.delattr("gateway.sockets._batches", raising=False)
    assert batches.chosen({}) is plain_batches


def test_the_environment_turns_them_off():
    program = "from gateway.sockets import batches, plain_batches; assert batches.CALLS is plain_batches"
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, batches.PURE: "1"}, timeout=60)
