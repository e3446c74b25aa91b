"""`/sessions` of the admin port, of one process and of several, while paho and an event stream are connected."""

import contextlib
import json
import urllib.error
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from gateway.ops.client_report import FILTERS_COUNT_MAX
from tests.support.mqtt.paho_client import TIMEOUT_S, connected, fresh
from tests.support.process.gateways import GatewayProcess
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

PASSWORD = "s3cret"
USERS = ("fleet", "reader", "nobody")
RULES = """
[access]
default = "deny"

[[access.rules]]
effect = "allow"
users = ["fleet"]
filters = ["#", "$queue/#", "$share/#"]

[[access.rules]]
effect = "allow"
users = ["reader"]
filters = ["open/#"]
"""


@pytest.fixture(scope="module", params=[(), ("--workers", "2")], ids=["alone", "workers"])
def gateway(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("sessions")
    (home / "password").write_text(PASSWORD)
    users = "".join(f'[auth.users.{name}]\npassword_file = "{home / "password"}"\n' for name in USERS)
    (home / "headgate.toml").write_text(users + RULES)
    arguments = ("--config", str(home / "headgate.toml"), *request.param)
    with contextlib.closing(GatewayProcess(home / "data", *arguments)) as one:
        yield one.start()


def listed(gateway: GatewayProcess, **query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gateway.admin(f"/sessions?{urlencode(query)}"))["rows"]
    return found


def filters(row: dict[str, Any]) -> set[tuple[str, int | None]]:
    return {(one["filter"], one["qos"]) for one in row["subscriptions"]}


def device(gateway: GatewayProcess, name: str, **options: Any) -> Any:
    return connected(gateway.port("mqtt"), name, user=("fleet", PASSWORD), **options)


def subscribe(client: Any, *wanted: tuple[str, int]) -> None:
    assert max(client.subscribe([*wanted])) < 0x80


def test_a_session_is_shown_with_its_subscriptions_while_it_is_connected_and_away(gateway: GatewayProcess) -> None:
    name = fresh("dev")
    wanted = {(f"commands/{name}/#", 1), ("$share/pool/open/+", 2)}
    with contextlib.closing(device(gateway, name)) as client:
        subscribe(client, *wanted)
        (row,) = listed(gateway, client=name)
        assert (row["protocol"], row["client"], row["user"], row["state"]) == ("mqtt", name, "fleet", "connected")
        assert (row["expiry_s"], row["left_ms"], row["partial"]) == (600, None, False)
        assert row["peer"].startswith("127.0.0.1:")
        assert filters(row) == wanted
        assert name in {one["client"] for one in listed(gateway, client="fleet")}  # by its user
    (row,) = wait_until(lambda: [one for one in listed(gateway, client=name) if one["left_ms"]])
    assert row["state"] == "away"
    assert filters(row) == wanted
    assert listed(gateway, client=fresh("nobody")) == []


def test_a_session_that_ends_with_its_connection_is_gone_with_it(gateway: GatewayProcess) -> None:
    name = fresh("dev")
    options = {"transport": "websockets"}
    client = connected(gateway.port("mqtt-ws"), name, user=("fleet", PASSWORD), expiry_s=0, **options)
    with contextlib.closing(client):
        subscribe(client, ("open/a", 1))
        (row,) = listed(gateway, client=name)
        assert (row["state"], row["expiry_s"], filters(row)) == ("connected", 0, {("open/a", 1)})
    wait_until(lambda: listed(gateway, client=name) == [])


def test_an_event_stream_is_shown_by_its_user(gateway: GatewayProcess) -> None:
    asked = httpx.stream(
        "GET", f"{gateway.url}/subscribe?filter=open/%23", auth=("reader", PASSWORD), timeout=TIMEOUT_S, trust_env=False
    )
    with asked as answer:
        assert answer.status_code == HTTPStatus.OK
        (row,) = wait_until(lambda: [one for one in listed(gateway, client="reader") if one["subscriptions"]])
        assert (row["protocol"], row["client"], filters(row)) == ("http", "", {("open/#", None)})


def test_a_user_is_shown_what_it_may_read_and_hears_nothing_of_the_rest(gateway: GatewayProcess) -> None:
    name, hidden = fresh("dev"), fresh("dev")
    with contextlib.closing(device(gateway, name)) as one, contextlib.closing(device(gateway, hidden)) as other:
        subscribe(one, ("open/x", 1), ("closed/there", 1), ("$share/pool/closed/+", 1))
        subscribe(other, ("closed/there", 1))
        (row,) = listed(gateway, client=name, user="reader")
        assert filters(row) == {("open/x", 1)}
        assert (row["user"], row["peer"], row["partial"]) == ("", "", False)
        for asked, user in ((hidden, "reader"), (name, "nobody"), (name, "whoever")):
            assert listed(gateway, client=asked, user=user) == [], user
        assert len(filters(*listed(gateway, client=name, user="fleet"))) == 3
        assert listed(gateway, client="fleet", user="reader") == []  # which clients a user has
    wait_until(lambda: listed(gateway, client=name)[0]["state"] == "away")
    (row,) = listed(gateway, client=name, user="reader")
    assert filters(row) == {("open/x", 1)}


def test_an_answer_is_bounded_and_a_mistake_is_a_sentence(gateway: GatewayProcess) -> None:
    name = fresh("dev")
    with contextlib.closing(device(gateway, name)) as client:
        subscribe(client, *((f"open/{n}", 0) for n in range(FILTERS_COUNT_MAX + 1)))
        (row,) = listed(gateway, client=name)
        assert (len(row["subscriptions"]), row["partial"]) == (FILTERS_COUNT_MAX, True)
    for query, why in (({}, "client=NAME"), ({"client": "a", "device": "b"}, "'device' is no parameter")):
        with pytest.raises(urllib.error.HTTPError) as failed:
            listed(gateway, **query)
        assert failed.value.code == HTTPStatus.BAD_REQUEST
        assert why in json.load(failed.value)["detail"]
