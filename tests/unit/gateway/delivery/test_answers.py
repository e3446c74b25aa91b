"""Waits for answers: which message ends a wait, how many there may be, and what ends them otherwise."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.delivery import answers
from gateway.delivery.answers import LINGER_S, AnswerWaits
from gateway.delivery.read_slots import ReadSlots
from gateway.domain.access import NOTHING, Identity, Permissions
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.reads import AwaitAnswer, ExpectAnswer, ForgetAnswer
from gateway.runtime.reloading import follow
from gateway.runtime.turn import StreamHub
from store.api.message import Message
from store.base.errors import StoreError
from store.format.frame import LogOffset, Position, origin_of
from tests.support.gateway.fanout_rig import FanoutRig

pytestmark = pytest.mark.anyio

NAMELESS = Principal(name="")


class Asker:
    def __init__(self, host: str = "192.0.2.1") -> None:
        self.host = host
        self.ended = False
        self.several = self.loopback = self.dismissed = False
        self.protocol = "http"
        self.principal = NAMELESS

    def dismiss(self) -> None:
        self.dismissed = True


class Rig(FanoutRig):
    """Waits over a log in memory, with the timers that they have started."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.waits = AnswerWaits(
            self.fanout,
            self.log,
            ReadSlots(bytes_max=1, message_bytes_max=1, unread_bytes=lambda: 0),
            now_ms=lambda: 0,
            later=lambda after_s, work: self.timers.append((after_s, work)),
        )
        self.asker = Asker()

    async def expect(
        self, number: int, address: str = "a", correlation: bytes = b"c", *, who: Principal = NAMELESS, **fields: Any
    ) -> None:
        asker, wait_ms = fields.pop("asker", self.asker), fields.pop("wait_ms", 60_000)
        asked = ExpectAnswer(number=number, address=address, correlation=correlation, wait_ms=wait_ms, **fields)
        await self.waits.expect(asker, who, asked)

    def waiting(
        self, number: int, *, behind: Position | None = None, who: Principal = NAMELESS
    ) -> "asyncio.Task[Message | None]":
        return asyncio.ensure_future(self.waits.wait(self.asker, who, AwaitAnswer(number=number, behind=behind)))

    def publish(self, body: bytes, address: str = "a", correlation: bytes | None = b"c") -> None:
        self.log.write(Message(address, body, correlation=correlation))

    def fire(self) -> None:
        timers, self.timers = self.timers, []
        for after_s, work in timers:
            assert after_s == LINGER_S
            work()


async def body_of(waiting: "asyncio.Task[Message | None]") -> bytes | None:
    async with asyncio.timeout(60):
        found = await waiting
    return None if found is None else found.body


async def test_the_first_message_with_the_correlation_at_the_address_is_the_answer():
    rig = Rig()
    rig.publish(b"before")
    await rig.expect(1)
    waiting = rig.waiting(1)
    await asyncio.sleep(0)
    rig.publish(b"other place", "b")
    rig.publish(b"other correlation", correlation=b"d")
    rig.publish(b"none", correlation=None)
    assert not waiting.done()
    rig.publish(b"first")
    rig.publish(b"second")
    assert await body_of(waiting) == b"first"
    assert rig.waits.count == 0


async def test_an_answer_that_comes_before_it_is_asked_for_is_kept():
    rig = Rig()
    await rig.expect(1)
    await rig.expect(2)
    rig.publish(b"x")
    assert [await body_of(rig.waiting(number)) for number in (1, 2)] == [b"x", b"x"]
    assert (await rig.waits.wait(rig.asker, NAMELESS, AwaitAnswer(number=1))) is None, "each is given once"


async def test_a_wait_ends_by_time_by_leaving_and_by_going_down():
    rig = Rig()
    await rig.expect(1, wait_ms=0)
    assert await body_of(rig.waiting(1)) is None
    for end in (
        lambda: rig.waits.forget(rig.asker, NAMELESS, ForgetAnswer(number=2)),
        lambda: rig.waits.left(rig.asker),
        rig.waits.stop,
    ):
        await rig.expect(2)
        waiting = rig.waiting(2)
        await asyncio.sleep(0)
        ended = end()
        if ended is not None:
            await ended
        assert await body_of(waiting) is None
        assert rig.waits.count == 0
    await rig.expect(3)
    assert await body_of(rig.waiting(3)) is None, "it goes down"
    rig = Rig()
    rig.asker.ended = True
    await rig.expect(4)
    assert await body_of(rig.waiting(4)) is None, "the peer sends no more, and may be gone"


async def test_waits_of_a_user_and_of_the_process_are_bounded(monkeypatch):
    monkeypatch.setattr(answers, "USER_WAITS_COUNT_MAX", 2)
    monkeypatch.setattr(answers, "WAITS_COUNT_MAX", 4)
    rig = Rig()
    alice = Principal(name="alice")
    for number in (1, 2):
        await rig.expect(number, who=alice)
    with pytest.raises(Refusal) as refused:
        await rig.expect(3, who=alice, asker=Asker("192.0.2.9"))
    assert refused.value.cause is Cause.QUOTA
    for number in (3, 4):
        await rig.expect(number)
    with pytest.raises(Refusal, match="without a user from this host"):
        await rig.expect(5)
    with pytest.raises(Refusal) as refused:
        await rig.expect(5, asker=Asker("192.0.2.2"))
    assert refused.value.cause is Cause.OVERLOAD
    await rig.waits.forget(rig.asker, alice, ForgetAnswer(number=1))
    await rig.expect(5, asker=Asker("192.0.2.2"))


async def test_a_subscription_lasts_while_it_is_used_and_a_moment_longer(monkeypatch):
    rig = Rig()
    for number in (1, 2):
        await rig.expect(number)
        assert rig.fanout.subscription_count == 1
        rig.publish(b"x")
        await body_of(rig.waiting(number))
    rig.fire()
    assert rig.fanout.subscription_count == 1, "the second one has used it since"
    rig.fire()
    assert rig.fanout.subscription_count == 0
    await rig.expect(3)
    rig.fire()
    rig.publish(b"y")
    assert await body_of(rig.waiting(3)) == b"y"
    monkeypatch.setattr(answers, "PLACES_COUNT_MAX", 1)
    await rig.expect(4, "b")
    await rig.expect(5, "d")
    await rig.waits.forget(rig.asker, NAMELESS, ForgetAnswer(number=5))
    assert rig.fanout.subscription_count == 2, "too many for one to stay"
    rig.fire()
    rig.fire()
    assert rig.fanout.subscription_count == 1


async def test_only_answers_that_its_user_may_read_reach_a_wait():
    class Nothing:
        def may(self, _action: str, _address: str) -> bool:
            return False

    rig = Rig()
    denied = Principal(name="eve", permissions=Permissions(Identity(name="eve"), Nothing()))  # type: ignore[arg-type]
    await rig.expect(1, who=denied, wait_ms=10)
    await rig.expect(2)
    rig.publish(b"x")
    assert await body_of(rig.waiting(2)) == b"x"
    assert await body_of(rig.waiting(1)) is None


async def test_clients_behind_a_proxy_are_counted_by_their_own_hosts(monkeypatch):
    monkeypatch.setattr(answers, "USER_WAITS_COUNT_MAX", 1)
    rig = Rig()
    await rig.expect(1, host="198.51.100.1")
    await rig.expect(2, host="203.0.113.9")
    with pytest.raises(Refusal):
        await rig.expect(3, host="203.0.113.9")


def found(monkeypatch: pytest.MonkeyPatch, at: Position | Exception, correlation: bytes = b"c") -> None:
    """Sets where the last message at `a` is, or the error that it is read with."""

    async def last_stored(_store: Any, address: str, **_options: Any) -> tuple[Position, Message] | None:
        if isinstance(at, Exception):
            raise at
        return (at, Message("a", b"earlier", correlation=correlation, id="1")) if address == "a" else None

    monkeypatch.setattr(answers, "last_stored", last_stored)


COMMAND = Position(LogOffset(origin_of(1) + 100), 3)


@pytest.mark.parametrize(
    ("at", "correlation", "address", "body"),
    [
        (Position(LogOffset(origin_of(1) + 100), 4), b"c", "a", b"earlier"),
        (Position(origin_of(0), 0), b"c", "a", b"earlier"),  # another log tells nothing of the order
        (Position(LogOffset(origin_of(1) + 100), 2), b"c", "a", None),
        (Position(LogOffset(origin_of(1) + 200), 0), b"d", "a", None),
        (Position(LogOffset(origin_of(1) + 200), 0), b"c", "b", None),
    ],
)
async def test_a_repeated_command_finds_the_answer_that_was_stored_behind_it(
    monkeypatch, at, correlation, address, body
):
    found(monkeypatch, at, correlation)
    rig = Rig()
    await rig.expect(1, address, wait_ms=0)
    await rig.expect(2, wait_ms=0)
    assert await body_of(rig.waiting(1, behind=COMMAND)) == body
    assert await body_of(rig.waiting(2)) is None, "the command is new"
    assert rig.waits.count == 0


async def test_an_answer_is_heard_although_the_last_message_cannot_be_read(monkeypatch):
    found(monkeypatch, StoreError("the group cannot be reached"))
    rig = Rig()
    await rig.expect(1)
    waiting = rig.waiting(1, behind=COMMAND)
    await asyncio.sleep(0)
    rig.publish(b"late")
    assert await body_of(waiting) == b"late"
    assert rig.waits.count == 0


async def test_who_may_not_read_the_address_any_more_finds_nothing_there(monkeypatch):
    found(monkeypatch, COMMAND._replace(row=4))
    denied = Principal(name="eve", permissions=Permissions(Identity(name="eve"), NOTHING))
    rig = Rig()
    await rig.expect(1, who=denied, wait_ms=0)
    assert await body_of(rig.waiting(1, behind=COMMAND, who=denied)) is None


async def reloaded(rig: Rig, *, access: Callable[[], object] = lambda: None, changed: str = "") -> None:
    """Applies another configuration, by which `access` changes rights and the user `changed` is another one."""

    async def news() -> AsyncIterator[Any]:
        yield SimpleNamespace(access=None, auth=SimpleNamespace(oscore_file=None))

    hub = SimpleNamespace(
        access=SimpleNamespace(reload=lambda _: access(), unauthenticated=lambda _: NAMELESS),
        answers=rig.waits,
        authenticator=SimpleNamespace(reload=lambda _: frozenset([changed]), admits=lambda *_, **__: True),
        connections={1: rig.asker},
        contexts=SimpleNamespace(provisioned=SimpleNamespace(reload=lambda _: None)),
        fanout=rig.fanout,
    )
    await follow(cast(StreamHub, hub), news())


async def test_rules_that_come_during_a_wait_hold_for_it_also_without_a_name():
    rig = Rig()
    mine = Permissions(Identity(protocol="http"), None)
    await rig.expect(1, who=Principal(name="", permissions=mine), wait_ms=10)
    await rig.expect(2, "b")
    await reloaded(rig, access=lambda: setattr(mine, "access", NOTHING))
    rig.publish(b"secret")
    rig.publish(b"open", "b")
    assert [await body_of(rig.waiting(number)) for number in (1, 2)] == [None, b"open"]


async def test_the_waits_of_a_user_that_is_dismissed_end():
    rig = Rig()
    rig.asker.principal = Principal(name="alice")
    await rig.expect(1, who=rig.asker.principal)
    waiting = rig.waiting(1)
    await reloaded(rig, changed="bob")
    assert rig.waits.count == 1
    await reloaded(rig, changed="alice")
    assert await body_of(waiting) is None
    assert rig.asker.dismissed
