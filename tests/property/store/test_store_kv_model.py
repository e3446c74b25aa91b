"""The key-value store against plain dictionaries, over crashes, restarts and rebuilds; and its watches against all."""

import asyncio
import random
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.api.keys import EXISTS, Delete, Namespace, Put
from store.base.errors import NamespaceFull, RevisionConflict
from store.local import key_watch as watch
from store.local import keys as local_keys
from store.local.local import LocalStore
from store.recent import kv_feed as feed
from store.views import Views

NAMESPACES = ("", "n", "no")
KEYS = ("", "a", "a/1", "a/2", "b", "é")


class StoredValue:
    """The model's entry under a key."""

    def __init__(self, value, revision, created, version, expires_at_ms):
        self.value, self.revision, self.created, self.version = value, revision, created, version
        self.expires_at_ms = expires_at_ms

    def entry(self, namespace, key):
        return (key, self.value, self.revision, self.created, self.version, self.expires_at_ms, namespace)


class Machine:
    """One run: a store, a model, a clock, and chance."""

    def __init__(self, directory: Path, seed: int):
        self.directory = directory
        self.chance = random.Random(seed)
        self.now_ms = 1_000
        self.generation = 0
        self.spaces = {name: {} for name in NAMESPACES}  # expired keys are still in it, until they are swept
        self.limits = dict.fromkeys(NAMESPACES, (0, 0))
        self.history = []  # (namespace, kind, key, value, revision, expires_at_ms)

    @property
    def path(self):
        return self.directory / str(self.generation)

    async def open(self):
        self.store = await LocalStore.open(
            self.path,
            now_ms=lambda: self.now_ms,
            linger_s=self.chance.choice([0.0005, 3600]),
            segment_size_bytes=4000,
            cache_bytes_max=self.chance.choice([0, 1500, 1 << 20]),
        )

    # ---- the model

    def live(self, namespace, key):
        held = self.spaces[namespace].get(key)
        return None if held is None or (held.expires_at_ms or 1 << 62) <= self.now_ms else held

    def revision(self, namespace, key):
        held = self.live(namespace, key)
        return held.revision if held else 0

    def size(self, space):
        return len(space), sum(len(key.encode()) + len(held.value) for key, held in space.items())

    def put(self, namespace, key, value, revision, expires_at_ms):
        before = self.live(namespace, key)
        created, version = (before.created, before.version + 1) if before else (revision, 1)
        self.spaces[namespace][key] = StoredValue(value, revision, created, version, expires_at_ms)
        self.history.append((namespace, "put", key, value, revision, expires_at_ms))

    def remove(self, namespace, key, kind, revision=None):
        del self.spaces[namespace][key]
        self.history.append((namespace, kind, key, b"", revision, None))

    def full(self, namespace, operations):
        """Returns whether the operations would take a namespace over its limits."""
        space = dict(self.spaces[namespace])
        for key, value in operations:
            if value is not None:
                space[key] = StoredValue(value, 0, 0, 0, None)
            elif self.live(namespace, key):
                del space[key]
        before, after = self.size(self.spaces[namespace]), self.size(space)
        return any(a > b and 0 < most < a for a, b, most in zip(after, before, self.limits[namespace], strict=True))

    def some(self):
        namespace, key = self.chance.choice(NAMESPACES), self.chance.choice(KEYS)
        actual = self.revision(namespace, key)
        expected = self.chance.choice([None, None, actual, EXISTS, 0, 7])
        holds = expected in {None, actual} or (expected == EXISTS and actual != 0)
        return namespace, key, actual, expected, holds

    def expiry(self):
        return self.chance.choice([None, None, self.now_ms + self.chance.randint(0, 50)])

    # ---- steps

    async def step_put(self):
        namespace, key, actual, expected, holds = self.some()
        value, expires_at_ms = self.chance.randbytes(self.chance.randrange(20)), self.expiry()
        call = self.store.keys.put(
            key, value, expected_revision=expected, namespace=namespace, expires_at_ms=expires_at_ms
        )
        if not holds:
            with pytest.raises(RevisionConflict) as caught:
                await call
            assert caught.value.actual == actual
        elif self.full(namespace, [(key, value)]):
            with pytest.raises(NamespaceFull):
                await call
        else:
            revision = await call
            assert revision > max((one[4] or 0 for one in self.history), default=0)
            self.put(namespace, key, value, revision, expires_at_ms)

    async def step_delete(self):
        namespace, key, actual, expected, holds = self.some()
        call = self.store.keys.delete(key, expected_revision=expected, namespace=namespace)
        if not holds:
            with pytest.raises(RevisionConflict):
                await call
        else:
            assert await call == (actual != 0)
            if actual:
                self.remove(namespace, key, "delete")

    async def step_transact(self):
        namespace = self.chance.choice(NAMESPACES)
        compares = {key: self.revision(namespace, key) for key in self.chance.sample(KEYS, self.chance.randint(0, 3))}
        wrong = None
        if compares and self.chance.random() < 0.3:
            wrong = self.chance.choice(list(compares))
            compares[wrong] += 1
        operations = []
        for key in self.chance.sample(KEYS, self.chance.randint(0, 4)):
            value = self.chance.randbytes(5)
            operations.append(self.chance.choice([Put(key, value, self.expiry()), Delete(key)]))
        call = self.store.keys.transact(compares, operations, namespace=namespace)
        if wrong is not None:
            with pytest.raises(RevisionConflict) as caught:
                await call
            assert caught.value.key == wrong
        elif self.full(namespace, [(one.key, getattr(one, "value", None)) for one in operations]):
            with pytest.raises(NamespaceFull):
                await call
        else:
            done = await call
            assert list(done.existed) == [self.live(namespace, one.key) is not None for one in operations]
            for one in operations:
                if isinstance(one, Put):
                    self.put(namespace, one.key, one.value, done.revision, one.expires_at_ms)
                elif self.live(namespace, one.key):
                    self.remove(namespace, one.key, "delete", done.revision)

    async def step_limit(self):
        namespace = self.chance.choice(NAMESPACES)
        limits = self.limits[namespace] = self.chance.choice([(0, 0), (3, 0), (0, 40), (4, 50)])
        await self.store.keys.limit(namespace, keys_max=limits[0], size_bytes_max=limits[1])

    async def step_wait(self):
        self.now_ms += self.chance.randint(1, 30)

    async def step_sweep(self):
        await self.store.keys.sweep(self.now_ms)
        due = [
            (held.expires_at_ms, name, key)
            for name, space in self.spaces.items()
            for key, held in space.items()
            if not self.live(name, key)
        ]
        for _, name, key in due:
            self.remove(name, key, "expire")

    async def step_restart(self):
        await self.store.close()
        await self.open()

    async def step_crash(self):
        """Go on from a copy of what is on disk, taken with the store running: the views may be far behind."""
        old, self.generation = self.path, self.generation + 1
        (self.path / "views").mkdir(parents=True)
        self.store.core.engine.views.copy(self.path / "views")
        shutil.copytree(old / "log", self.path / "log")
        with max((self.path / "log").iterdir()).open("ab") as file:
            file.write(self.chance.randbytes(self.chance.randrange(100)))  # the write that was under way
        await self.store.close()
        await self.open()

    # ---- checks

    def entries(self, namespace, start="", end=None):
        return [
            self.live(namespace, key).entry(namespace, key)
            for key in KEYS
            if self.live(namespace, key) and key >= start and (end is None or key < end)
        ]

    async def check(self):
        store, namespace = self.store, self.chance.choice(NAMESPACES)
        for key in KEYS:
            held = self.live(namespace, key)
            assert await store.keys.get(key, namespace=namespace) == (held and held.entry(namespace, key))
        start, end, limit = self.chance.choice(KEYS), self.chance.choice([None, *KEYS]), self.chance.randint(1, 4)
        at = await store.keys.hold() if self.chance.random() < 0.5 else None
        found, after, more = [], None, True
        while more:
            page = await store.keys.range(start, end, namespace=namespace, after=after, limit=limit, at_revision=at)
            found += page.entries
            more, after = page.more, page.entries[-1].key if page.entries else None
        assert found == self.entries(namespace, start, end)
        assert await store.keys.count(start, end, namespace=namespace) == len(found)
        assert await store.keys.namespaces() == [
            Namespace(name, *self.size(space), *self.limits[name])
            for name, space in sorted(self.spaces.items())
            if space or any(self.limits[name])
        ]
        await self.check_history(namespace)
        if at is not None:
            store.keys.release(at)

    async def check_history(self, namespace):
        """From some change on, what was done is what a watch tells."""
        watching = self.store.keys.watch(namespace=namespace, from_revision=0)
        wanted = [one[1:] for one in self.history if one[0] == namespace]
        found = []
        async with asyncio.timeout(20):
            while len(found) < len(wanted):
                found += (await anext(watching)).changes
        await watching.aclose()
        assert [change.revision for change in found] == sorted(change.revision for change in found)
        told = [(one.kind, one.key, one.value, one.expires_at_ms) for one in found]
        expected = [(kind, key, value, expires) for kind, key, value, _, expires in wanted]
        assert sorted(told, key=repr) == sorted(expected, key=repr)
        assert _without_expired(told) == _without_expired(expected)
        if found:
            at = self.chance.choice(found).revision
            watching = self.store.keys.watch(namespace=namespace, from_revision=at)
            rest = []
            async with asyncio.timeout(20):
                while len(rest) < len([one for one in found if one.revision >= at]):
                    rest += (await anext(watching)).changes
            await watching.aclose()
            assert rest == [one for one in found if one.revision >= at]

    async def run(self, steps):
        await self.open()
        try:
            for step in steps:
                await getattr(self, f"step_{step}")()
                await self.check()
        finally:
            await self.store.close()

    def rebuilt(self):
        """The views after this run, and what a rebuild from the log makes of them."""
        found = []
        for _ in range(2):
            views = Views(self.path / "views")
            found.append(list(views.entries()))
            views.close()
            shutil.rmtree(self.path / "views")
            asyncio.run(self.reopen())
        return found

    async def reopen(self):
        await (await LocalStore.open(self.path, now_ms=lambda: 0, segment_size_bytes=4000)).close()


def _without_expired(changes):
    """One sweep removes keys in an order of its own."""
    return [change for change in changes if change[0] != "expire"]


async def never(_store, _now_ms):
    """Nothing is due."""


STEPS = ["put", "transact"] * 4 + ["delete", "wait", "sweep"] * 2 + ["limit", "restart", "crash"]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.sampled_from(STEPS), min_size=5, max_size=30))
def test_keys_and_values_are_their_model_over_crashes(seed, steps):
    with (
        TemporaryDirectory() as name,
        patch.object(local_keys, "SWEEP_COUNT_MAX", 3),
        patch.object(local_keys.LocalKeys, "tick", never),  # sweeping is a step of its own
    ):
        machine = Machine(Path(name), seed)
        asyncio.run(machine.run(steps))
        followed, rebuilt = machine.rebuilt()
        assert followed == rebuilt


class Watcher:
    """Reads at its own pace, now and then from the beginning of what it has not seen."""

    def __init__(self, chance, start, end):
        self.chance, self.range = chance, (start, end)
        self.next = 0
        self.found = []

    async def run(self, store):
        while True:
            watching = store.keys.watch(*self.range, from_revision=self.next)
            try:
                async for changes in watching:
                    self.found += changes.changes
                    self.next = changes.next
                    for _ in range(self.chance.choice([0, 0, 1, 20])):
                        await asyncio.sleep(0)
                    if self.chance.random() < 0.1:
                        break
            finally:
                await watching.aclose()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32))
def test_every_change_is_seen_once_and_in_order(seed):
    chance = random.Random(seed)
    watchers = [Watcher(chance, *chance.choice([("", None), ("2", "5"), ("7", None)])) for _ in range(4)]
    written = []

    async def write(store):
        for _ in range(30):
            key = str(chance.randrange(10))
            match chance.randrange(4):
                case 0:
                    outcome = await store.keys.transact({}, [Put(key, b"t"), Put(f"{key}-", b"t"), Delete(f"{key}+")])
                    written.extend([(outcome.revision, key), (outcome.revision, f"{key}-")])
                case 1:
                    with suppress(RevisionConflict):
                        written.append((await store.keys.put(key, b"c", expected_revision=0), key))
                case _:
                    written.append((await store.keys.put(key, b"p"), key))

    async def one_life(path):
        linger_s = chance.choice([0.0005, 3600])
        async with await LocalStore.open(path, linger_s=linger_s, segment_size_bytes=4000) as store:
            following = [asyncio.ensure_future(watcher.run(store)) for watcher in watchers]
            await asyncio.gather(*(write(store) for _ in range(3)))
            async with asyncio.timeout(30):
                while any(watcher.next <= max(written)[0] for watcher in watchers if watcher.range == ("", None)):
                    await asyncio.sleep(0)
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    with (
        TemporaryDirectory() as name,
        patch.multiple(feed, FEED_COUNT_MAX=chance.choice([2, 10, 1000])),
        patch.multiple(
            watch, HISTORY_BYTES=chance.choice([1, 500, 1 << 20]), BATCH_COUNT_MAX=chance.choice([1, 5, 100])
        ),
    ):
        for _ in range(2):
            asyncio.run(one_life(Path(name) / "data"))

        async def catch_up():
            async with await LocalStore.open(Path(name) / "data") as store:
                end = (await store.keys.transact({}, [Put("3~", b""), Put("8~", b"")])).revision
                for watcher in watchers:
                    watching = store.keys.watch(*watcher.range, from_revision=watcher.next)
                    async with asyncio.timeout(30):
                        while not watcher.found or watcher.found[-1].revision < end:
                            watcher.found += (await anext(watching)).changes
                    await watching.aclose()

        asyncio.run(catch_up())
    for watcher in watchers:
        start, end = watcher.range
        wanted = [(at, key) for at, key in sorted(written) if key >= start and (end is None or key < end)]
        assert [(one.revision, one.key) for one in watcher.found if "~" not in one.key] == wanted
