"""The statements of HTTP/1.1 over real sockets: each exchange on a connection of its own."""

import socket
from collections.abc import Iterator

import pytest

from tests.support.http.http1_exchanges import EXCHANGES, GET, Exchange, statuses
from tests.support.process.gateways import GatewayProcess

pytestmark = pytest.mark.slow

PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    made = GatewayProcess(tmp_path_factory.mktemp("wire") / "data").start()
    yield made
    made.close()


def read(one: socket.socket, count: int) -> tuple[int, ...]:
    """Returns the statuses that come, until there are so many, or the connection ends."""
    out = b""
    while len(statuses(out)) < count and (data := one.recv(65_536)):
        out += data
    return statuses(out)


def answered(gateway: GatewayProcess, exchange: Exchange) -> bool:
    with socket.create_connection(("127.0.0.1", gateway.port("http")), timeout=PATIENCE_S) as one:
        one.sendall(exchange.sent)
        if exchange.ends:
            return read(one, len(exchange.statuses) + 1) == exchange.statuses
        found = read(one, len(exchange.statuses))
        following, status = (b"x", 201) if exchange.statuses == (100,) else (GET, 200)
        one.sendall(following)
        return (found, read(one, 1)) == (exchange.statuses, (status,))


def test_each_statement_holds_over_sockets(gateway: GatewayProcess) -> None:
    assert [exchange.statement for exchange in EXCHANGES if not answered(gateway, exchange)] == []
