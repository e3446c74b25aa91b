"""Positions that clients make up: whatever they name, nothing of a sound log is called damaged."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from store.api.message import Message
from tests.support.gateway.find_frames import frame
from tests.support.gateway.ruled_gateway import TIMEOUT_S, RuledGateway, fresh, ruled

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuledGateway]:
    with RuledGateway(Path(tmp_path_factory.mktemp("positions")) / "data") as one:
        yield one


def admin_page(served: RuledGateway, page: str) -> str:
    url = f"http://127.0.0.1:{served.ports['admin']}{page}"
    return httpx.get(url, timeout=TIMEOUT_S, trust_env=False).text


def first_event(http: httpx.Client, last: str) -> list[str]:
    """Returns the lines of an event stream up to its first message; it goes on behind an event that a client names."""
    lines: list[str] = []
    with http.stream("GET", "/subscribe", params={"filter": "#"}, headers={"last-event-id": last}) as stream:
        assert stream.status_code == 200
        for line in stream.iter_lines():
            lines.append(line)
            if line.startswith("data: {") and lines[-2] == "event: message":
                return lines
    raise AssertionError(lines)


def test_an_event_stream_goes_on_behind_a_position_within_a_frame(served: RuledGateway) -> None:
    bob = fresh("bob")
    served.do(served.set_user(bob, ruled("subscribe:team/#")))
    with served.http("admin") as admin:
        said = [admin.post(f"/topics/team/{n}", content=b"x" * 500).json()["position"] for n in range(3)]
    before = admin_page(served, "/readyz")
    frames = [int(one.partition(".")[0], 16) for one in said]
    with served.http(bob) as http:
        for made_up in (frames[0] + 9, frames[1] - 1, frames[0] + 64):
            lines = first_event(http, f"{made_up:x}.0")
            assert "event: lost" not in lines
            assert f"id: {said[1]}" in lines, (made_up, lines)
        for made_up in range(frames[1] + 1, frames[2], 97):
            assert http.get("/messages", params={"id": f"{made_up:x}.0"}).status_code == 200
            assert http.get("/messages", params={"key": "k", "after": f"{made_up:x}.0"}).status_code == 400
    assert admin_page(served, "/readyz") == before
    assert "headgate_log_damages 0.0" in admin_page(served, "/metrics").splitlines()


def test_the_bytes_of_a_frame_in_a_body_are_no_message_at_another_address(tmp_path: Path) -> None:
    """A publisher can tell from the positions of messages before where the bytes of the next one will lie."""
    inner = frame(Message("closed/plans", b"forged"))
    with RuledGateway(tmp_path / "data") as served:
        bob = fresh("bob")
        served.do(served.set_user(bob, ruled("publish:team/#")))
        with served.http(bob) as http, served.http("admin") as admin:

            def publish(body: bytes) -> int:
                return int(http.post("/topics/team/a", content=body).json()["position"].partition(".")[0], 16)

            plain = b"." * inner.size_bytes
            _, before, last = (publish(plain) for _ in range(3))
            segment = next((tmp_path / "data" / "log").iterdir()).read_bytes()
            at = 2 * last - before + segment.index(plain, before) - before
            header = inner.header(log_offset=at, epoch=1, stored_at_ms=1)
            assert publish(header + bytes(inner.rows) + bytes(inner.payload)) == 2 * last - before
            found = admin.get("/messages", params={"id": f"{at:x}.0"})
            assert (found.status_code, found.json()) == (200, [])
            found = admin.get("/messages", params={"id": f"{last:x}.0"})
            assert [one["subject"] for one in found.json()] == ["team/a"]
