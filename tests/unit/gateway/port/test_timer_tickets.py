"""Tickets of delayed messages: only who was told of one calls its message off."""

import pytest

from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.tickets import timer_id, timer_of, timer_ticket
from gateway.publishing.timer_secrets import TimerSecrets
from store.api.message import Message
from store.format.frame import LogOffset, Position
from store.local.local import LocalStore
from tests.support.store.store_kit import FaultyFiles

LATER = Message("t/1", deliver_at_ms=5_000)
PLACES = [Position(LogOffset(64), 1), Position(LogOffset(1 << 48), 0)]
ALICE, BOB = Principal(name="alice", secret=b"a" * 32), Principal(name="bob", secret=b"b" * 32)


def test_a_ticket_is_its_principals():
    ticket = timer_ticket(ALICE, LATER, PLACES)
    assert timer_of(ALICE, ticket) == timer_id(LATER, PLACES)
    assert timer_ticket(ALICE, Message("t/1"), PLACES) is None
    other = timer_ticket(ALICE, LATER, PLACES[:1])
    swapped = timer_id(LATER, PLACES[:1]) + "_" + ticket.partition("_")[2]
    for principal, said in (
        (BOB, ticket),
        (ALICE, timer_id(LATER, PLACES)),
        (ALICE, ticket[:-1]),
        (ALICE, swapped),
        (BOB, other),
        (ALICE, ""),
        (ALICE, "_"),
        (ALICE, "\u00e9_\u00e9"),
    ):
        with pytest.raises(Refusal) as refused:
            timer_of(principal, said)
        assert refused.value.cause is Cause.NOT_FOUND


@pytest.mark.anyio
async def test_all_gateways_of_a_cluster_make_the_same_secrets_and_nobody_else_does(tmp_path):
    one, other, stranger = TimerSecrets(), TimerSecrets(), TimerSecrets()
    async with await LocalStore.open(tmp_path) as store:
        await one.load(store)
        await other.load(store)
    assert one.of("alice") == other.of("alice") != one.of("bob")
    assert stranger.of("alice") != one.of("alice")
    assert one.gateway_id == other.gateway_id != stranger.gateway_id
    again = TimerSecrets()
    async with await LocalStore.open(tmp_path) as store:  # as after a restart
        await again.load(store)
    assert again.gateway_id == one.gateway_id


@pytest.mark.anyio
async def test_a_store_that_takes_nothing_is_no_reason_not_to_start(tmp_path, caplog):
    files = FaultyFiles()
    async with await LocalStore.open(tmp_path, files=files) as store:
        files.free = 0
        store.core.engine.space.look()
        secrets = TimerSecrets()
        await secrets.load(store)
        assert secrets.of("alice")
