"""Clients that are closed for the same again and again."""

from gateway.security import reconnect_penalty
from gateway.security.reconnect_penalty import (
    CLIENTS_COUNT_MAX,
    DELAY_MS_MAX,
    FORGET_MS,
    FREE_COUNT,
    ReconnectingClient,
    ReconnectPenalty,
)

NOW_MS = 1_700_000_000_000
C = ReconnectingClient("mqtt", "192.0.2.1", "ada", "c")


def noted(count: int, who: ReconnectingClient = C, now_ms: int = NOW_MS) -> ReconnectPenalty:
    found = ReconnectPenalty()
    for _ in range(count):
        found.note(who, "a packet of 9 bytes; at most 8", now_ms=now_ms)
    return found


def delays(most: int) -> list[int]:
    return [noted(count).delay_ms(C, now_ms=NOW_MS) for count in range(most)]


def test_after_some_times_a_client_waits_longer_and_longer_but_not_for_ever():
    assert delays(9) == [0] * FREE_COUNT + [250, 500, 1_000, 2_000, DELAY_MS_MAX, DELAY_MS_MAX]
    assert noted(200).delay_ms(C, now_ms=NOW_MS) == DELAY_MS_MAX


def test_others_do_not_wait():
    for other in ({"protocol": "amqp"}, {"network": "192.0.2.2"}, {"user": "eve"}, {"user": ""}, {"client": "d"}):
        assert noted(9).delay_ms(C._replace(**other), now_ms=NOW_MS) == 0


def test_it_is_forgotten():
    found = noted(9)
    assert found.delay_ms(C, now_ms=NOW_MS + FORGET_MS - 1)
    assert not found.delay_ms(C, now_ms=NOW_MS + FORGET_MS)
    found.note(C, "", now_ms=NOW_MS + FORGET_MS)
    assert not found.delay_ms(C, now_ms=NOW_MS + FORGET_MS)


def test_so_many_clients_are_remembered():
    found = noted(FREE_COUNT)
    for number in range(CLIENTS_COUNT_MAX):
        found.note(C._replace(client=f"c{number}"), "", now_ms=NOW_MS)
    assert found.delay_ms(C, now_ms=NOW_MS) == 0
    assert len(found._records) == CLIENTS_COUNT_MAX


def test_a_client_is_logged_once_with_the_reason(monkeypatch):
    lines = []
    monkeypatch.setattr(reconnect_penalty.log, "warning", lambda event, **fields: lines.append(fields), raising=False)
    noted(20)
    assert lines == [{**C._asdict(), "why": "a packet of 9 bytes; at most 8"}]
