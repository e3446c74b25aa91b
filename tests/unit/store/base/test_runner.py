"""A server runs in a process of its own: started, asked to stop by a signal at any time, and ended in order."""

import signal
import subprocess
import sys

import pytest

from store.base.memory import heap_trim

PATIENCE_S = 60
PROGRAM = """
import asyncio, contextlib, sys, types
from store.base import logs
from store.base.process_errors import ServerFailed
from store.base.runner import run_server

logs.configure(types.SimpleNamespace(level="info", format="json"))

def say(word):
    print(word, flush=True)

@contextlib.asynccontextmanager
async def opened():
    say("opening")
    if {slow}:
        await asyncio.Event().wait()
    try:
        yield say("opened")
    finally:
        say("closed")

async def serve(run):
    run.stack.callback(say, "unwound")
    await run.start(run.stack.enter_async_context(opened()))
    run.settle()
    if {fails}:
        raise ServerFailed("its disk has failed")
    say("ready")
    await run.stopped.wait()
    say("stopping")
    if {hangs}:
        await asyncio.Event().wait()

try:
    sys.exit(run_server(serve))
except ServerFailed as error:
    say(str(error))
    sys.exit(9)
"""

FLOODED = """
import asyncio, sys
from store.base.listening import UNAUTHENTICATED
from store.base.memory import resident_bytes
from store.base.runner import run_server

class Stranger:
    def cancel(self):
        pass

async def serve(run):
    before = resident_bytes()
    # An object that stays behind each one that goes: the heap does not shrink by itself.
    flood = [(bytearray(64 << 10), bytes(1 << 10)) for _ in range(2_000)]
    held = resident_bytes()
    stranger = Stranger()
    UNAUTHENTICATED.hold(stranger, b"", 125 << 20)
    UNAUTHENTICATED.release(stranger, b"")
    flood = [kept for _, kept in flood]
    print(before, held, resident_bytes(), flush=True)
    while resident_bytes() - before > (held - before) // 4:
        await asyncio.sleep(0.05)
    print("given back", flush=True)

sys.exit(run_server(serve))
"""

UNMEASURED = """
import asyncio, sys, types
from store.base import logs, runner

logs.configure(types.SimpleNamespace(level="info", format="json"))
asked = asyncio.Event()

def fail():
    asked.set()
    raise OSError("no /proc here")

async def serve(run):
    await asked.wait()
    print("still there", flush=True)

runner.resident_bytes = fail
sys.exit(runner.run_server(serve))
"""


def run(*signals, slow=False, fails=False, hangs=False):
    """Runs a server that gets each signal after a word; returns its words, and its exit status."""
    program = PROGRAM.format(slow=slow, fails=fails, hangs=hangs)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        words = []
        due = list(signals)
        for line in process.stdout:
            words.append(line.decode().strip())
            if due and words[-1] == due[0][0]:
                process.send_signal(due.pop(0)[1])
        return words, process.wait(PATIENCE_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_in_order_with_status_0(number):
    words, status = run(("ready", number))
    assert (words, status) == (["opening", "opened", "ready", "stopping", "closed", "unwound"], 0)


def test_a_signal_while_a_server_opens_what_it_has_ends_it_too():
    words, status = run(("opening", signal.SIGTERM), slow=True)
    assert (words, status) == (["opening", "unwound"], 0)


def test_a_second_signal_ends_a_server_at_once():
    words, status = run(("ready", signal.SIGTERM), ("stopping", signal.SIGTERM), hangs=True)
    assert (words, status) == (["opening", "opened", "ready", "stopping"], -signal.SIGTERM)


def test_an_error_of_a_server_comes_out_of_its_run_when_everything_is_closed():
    words, status = run(fails=True)
    assert (words, status) == (["opening", "opened", "closed", "unwound", "its disk has failed"], 9)


@pytest.mark.skipif(heap_trim() is None, reason="this C library cannot give back parts of the heap")
def test_memory_that_a_flood_has_left_is_given_back_to_the_system():
    """A heap of 125 MB of which 2 MB stay, all over it."""
    with subprocess.Popen([sys.executable, "-c", FLOODED], stdout=subprocess.PIPE, text=True) as process:
        try:
            said, _ = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    figures, *lines = said.splitlines()  # the log's, too
    before, held, freed = map(int, figures.split())
    assert freed - before > (held - before) // 2  # else there was nothing to give back
    assert "given back" in lines
    assert process.returncode == 0


@pytest.mark.skipif(heap_trim() is None, reason="this C library cannot give back parts of the heap")
def test_a_server_that_can_give_no_memory_back_says_so_and_goes_on():
    ended = subprocess.run(
        [sys.executable, "-c", UNMEASURED], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    said = ended.stdout + ended.stderr
    assert "still there" in said
    assert "freed memory is no longer given back" in said
    assert "no /proc here" in said
