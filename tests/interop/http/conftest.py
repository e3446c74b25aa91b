"""Fixtures of HTTP's clients. A test file has a `gateway` of its own."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.support.process.gateways import GatewayProcess

TIMEOUT_S = 60.0


@pytest.fixture(params=["HTTP/1.1", "HTTP/2"])
def opened(request: pytest.FixtureRequest, gateway: GatewayProcess) -> Iterator[Callable[[], httpx.Client]]:
    """Makes clients of the file's gateway, by each version of HTTP."""
    made: list[httpx.Client] = []

    def client() -> httpx.Client:
        http2 = request.param == "HTTP/2"
        made.append(
            httpx.Client(base_url=gateway.url, http1=not http2, http2=http2, timeout=TIMEOUT_S, trust_env=False)
        )
        return made[-1]

    yield client
    for one in made:
        one.close()
