"""Rights that are revoked while something is under way: what waits is given up, and what is asked again is refused."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from controller.api.commands import DeleteUser
from gateway.domain.access_settings import AccessConfig, AccessRule
from gateway.runtime.reloading import apply
from tests.support.gateway.ruled_gateway import RULES, RuledGateway, fresh, ruled
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


def subscribe(http: httpx.Client, sink: WebhookSink, address: str) -> str:
    """Makes a subscription, waits until it is active, and returns its path."""
    body = {"sink": sink.url, "protocol": "HTTP", "protocolsettings": {"retrymin": 0.1, "retrymax": 0.1}}
    made = http.post("/subscriptions", json={**body, "config": {"addresses": [address]}})
    assert made.status_code == 201, made.text
    target = f"/subscriptions/{made.json()['id']}"
    wait_until(lambda: http.get(target).json()["status"]["state"] == "active")
    return target


def test_the_subscription_of_a_user_that_is_removed_delivers_nothing(tmp_path: Path, sink: WebhookSink) -> None:
    """It has no connection that could be closed, and the user had no rules of its own."""
    sink.answer, other = taken, WebhookSink(taken)
    rules = [*RULES, {"effect": "allow", "users": ["carl"], "filters": ["team/#", "$subscription/#"]}]
    options: dict[str, Any] = {"subscriptions": {"private_sinks": ["127.0.0.1"]}, "access": {"rules": rules}}
    with RuledGateway(tmp_path / "data", **options) as served, served.http("admin") as admin:
        served.do(served.set_user("carl"))
        with served.http("carl") as carl:
            subscribe(carl, sink, "team/#")
        subscribe(admin, other, "team/#")
        served.publish("team/1")
        sink.wait_until(lambda: [one.body for one in sink.taken] == [b"team/1"])
        served.do(served.gateway.hub.controller.do(DeleteUser(name="carl")))
        served.publish("team/2")
        other.wait_until(lambda: [one.body for one in other.taken][-1:] == [b"team/2"])
        served.do(served.set_user("carl"))
        served.publish("team/3")
        sink.wait_until(lambda: [one.body for one in sink.taken][-1:] == [b"team/3"])
        assert [one.body for one in sink.taken] == [b"team/1", b"team/3"]
    other.close()


def test_rules_that_are_new_restrict_subscriptions_of_clients_without_a_name(tmp_path: Path, sink: WebhookSink) -> None:
    sink.answer = taken
    options: dict[str, Any] = {
        "subscriptions": {"private_sinks": ["127.0.0.1"]},
        "access": {"default": "allow", "rules": []},
    }
    with RuledGateway(tmp_path / "data", **options) as served, served.http(None) as nameless:
        subscribe(nameless, sink, "#")
        served.publish("secret/1")
        sink.wait_until(lambda: [one.body for one in sink.taken] == [b"secret/1"])
        deny = AccessRule(effect="deny", anonymous=True, filters=("secret/#",))
        new = msgspec.structs.replace(served.gateway.config, access=AccessConfig(default="allow", rules=(deny,)))
        served.call(lambda: apply(served.gateway.hub, new))
        served.publish("secret/2", "team/2")
        sink.wait_until(lambda: [one.body for one in sink.taken][-1:] == [b"team/2"])
        assert [one.body for one in sink.taken] == [b"secret/1", b"team/2"]


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
