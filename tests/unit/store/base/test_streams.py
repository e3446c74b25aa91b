"""The parts of long-lived streams: pauses between attempts, attempts for ever, the parts of a connection, silence."""

import asyncio
import logging
import random

import pytest

from store.base.streams import Backoff, Silence, keep_connected, until_one_ends

pytestmark = pytest.mark.anyio


class Refused(ConnectionError):
    """An error of the peer that an operator has to settle."""


def longest(_low, high):
    return high


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success():
    backoff = Backoff(0.02, 0.1, uniform=longest)
    assert [round(backoff.next_s(), 3) for _ in range(5)] == [0.02, 0.04, 0.08, 0.1, 0.1]
    backoff.reset()
    assert backoff.next_s() == 0.02


def test_chance_takes_up_to_half_of_a_pause():
    assert Backoff(2.0, 8.0, uniform=lambda low, _high: low).next_s() == 1.0
    backoff = Backoff(1.0, 60.0, uniform=random.Random(1).uniform)
    for failures in range(100):
        longest_s = min(60.0, 2.0 ** min(failures, 10))
        assert longest_s / 2 <= backoff.next_s() <= longest_s


async def test_a_pause_that_is_cut_short_does_not_lengthen_the_next():
    backoff, wake = Backoff(100.0, 1000.0, uniform=longest), asyncio.Event()
    wake.set()
    await backoff.pause(wake)
    assert backoff.longest_s == 100.0
    short = Backoff(0.001, 1.0, uniform=longest)
    await short.pause(asyncio.Event())
    assert short.longest_s == 0.002
    await short.pause()
    assert short.longest_s == 0.004


async def test_attempts_go_on_after_any_error_and_a_refusal_is_logged_once(caplog):
    caplog.set_level(logging.DEBUG)
    tried, done = [], asyncio.Event()
    errors = [ConnectionError("away"), Refused("another cluster"), Refused("another cluster"), ValueError("ours")]

    async def attempt():
        tried.append(1)
        if errors:
            raise errors.pop(0)
        done.set()

    kept = keep_connected(
        attempt,
        Backoff(0.0, 0.0),
        name=lambda: f"no messages to n1, attempt {min(len(tried), 2)}",
        logger=logging.getLogger("test"),
        lost=ConnectionError,
        refusals=Refused,
    )
    task = asyncio.create_task(kept)
    await done.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(tried) >= 5
    said = [(record.levelname, record.message) for record in caplog.records if record.name == "test"]
    assert said == [
        ("DEBUG", "no messages to n1, attempt 1: away"),
        ("ERROR", "no messages to n1, attempt 2: another cluster"),
        ("DEBUG", "no messages to n1, attempt 2: another cluster"),
        ("DEBUG", "no messages to n1, attempt 2: another cluster"),
        ("ERROR", "no messages to n1, attempt 2: failed"),
    ]


async def test_the_first_part_that_fails_ends_the_others():
    ended = []

    async def going_on():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("going on")

    async def failing():
        await asyncio.sleep(0)
        raise ConnectionError("broken")

    with pytest.raises(ConnectionError, match="broken"):
        await until_one_ends(going_on(), failing())
    assert ended == ["going on"]


async def test_a_future_ends_the_parts_without_their_errors_and_stays():
    over = asyncio.get_running_loop().create_future()
    over.set_result(None)

    async def failing():
        raise ConnectionError("broken")

    await until_one_ends(failing(), until=over)
    assert not over.cancelled()


async def test_silence_lasts_when_nothing_has_come_between_two_looks():
    silence = Silence(0.01)
    watching = asyncio.create_task(silence.lasts())
    for _ in range(3):
        await asyncio.sleep(0)
        silence.received()
    await watching
