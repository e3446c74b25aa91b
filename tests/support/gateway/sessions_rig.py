"""The sessions of one process over a store, and connections that open them."""

import asyncio
import random

from gateway.delivery.fanout import Fanout
from gateway.port.adapter import DONE, Outcome
from gateway.port.sessions import OpenSession
from gateway.sessions.sessions import Sessions
from gateway.sessions.wills import Wills
from store.api.message import encode
from store.format.frame import ROW, Position, UnplacedFrame
from store.format.records import TIMERS_QUEUE, TimerSet
from store.format.records import encode as encode_record
from tests.support.gateway.fanout_rig import SessionHolder, write_to


class SessionsRig:
    """The sessions of one process; another one over the same store is the process started again."""

    def __init__(self, store, clock, steady_ms=None):
        self.store = store
        self.clock = clock
        self.fanout = Fanout(store, queues_of=lambda _: None, group_of=lambda _: 0, spawn=asyncio.ensure_future)
        self.published = []
        wills = Wills(store, self.publish, now_ms=lambda: self.clock[0], random=random.Random(1))
        self.sessions = Sessions(store, self.fanout, wills, now_ms=lambda: self.clock[0], steady_ms=steady_ms)

    def publish(self, publisher, effect, size_bytes):
        (message,) = effect.messages
        self.published.append(message)
        if message.deliver_at_ms is None:
            asyncio.get_running_loop().call_soon(publisher.published, effect.token, DONE, size_bytes)
            return
        record = encode(message)
        row = ROW.pack(16, 0, len(record), 0, 0, 0, 0, 0)
        timer = encode_record(TimerSet(message.deliver_at_ms, row, record))
        frame = UnplacedFrame.build(ROW.pack(TIMERS_QUEUE, 0, len(timer), 0, 0, 0, 0, 0), timer)

        def done(appended):
            publisher.published(effect.token, Outcome(first=Position(appended.frame, 0)), size_bytes)

        self.store.log.append(frame, done)

    async def write(self, *bodies):
        return await write_to(self.store.log, *bodies)

    async def open(self, session_id="dev", *, clean=False, expiry_s=None, will=None):
        holder = SessionHolder()
        request = OpenSession(session_id=session_id, clean=clean, expiry_s=expiry_s, will=will)
        return holder, await self.sessions.open(holder, request)
