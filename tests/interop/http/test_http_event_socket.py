"""CloudEvents over WebSocket, by the client of the library `websockets` over real sockets."""

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

pytestmark = pytest.mark.slow

TIMEOUT_S = 60.0
JSON = Subprotocol("cloudevents.json")
numbers = count(1)


@pytest.fixture
def address() -> str:
    return f"socket/{next(numbers)}"


@pytest.fixture
def opened() -> Iterator[Callable[..., ClientConnection]]:
    made: list[ClientConnection] = []

    def open_one(gateway: Any, query: str, **more: Any) -> ClientConnection:
        url = gateway.url.replace("http://", "ws://")
        more = {"subprotocols": [JSON], "proxy": None, "open_timeout": TIMEOUT_S, **more}
        made.append(connect(f"{url}/subscribe?{query}", **more))
        return made[-1]

    yield open_one
    for one in made:
        one.close()


def event(address: str, id_: str = "1", data: Any = 1, **more: Any) -> str:
    return json.dumps(
        {"specversion": "1.0", "id": id_, "source": "/ws", "type": "t", "subject": address, "data": data, **more}
    )


def closed(socket: ClientConnection) -> tuple[int, str]:
    with contextlib.suppress(ConnectionClosed):
        for _ in socket:
            pass
    assert socket.close_code is not None
    return socket.close_code, socket.close_reason or ""


def test_events_go_both_ways(shared_gateway: Any, opened: Callable[..., ClientConnection], address: str) -> None:
    socket = opened(shared_gateway, f"filter={address}/%23")
    assert socket.subprotocol == JSON
    socket.send(event(f"{address}/a", "own", {"ü": [1]}, colour="red"))
    found = json.loads(socket.recv(timeout=TIMEOUT_S))
    assert (found["id"], found["data"], found["colour"]) == ("own", {"ü": [1]}, "red")
    with httpx.Client(base_url=shared_gateway.url, timeout=TIMEOUT_S, trust_env=False) as client:
        assert client.get(f"/topics/{address}/a").json() == {"ü": [1]}
        for number in range(200):
            client.post(f"/topics/{address}/b", content=b"x" * 2_000, headers={"ce-id": str(number)})
    assert [json.loads(socket.recv(timeout=TIMEOUT_S))["id"] for _ in range(200)] == [str(n) for n in range(200)]
    assert socket.ping().wait(TIMEOUT_S)


def test_a_message_in_fragments_and_conditions(
    shared_gateway: Any, opened: Callable[..., ClientConnection], address: str
) -> None:
    socket = opened(shared_gateway, f"filter={address}&where=colour%3D'red'")
    for number in range(5):
        text = event(address, str(number), colour="red" if number % 2 else "blue")
        socket.send([text[:10], text[10:11], text[11:]])
    assert [json.loads(socket.recv(timeout=TIMEOUT_S))["id"] for _ in range(2)] == ["1", "3"]


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        ("no json", 1007, "JSON"),
        ('{"specversion": "1.0"}', 1007, "id"),
        (event("$SYS/x"), 1008, "$SYS"),
        (b"binary", 1003, "text"),
        ("x" * (5 << 20), 1009, ""),
    ],
)
def test_what_is_no_event_ends_the_connection_with_the_reason(
    shared_gateway: Any, opened: Callable[..., ClientConnection], message: Any, code: int, words: str
) -> None:
    socket = opened(shared_gateway, "filter=socket/none")
    with contextlib.suppress(ConnectionClosed):
        socket.send(message)
    found = closed(socket)
    assert found[0] == code, found
    assert words in found[1]


@pytest.mark.parametrize(
    ("query", "more", "status"),
    [
        ("", {}, 400),
        ("filter=a/%23/b", {}, 400),
        ("filter=a", {"subprotocols": [Subprotocol("mqtt")]}, 400),
        ("filter=a", {"subprotocols": None}, 400),
        ("filter=a", {"origin": "https://evil.example.com"}, 403),
        ("filter=a", {"additional_headers": {"authorization": "Basic bm9ib2R5Ong="}}, 401),
    ],
)
def test_what_is_no_websocket_is_refused_in_http(
    shared_gateway: Any, opened: Callable[..., ClientConnection], query: str, more: dict[str, Any], status: int
) -> None:
    with pytest.raises(InvalidStatus) as caught:
        opened(shared_gateway, query, **more)
    assert caught.value.response.status_code == status


def test_the_end_of_the_gateway_is_said(
    new_gateway: Callable[..., Any], opened: Callable[..., ClientConnection]
) -> None:
    gateway = new_gateway().start()
    socket = opened(gateway, "filter=%23")
    assert gateway.process is not None
    gateway.process.send_signal(signal.SIGTERM)
    assert closed(socket)[0] == 1001
    assert gateway.process.wait(TIMEOUT_S) == 0
