"""The OpenAPI document is true: each operation is asked of a gateway, and its answers fit what the document says."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from adapters.http.handlers import groups, routes, subscriptions
from adapters.http.openapi.operations import OPERATIONS
from tests.support.http.json_schema import mistakes

pytestmark = pytest.mark.slow

TIMEOUT_S = 60.0
EVENT = {"specversion": "1.0", "id": "openapi", "source": "/s", "type": "t", "subject": "openapi/x", "data": 1}
STRUCTURED = {"content-type": "application/cloudevents+json"}
BATCH = {"content-type": "application/cloudevents-batch+json"}
SPEC = {"sink": "https://sink.example.com/", "protocol": "HTTP", "sinkcredential": {
    "credentialtype": "PLAIN", "identifier": "a", "secret": "b"}}  # fmt: skip


def served() -> set[str]:
    """Returns every method and path that is served, with `*` for the part that a path names."""
    found = {f"{method} {path}" for path, methods in routes.EXACT.items() for method in methods}
    found |= {f"{method} {root}*" for root, methods in routes.BELOW.items() for method in methods}
    tables = (("/groups/*", groups._GROUP), ("/groups/*/members/*", groups._MEMBERS))
    for below, table in (*tables, ("/subscriptions/*", subscriptions._ONE)):
        found |= {f"{method} {below}{rest and f'/{rest}'}" for rest, methods in table.items() for method in methods}
    return found


def test_every_route_is_described_and_nothing_else() -> None:
    assert {re.sub(r"\{[a-z]+\}", "*", name) for name in OPERATIONS} == served()


@pytest.fixture(scope="module")
def client(shared_gateway: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=shared_gateway.url, timeout=TIMEOUT_S, trust_env=False) as opened:
        yield opened


@pytest.fixture(scope="module")
def described(client: httpx.Client) -> dict[str, Any]:
    answer = client.get("/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    return answer.json()


def operation(described: dict[str, Any], method: str, path: str) -> tuple[str, dict[str, Any]]:
    """Returns the operation of a request; where several paths match, that of the one with the fewest parameters."""
    path = path.partition("?")[0]
    for template in sorted(described["paths"], key=lambda one: one.count("{")):
        pattern = re.sub(r"\\{(address|key)\\}", ".+", re.escape(template))
        if (
            re.fullmatch(re.sub(r"\\{[a-z]+\\}", "[^/]+", pattern), path)
            and method.lower() in described["paths"][template]
        ):
            return template, described["paths"][template][method.lower()]
    raise AssertionError(f"{method} {path} is not described")


def fits(described: dict[str, Any], answer: httpx.Response) -> str:
    """Checks an answer against the document; the name of its operation."""
    request = answer.request
    template, one = operation(described, request.method, request.url.raw_path.decode())
    where = f"{request.method} {template}: {answer.status_code} {answer.text[:300]}"
    status = str(answer.status_code)
    said = one["responses"].get(status) or one["responses"].get(f"{status[0]}XX")
    assert said is not None, where
    content = said.get("content", {})
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if not answer.content:
        assert not content or "*/*" in content, where
        return f"{request.method} {template}"
    schema = content.get(kind) or content.get("*/*")
    assert schema is not None, where
    if kind.endswith("json") and schema["schema"]:
        assert not list(mistakes(answer.json(), schema["schema"], described["components"]["schemas"])), where
    return f"{request.method} {template}"


def requests(ask: Callable[..., httpx.Response]) -> None:
    """Asks for everything, with and without success."""
    ask("POST", "/events", json=EVENT, headers=STRUCTURED)
    ask("POST", "/events", json=[EVENT, EVENT], headers=BATCH)
    ask("POST", "/events", json=[EVENT, 1], headers=BATCH)
    ask("POST", "/events", json=[EVENT, 1], headers={**BATCH, "prefer": "handling=lenient"})
    ask("POST", "/events", content=b"x")
    ask("POST", "/topics/openapi/x", content=b"x")
    timer = ask("POST", "/topics/openapi/x?delay=1000", content=b"x").json()["timer"]
    ask("POST", "/topics/openapi/%23", content=b"x")
    ask("DELETE", f"/timers/{timer}")
    ask("DELETE", "/timers/none")
    ask("GET", "/topics?prefix=openapi")
    ask("GET", "/topics/openapi/x")
    ask("GET", "/topics/openapi/x", headers={"accept": "application/cloudevents+json"})
    ask("GET", "/topics/openapi/%23?limit=1")
    ask("GET", "/topics/openapi/none")
    ask("GET", "/messages?id=openapi")
    ask("GET", "/messages")
    ask("GET", "/subscribe")
    ask("PUT", "/kv/openapi/a", content=b"1")
    ask("PUT", "/kv/openapi/a", content=b"2")
    ask("PUT", "/kv/openapi/a", content=b"2", headers={"if-match": '"1"'})
    ask("GET", "/kv/openapi/a")
    ask("GET", "/kv?prefix=openapi/")
    ask("GET", "/kv?prefix=openapi/&count")
    ask("POST", "/kv", json={"operations": [{"put": "openapi/b", "value": "x"}]})
    ask("POST", "/kv", json={"operations": 1})
    ask("DELETE", "/kv/openapi/a")
    ask("DELETE", "/kv/openapi/a")
    held = ask("POST", "/kv-holds").json()["revision"]
    ask("DELETE", f"/kv-holds?revision={held}")
    member = ask("POST", "/groups/openapi/members", json={"topic": "openapi"}).json()["member"]
    of = f"/groups/openapi/members/{member}"
    after = ask("GET", f"{of}/messages?max=2").json()["after"]
    ask("GET", f"{of}/messages?max=2", headers={"accept": "application/cloudevents-batch+json"})
    ask("POST", f"{of}/commit", json={"after": after})
    ask("PUT", of)
    ask("GET", "/groups")
    ask("GET", "/groups/openapi")
    ask("DELETE", "/groups/openapi")
    ask("POST", "/groups/openapi/reset", json={"to": "earliest"})
    ask("DELETE", of)
    ask("DELETE", "/groups/openapi")
    leasing = {"topic": "openapi", "attempts": 3, "dead_letter": "dead/openapi"}
    ask("PUT", "/groups/leasing", json=leasing)
    ask("PUT", "/groups/leasing", json=leasing)
    ask("PUT", "/groups/leasing", json={"topic": "openapi"})
    received = ask("POST", "/groups/leasing/receive", json={"max": 1}).json()["messages"]
    ask("POST", "/groups/leasing/receive", headers={"accept": "application/cloudevents-batch+json"})
    handles = {"handles": [received[0]["handle"]]}
    for what in ("extend", "nack", "ack"):
        ask("POST", f"/groups/leasing/{what}", json=handles)
        ask("POST", f"/groups/leasing/{what}", json={"handles": ["none"]})
        ask("POST", f"/groups/leasing/{what}", json={})
    ask("GET", "/groups/leasing")
    ask("POST", "/groups/leasing/reset", json={"to": "latest"})
    ask("DELETE", "/groups/leasing")
    made = ask("POST", "/subscriptions", json=SPEC).json()["id"]
    ask("POST", "/subscriptions", json={"sink": "https://127.0.0.1/", "protocol": "HTTP"})
    ask("GET", "/subscriptions")
    ask("GET", f"/subscriptions/{made}")
    ask("PUT", f"/subscriptions/{made}", json={**SPEC, "types": ["a"], "filters": [{"exact": {"type": "a"}}]})
    ask("POST", f"/subscriptions/{made}/pause")
    ask("POST", f"/subscriptions/{made}/resume")
    ask("DELETE", f"/subscriptions/{made}")
    ask("GET", f"/subscriptions/{made}")
    ask("GET", "/openapi.json")
    ask("GET", "/docs")


def test_answers_fit_the_document_and_every_operation_is_asked_for(
    client: httpx.Client, described: dict[str, Any]
) -> None:
    successes: set[str] = set()

    def ask(method: str, path: str, **given: Any) -> httpx.Response:
        answer = client.request(method, path, **given)
        name = fits(described, answer)
        if answer.is_success:
            successes.add(name)
        return answer

    requests(ask)
    with client.stream("GET", "/subscribe?filter=openapi/%23") as stream:
        assert stream.headers["content-type"] in described["paths"]["/subscribe"]["get"]["responses"]["200"]["content"]
        successes.add("GET /subscribe")
    assert successes == OPERATIONS.keys()


def test_the_document_refers_to_schemas_that_there_are_and_the_page_shows_all(
    client: httpx.Client, described: dict[str, Any]
) -> None:
    text = client.get("/openapi.json").text
    named = set(re.findall(r'"\$ref":"#/components/schemas/([A-Za-z]+)"', text))
    assert named <= described["components"]["schemas"].keys()
    ids = [one["operationId"] for methods in described["paths"].values() for one in methods.values()]
    assert len(set(ids)) == len(ids) == len(OPERATIONS)
    page = client.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    for name in OPERATIONS:
        assert f"<code>{name}</code>" in page.text
    assert "<script" not in page.text
