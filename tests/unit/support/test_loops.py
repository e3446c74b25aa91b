"""News from gRPC for a loop that was closed fails nobody else's test; anything else that is wrong does."""

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import grpc.aio
import pytest

from tests.support.process.loops import AsyncioLoop, UvLoop

METHOD = "/test/Late"
LOOPS = (AsyncioLoop, UvLoop)


class HeldServer(grpc.GenericRpcHandler):
    """Answers a call when it is let."""

    def __init__(self):
        self.asked, self.go_on = threading.Event(), threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(1))
        self._server.add_generic_rpc_handlers([self])
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, request, context):
        self.asked.set()
        assert self.go_on.wait(30)
        return b"answer"

    def close(self):
        self.go_on.set()
        self._server.stop(None).wait()


@pytest.fixture
def server():
    server = HeldServer()
    yield server
    server.close()


@pytest.fixture
def new_loop():
    """Makes loops; `said` are the errors that their exception handlers were told of."""
    made = []

    def make(kind, said=None):
        loop = kind()
        if said is not None:
            loop.set_exception_handler(lambda _loop, context: said.append(context["exception"]))
        made.append(loop)
        return loop

    yield make
    for loop in made:
        loop.close()


@pytest.mark.parametrize(("first", "second"), [*itertools.product(LOOPS, LOOPS)])
def test_an_answer_for_a_loop_that_was_closed_fails_nobody(server, new_loop, first, second):
    said = []
    gone, here = new_loop(first), new_loop(second, said)

    async def ask():
        channel = grpc.aio.insecure_channel(server.target)
        call = channel.unary_unary(METHOD)(b"question")
        assert await asyncio.to_thread(server.asked.wait, 30)
        return channel, call  # so that neither is cancelled

    async def ask_again():
        async with grpc.aio.insecure_channel(server.target) as channel:
            server.go_on.set()
            return await channel.unary_unary(METHOD)(b"question")  # answered behind the first, by the only thread

    left = gone.run_until_complete(ask())
    gone.run_until_complete(gone.shutdown_default_executor())
    gone.close()
    assert here.run_until_complete(ask_again()) == b"answer"
    assert said == []
    del left


@pytest.mark.parametrize("kind", LOOPS)
def test_every_other_error_is_told(new_loop, kind):
    said = []
    loop, closed = new_loop(kind, said), new_loop(kind)
    closed.close()
    loop.call_soon(lambda: closed.call_soon_threadsafe(print))
    loop.call_soon(lambda: 1 // 0)
    loop.run_until_complete(asyncio.sleep(0))
    assert [type(one) for one in said] == [RuntimeError, ZeroDivisionError]
