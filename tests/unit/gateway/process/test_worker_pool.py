"""Workers are started, asked, started again and ended; here they are small programs that only answer."""

import asyncio
import os
import signal
import sys
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest

from gateway.config.config import load
from gateway.ops.status import Status
from gateway.process import supervisor, worker_messages, worker_pool
from gateway.process.child import ChildFailed
from gateway.process.worker_pool import WorkerPool, WorkerSilent
from gateway.security.passwords import hash_password
from store.base.streams.backoff import Backoff
from tests.support.process.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ANSWERS = """
import contextlib, msgspec, socket, sys
stdin = sys.stdin.buffer

def told_more():
    return msgspec.msgpack.decode(stdin.read(int.from_bytes(stdin.read(4), "big")))

told = told_more()
server = socket.socket(socket.AF_UNIX)
server.bind(told["pages"])
server.listen()
while True:
    peer, _ = server.accept()
    page = peer.recv(1000).split()[1]
    if page == b"/told":
        told = told_more()
    if page in (b"/told", b"/who"):
        page = ",".join(told["config"]["auth"]["users"]).encode()
    body = {status!r} if page == b"/status" else page if page[:1] != b"/" else b"counted 1\\n"
    with contextlib.suppress(OSError):  # who asked has not waited: on a busy machine
        peer.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n" + body)
    peer.close()
"""


def program(status):
    return ANSWERS.format(status=msgspec.json.encode(status))


@pytest.fixture
async def pool(tmp_path, monkeypatch):
    """Yields a pool of two, whose workers are `run`."""
    run = [program(Status(version="1", ready=True, proxy="p"))]
    monkeypatch.setattr(worker_pool, "module_command", lambda *_: [sys.executable, "-c", run[0]])
    monkeypatch.setattr(worker_pool, "POLL_S", 0.02)
    gone = []

    async def note(worker):
        gone.append((worker.number, worker.status and worker.status.proxy))

    pool = WorkerPool(load(environ={}), 2, tmp_path, gone=note)
    pool.run, pool.noted = run, gone
    yield pool
    await pool.stop()
    assert not any(worker.child for worker in pool.workers)


async def test_all_serve_when_it_has_started(pool):
    await pool.start()
    assert [worker.shown().ready for worker in pool.workers] == [True, True]
    await pool.gather()
    assert [worker.metrics for worker in pool.workers] == ["counted 1\n"] * 2


async def test_one_that_ends_is_told_of_and_started_again(pool):
    await pool.start()
    first = pool.workers[0]
    pid = first.child.pid
    os.kill(pid, signal.SIGKILL)
    await until(lambda: first.restarts == 1 and first.ready)
    assert first.child.pid != pid
    assert pool.noted == [(1, "p")]
    assert pool.workers[1].restarts == 0


async def test_one_that_ends_at_once_is_tried_again_and_again_later_and_later(pool, monkeypatch):
    await pool.start()
    first = pool.workers[0]
    slept = []
    sleep = asyncio.sleep
    noting = SimpleNamespace(sleep=lambda s: (slept.append(s), sleep(min(s, 0.01)))[1])
    monkeypatch.setattr(supervisor, "asyncio", noting)  # there alone: others of this process sleep too
    monkeypatch.setattr(supervisor, "Backoff", partial(Backoff, uniform=lambda _least, most: most))
    pool.run[0] = "raise SystemExit(3)"
    first.child.process.kill()
    await until(lambda: first.restarts >= 3)
    assert slept[:3] == [0.1, 0.2, 0.4]
    assert not first.ready


async def test_one_is_started_again_whatever_is_thought_of_the_last(pool, monkeypatch):
    async def fail(worker):
        raise ValueError("no number")

    monkeypatch.setattr(pool, "_gone", fail)
    await pool.start()
    first = pool.workers[0]
    first.child.process.kill()
    await until(lambda: first.restarts == 1 and first.ready)


async def test_one_that_cannot_start_is_said_at_the_start(pool):
    pool.run[0] = "raise SystemExit(2)"
    with pytest.raises(ChildFailed, match=r"worker-[12] has ended with status 2 before it served"):
        await pool.start()


async def test_one_that_does_not_serve_says_why(pool):
    await pool.start()
    pool.run[0] = program(Status(version="1", ready=False, reasons=("no store",)))
    first = pool.workers[0]
    first.child.process.kill()
    await until(lambda: first.restarts == 1 and first.troubles == ("no store",))
    assert not first.shown().ready


async def test_one_that_does_not_end_is_killed(pool):
    pool.supervisor.stop_s = 0.5
    pool.run[0] = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + pool.run[0]
    await pool.start()
    children = [worker.child for worker in pool.workers]
    await pool.stop()
    assert [child.process.poll() for child in children] == [-signal.SIGKILL] * 2


async def test_all_are_told_of_another_configuration_and_those_that_come_later_begin_with_it(pool):
    await pool.start()
    users = {"auth": {"users": {"ada": {"password_hash": hash_password(b"x")}}}}
    pool.send_config(load(environ={}, overrides=users))
    assert [await worker.ask("/told") for worker in pool.workers] == [b"ada", b"ada"]
    first = pool.workers[0]
    os.kill(first.child.pid, signal.SIGKILL)
    await until(lambda: first.restarts == 1 and first.ready)
    assert await first.ask("/who") == b"ada"


async def test_one_that_is_being_started_is_not_left_with_the_configuration_of_before(pool, monkeypatch):
    """It was told what had been put together before its pipe was there, and missed what all others were told."""
    await pool.start()
    first, loop = pool.workers[0], asyncio.get_running_loop()
    connect = loop.connect_write_pipe

    async def connect_and_hear_of_another(*args):
        users = {"auth": {"users": {"ada": {"password_hash": hash_password(b"x")}}}}
        pool.send_config(load(environ={}, overrides=users))
        return await connect(*args)

    monkeypatch.setattr(loop, "connect_write_pipe", connect_and_hear_of_another)
    os.kill(first.child.pid, signal.SIGKILL)
    await until(lambda: first.restarts == 1 and first.ready)
    assert await first.ask("/who") == b"ada"


async def test_a_configuration_that_is_too_large_is_not_told_and_the_one_before_stays(pool, monkeypatch):
    await pool.start()
    users = {"auth": {"users": {"ada": {"password_hash": hash_password(b"x")}}}}
    monkeypatch.setattr(worker_messages, "MESSAGE_BYTES_MAX", 1_000)
    with pytest.raises(worker_messages.WorkerMessageError, match="workers take 1000"):
        pool.send_config(load(environ={}, overrides=users))
    monkeypatch.undo()
    assert [await worker.ask("/who") for worker in pool.workers] == [b"", b""]


async def test_an_answer_that_is_too_large_is_none(pool, monkeypatch):
    await pool.start()
    monkeypatch.setattr(worker_pool, "PAGE_BYTES_MAX", 5)
    with pytest.raises(WorkerSilent, match="5 bytes or more"):
        await pool.workers[0].ask("/metrics")


async def test_a_worker_that_is_stopped_is_said_not_to_answer(pool):
    """The reason was an empty text."""
    await pool.start()
    worker = pool.workers[0]
    os.kill(worker.child.pid, signal.SIGSTOP)
    try:
        with pytest.raises(WorkerSilent, match=r"^does not answer within 0\.2 s$"):
            await worker.ask("/who", timeout_s=0.2)
    finally:
        os.kill(worker.child.pid, signal.SIGCONT)
