"""A server runs in a process of its own: started, asked to stop by a signal at any time, and ended in order."""

import signal
import subprocess
import sys

import pytest

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
