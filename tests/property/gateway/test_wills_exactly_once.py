"""Sessions and wills of several proxies that are killed at any moment: one holder at a time, each will exactly once.

Connections come to any proxy for a few names, all at once or one after the other; some say good-bye, others are lost; a
proxy dies with whatever it was in the middle of, also while it does for another one what that one has left. In the
end every will of a connection that was let in and did not take it back is in the log once; that of one which was
neither let in nor refused is there at most once. A will with a delay waits in a timer, and may be called off by whoever
takes its session up again.
"""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.domain.errors import Refusal
from gateway.port.sessions import Will
from store.api.client import StoreClient
from store.api.message import Message
from store.local.local import LocalStore
from tests.support.gateway.fanout_rig import SessionHolder
from tests.support.gateway.proxies_rig import TTL_S, Proxy, wills_in
from tests.support.process.clock import Clock
from tests.support.process.examples import examples
from tests.support.process.waiting import until

NAMES = ("a", "b")
PROXIES = 3
DELAY_MS = 30_000


class Run:
    def __init__(self, store: StoreClient, clock: Clock) -> None:
        self.store, self.clock = store, clock
        self.proxies: list[Proxy] = []
        self.seeds = 0
        self.bodies = 0
        self.sure: set[bytes] = set()  # wills that must be published when their connections end
        self.maybe: set[bytes] = set()
        self.never: set[bytes] = set()
        self.delayed: dict[str, set[bytes]] = {name: set() for name in NAMES}
        self.called_off: set[bytes] = set()  # perhaps
        self.holding: list[tuple[Proxy, SessionHolder, bytes]] = []
        self.opening: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        while len(self.proxies) < PROXIES:
            self.seeds += 1
            self.proxies.append(await Proxy(self.store, self.clock, seed=self.seeds, takeover_s=0.3).start())

    def connect(self, n: int, name: str, clean: bool, expiry_s: int, delay_ms: int) -> None:
        proxy = self.proxies[n % len(self.proxies)]
        self.bodies += 1
        body = b"%d" % self.bodies
        self.maybe.add(body)
        if not clean:
            self.called_off |= self.delayed[name]
        if delay_ms:
            self.delayed[name].add(body)
            if not clean or any(not task.done() for task in self.opening):
                self.called_off.add(body)  # by one that is let in behind this one
        will = Will(message=Message("w", body), delay_ms=delay_ms)
        task = proxy.spawn(self._connect(proxy, name, clean, expiry_s, will))
        self.opening.add(task)
        task.add_done_callback(self.opening.discard)

    async def _connect(self, proxy: Proxy, name: str, clean: bool, expiry_s: int, will: Will) -> None:
        holder, body = SessionHolder(), will.message.body
        try:
            await proxy.open(name, clean=clean, expiry_s=expiry_s, will=will, holder=holder)
        except Refusal:
            await proxy.close(holder)
            return
        self.maybe.discard(body)
        self.sure.add(body)
        self.holding.append((proxy, holder, body))

    def end(self, n: int, well: bool) -> None:
        if self.holding:
            proxy, holder, body = self.holding.pop(n % len(self.holding))
            if proxy in self.proxies:
                proxy.spawn(self._end(proxy, holder, body, well))

    async def _end(self, proxy: Proxy, holder: SessionHolder, body: bytes, well: bool) -> None:
        if well and holder in proxy.sessions.by_holder:
            self.sure.discard(body)
            self.maybe.add(body)  # it may be killed before anybody knows
            proxy.sessions.drop_will(holder)
            await proxy.close(holder)
            self.maybe.discard(body)
            self.never.add(body)
        else:
            await proxy.close(holder)

    async def kill(self, n: int) -> None:
        proxy = self.proxies.pop(n % len(self.proxies))
        await proxy.die()
        await self.start()

    async def pass_time(self) -> None:
        for _ in range(int(TTL_S) + 1):
            self.clock.ms += 1_000
            await asyncio.gather(*(proxy.owners.renew() for proxy in self.proxies))
        await self.store.keys.look()  # type: ignore[attr-defined]

    async def finish(self) -> None:
        if self.opening:
            await asyncio.wait(self.opening)
        for proxy in self.proxies:
            for holder in list(proxy.sessions.by_holder):
                proxy.spawn(proxy.close(holder))
        await self.pass_time()
        await until(self._is_quiet, timeout_s=90)
        self.clock.ms += DELAY_MS
        await until(self._is_delivered, timeout_s=90)
        found = Counter(await wills_in(self.store))
        assert max(found.values(), default=0) <= 1, found
        assert self.sure - self.called_off <= found.keys(), self.sure - self.called_off - found.keys()
        assert not self.never & found.keys()

    async def _is_quiet(self) -> bool:
        held = any(proxy.sessions.held or proxy.sessions.unclosed for proxy in self.proxies)
        return not held and not await self.store.keys.prefix("owners/")

    async def _is_delivered(self) -> bool:
        await self.store.keys.look()  # type: ignore[attr-defined]
        return not await self.store.timers.entries()


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("connect"),
            st.integers(0, 9),
            st.sampled_from(NAMES),
            st.booleans(),
            st.sampled_from((0, 1_000)),
            st.sampled_from((0, DELAY_MS)),
        ),
        st.tuples(st.just("end"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("kill"), st.integers(0, 9)),
        st.tuples(st.just("time")),
        st.tuples(st.just("turns"), st.integers(1, 30)),
    ),
    max_size=25,
)


async def _run(steps: list[tuple]) -> None:
    clock = Clock()
    with tempfile.TemporaryDirectory() as place:
        async with await LocalStore.open(Path(place), now_ms=clock.now_ms) as store:
            run = Run(store, clock)
            try:
                await run.start()
                for what, *how in steps:
                    match what:
                        case "connect":
                            run.connect(*how)
                        case "end":
                            run.end(*how)
                        case "kill":
                            await run.kill(*how)
                        case "time":
                            await run.pass_time()
                        case "turns":
                            for _ in range(how[0]):
                                await asyncio.sleep(0.0002)
                await run.finish()
            finally:
                for proxy in run.proxies:
                    await proxy.die()


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_every_will_is_published_once_whoever_dies(steps):
    asyncio.run(_run(steps))
