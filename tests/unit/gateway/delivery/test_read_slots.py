"""Slots for reading: memory for what is read at a time is bounded, and everybody has a turn."""

import asyncio

import pytest

from gateway.delivery.read_slots import READS_MIN, ReadSlots

pytestmark = pytest.mark.anyio

MiB = 1 << 20


class Reads:
    """Reads that end when told to."""

    def __init__(self, *, unread_bytes=0, bytes_max=256 * MiB):
        self.unread_bytes = unread_bytes
        self.under_way = 0
        self.most = 0
        self.order = []
        self.may_end = asyncio.Semaphore(0)
        self.slots = ReadSlots(bytes_max=bytes_max, message_bytes_max=16 * MiB, unread_bytes=lambda: self.unread_bytes)

    async def one(self, number):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.order.append(number)
        try:
            await self.may_end.acquire()
        finally:
            self.under_way -= 1
        return number

    def begin(self, count):
        return [asyncio.ensure_future(self.slots.read(lambda n=n: self.one(n))) for n in range(count)]


@pytest.mark.parametrize(
    ("unread_bytes", "at_a_time"), [(0, 16), (100 * MiB, 9), (256 * MiB, READS_MIN), (1 << 40, READS_MIN)]
)
async def test_as_many_are_read_at_a_time_as_fit_at_their_largest(unread_bytes, at_a_time):
    reads = Reads(unread_bytes=unread_bytes)
    tasks = reads.begin(60)
    for _ in range(60):
        await asyncio.sleep(0)
        reads.may_end.release()
    assert await asyncio.gather(*tasks) == list(range(60))
    assert reads.most == at_a_time
    assert reads.order == list(range(60))


async def test_a_failure_and_one_that_is_given_up_leave_no_slot_taken():
    reads = Reads(bytes_max=16 * MiB)
    tasks = reads.begin(READS_MIN + 3)
    await asyncio.sleep(0)
    tasks[READS_MIN].cancel()  # it waits for its turn
    tasks[0].cancel()  # it is being read
    await asyncio.gather(tasks[0], tasks[READS_MIN], return_exceptions=True)
    await asyncio.sleep(0)
    assert reads.under_way == READS_MIN

    async def failing():
        raise OSError("no")

    for _ in range(READS_MIN + 3):
        reads.may_end.release()
    await asyncio.gather(*tasks, return_exceptions=True)
    for _ in range(READS_MIN + 1):
        with pytest.raises(OSError, match="no"):
            await reads.slots.read(failing)
    assert reads.most == READS_MIN
