"""Rights that are revoked while something is under way: what waits is given up, and what is asked again is refused."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway.ruled_gateway import RuledGateway, fresh, ruled
from tests.support.http.webhook_sink import Delivered, WebhookSink
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuledGateway]:
    data_dir = Path(tmp_path_factory.mktemp("under-way")) / "data"
    with RuledGateway(data_dir, subscriptions={"private_sinks": ["127.0.0.1"]}) as one:
        yield one


@pytest.fixture
def user(served: RuledGateway) -> Callable[..., str]:
    def make(*allowed: str, name: str = "") -> str:
        name = name or fresh("bob")
        served.do(served.set_user(name, ruled(*allowed)))
        return name

    return make


@pytest.fixture
def sink() -> Iterator[WebhookSink]:
    one = WebhookSink(lambda _: 503)
    yield one
    one.close()


def test_events_that_wait_for_another_attempt_are_not_sent_to_a_sink_when_their_right_is_revoked(
    served: RuledGateway, user: Callable[..., str], sink: WebhookSink
) -> None:
    others = "subscribe:team/#", "all:$subscription/#"
    bob = user("subscribe:secret/#", *others)
    with served.http(bob) as http:
        settings = {"retrymin": 2, "retrymax": 2}
        body = {"sink": sink.url, "protocol": "HTTP", "protocolsettings": settings}
        made = http.post("/subscriptions", json={**body, "config": {"addresses": ["secret/#", "team/#"]}})
        assert made.status_code == 201, made.text
        target = f"/subscriptions/{made.json()['id']}"
        wait_until(lambda: http.get(target).json()["status"]["state"] == "active")
        served.publish("secret/a")
        sink.wait_until(lambda: any(one.body == b"secret/a" for one in sink.came))
        user(*others, name=bob)  # in the two seconds until the next attempt
        sink.answer = taken
        served.publish("team/a")
        sink.wait_until(lambda: any(one.body == b"team/a" for one in sink.taken))
        wait_until(lambda: http.get(target).json()["status"]["held"] == 0)
        served.publish("secret/b", "team/b")
        sink.wait_until(lambda: any(one.body == b"team/b" for one in sink.came))
        assert {one.body for one in sink.taken} == {b"team/a", b"team/b"}
        assert http.delete(target).status_code == 200


def taken(_: Delivered) -> int:
    return 204


@pytest.mark.parametrize("left", [0, 1])
def test_who_waits_for_a_group_is_refused_when_a_right_is_revoked(
    served: RuledGateway, user: Callable[..., str], left: int
) -> None:
    topic, group = fresh("work"), fresh("jobs")
    rights = f"subscribe:{topic}/#", f"subscribe:$group/{group}"
    served.publish(f"{topic}/first")
    bob = user(*rights)
    with ThreadPoolExecutor(1) as pool, served.http(bob) as http, served.http(bob) as other:
        assert http.put(f"/groups/{group}", json={"topic": topic, "start": "latest"}).status_code in {200, 201}
        waiting = pool.submit(other.post, f"/groups/{group}/receive", json={"wait": 30})
        wait_until(lambda: served.call(lambda: bool(served.gateway.hub.lease_groups._waiting)))
        user(rights[left], name=bob)
        served.publish(f"{topic}/second")
        answer: httpx.Response = waiting.result(60)
        assert (answer.status_code, "second" in answer.text) == (403, False)
        user(*rights, name=bob)
        got: Any = http.post(f"/groups/{group}/receive", json={"max": 100}).json()
        assert [one["event"]["subject"] for one in got["messages"]] == [f"{topic}/second"]
        handles = [one["handle"] for one in got["messages"]]
        assert http.post(f"/groups/{group}/ack", json={"handles": handles}).status_code == 200
