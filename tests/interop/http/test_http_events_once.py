"""Events that are sent again, batches with faulty events, and compressed bodies, by httpx over real sockets."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.cloudevents import from_attributes, from_protobuf, to_protobuf, to_protobuf_batch
from adapters.http.wire.coding import CODINGS
from tests.support.http.avro_events import heard, written
from tests.support.http.codings import ENCODE
from tests.support.process.gateways import GatewayProcess

pytestmark = pytest.mark.slow

BATCH = {"content-type": "application/cloudevents-batch+json"}
CONFIG = """
[adapters.http]
event_window_s = 3600
webhook_origins = ["events.example.com"]
max_body_bytes = 100_000
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    directory: Path = tmp_path_factory.mktemp("once")
    file = directory / "once.toml"
    file.write_text(CONFIG)
    one = GatewayProcess(directory / "data", "--config", str(file)).start()
    yield one
    one.close()


def event(id_: str, source: str = "/s", subject: str = "once/x", data: Any = 1) -> dict[str, Any]:
    return {"specversion": "1.0", "id": id_, "source": source, "type": "t", "subject": subject, "data": data}


def headers(id_: str, source: str = "/s") -> dict[str, str]:
    return {"ce-specversion": "1.0", "ce-id": id_, "ce-source": source, "ce-type": "t", "ce-subject": "once/x"}


def stored(client: httpx.Client, id_: str) -> int:
    return len(client.get("/messages", params={"id": id_}).json())


def test_a_repeated_event_is_stored_once_in_every_mode(
    opened: Callable[[], httpx.Client], gateway: GatewayProcess, request: pytest.FixtureRequest
) -> None:
    client, name = opened(), request.node.name
    first = client.post("/events", headers=headers(name), content=b"1").json()
    assert "repeated" not in first
    again = client.post("/events", headers=headers(name), content=b"other").json()
    assert again == {**first, "repeated": True}
    structured = client.post("/events", json=event(name), headers={"content-type": "application/cloudevents+json"})
    assert structured.json() == again
    answers = client.post("/events", json=[event(f"{name}-new"), event(name), event(f"{name}-new")], headers=BATCH)
    assert answers.status_code == 200
    new, old, new_again = answers.json()
    assert old == again
    assert (new["id"], new_again) == (f"{name}-new", {**new, "repeated": True})
    topic = client.post("/topics/once/x", headers=headers(name), content=b"1")
    assert topic.json() == again
    assert client.post("/events", headers=headers(name, "/other"), content=b"1").json().get("repeated") is None
    gateway.kill()
    gateway.start()
    client = opened()
    assert client.post("/events", headers=headers(name), content=b"1").json() == again
    assert stored(client, name) == 2  # of two sources
    assert stored(client, f"{name}-new") == 1


def test_a_lenient_batch_answers_each_event(opened: Callable[[], httpx.Client], request: Any) -> None:
    client, name = opened(), request.node.name
    batch = [event(f"{name}-a"), {"specversion": "1.0", "id": "x"}, 7, event(f"{name}-b"), event(f"{name}-a")]
    strict = client.post("/events", json=batch, headers=BATCH)
    assert (strict.status_code, [one["index"] for one in strict.json()["errors"]]) == (400, [1, 2])
    assert stored(client, f"{name}-a") == 0
    prefer = {**BATCH, "prefer": "respond-async, handling=lenient"}
    answer = client.post("/events", json=batch, headers=prefer)
    assert (answer.status_code, answer.headers["preference-applied"]) == (207, "handling=lenient")
    found = answer.json()
    assert [one["status"] for one in found] == [200, 400, 400, 200, 200]
    assert [one["index"] for one in found] == list(range(5))
    assert found[1]["attribute"] == "source"
    assert (found[4]["position"], found[4]["repeated"]) == (found[0]["position"], True)
    assert stored(client, f"{name}-a") == stored(client, f"{name}-b") == 1
    assert client.post("/events", json=[], headers=prefer).json() == []
    assert client.post("/events", json=[event(f"{name}-c")], headers=prefer).status_code == 200
    assert client.post("/events", json=[1], headers=prefer).status_code == 207


@pytest.mark.parametrize("coding", ENCODE)
def test_events_in_json_may_be_compressed_up_to_a_limit(opened: Callable[[], httpx.Client], coding: str) -> None:
    client = opened()
    encode = ENCODE[coding]
    id_ = f"{coding}-{client.headers['user-agent']}-{id(client)}"
    said = {"content-type": "application/cloudevents+json", "content-encoding": coding}
    answer = client.post("/events", content=encode(json.dumps(event(id_, data="ü" * 100)).encode()), headers=said)
    assert answer.status_code == 200, answer.text
    (found,) = client.get("/messages", params={"id": id_}).json()
    assert found["data"] == "ü" * 100
    bomb = encode(b'{"x":"' + b" " * 50_000_000)
    assert client.post("/events", content=bomb, headers=said).status_code == 413
    assert client.post("/events", content=b"rubbish", headers=said).status_code == 400
    answer = client.post("/events", content=b"x", headers={**said, "content-encoding": "compress"})
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, CODINGS.decode())


def test_events_in_avro_come_and_go(opened: Callable[[], httpx.Client]) -> None:
    """Written and read by fastavro, with the specification's schema."""
    avro = {"content-type": "application/cloudevents+avro"}
    said = {"specversion": "1.0", "id": "avro-1", "source": "/s", "type": "t", "subject": "once/avro", "level": 3}
    with opened() as client:
        said["id"] += client.get("/topics").http_version  # each once
        assert client.post("/events", content=written(said, {"value": 21.5}), headers=avro).status_code == 200
        last = client.get("/topics/once/avro", headers={"accept": avro["content-type"]})
        assert last.headers["content-type"] == avro["content-type"]
        found = heard(last.content)
        assert {name: found["attribute"][name] for name in said} == said
        assert found["data"] == b'{"value":21.5}'
        assert client.get("/topics/once/avro").content == b'{"value":21.5}'
        refused = client.post("/events", content=b"\0", headers=avro)
        assert (refused.status_code, refused.headers["content-type"]) == (400, "application/problem+json")
        batch = client.post("/events", content=b"", headers={"content-type": "application/cloudevents-batch+avro"})
        assert batch.status_code == 415


def test_events_in_protobuf_come_and_go(opened: Callable[[], httpx.Client], request: pytest.FixtureRequest) -> None:
    client, name = opened(), request.node.name

    def wire(id_: str, **attributes: str) -> bytes:
        said = {"id": id_, "source": "/s", "specversion": "1.0", "type": "t", "subject": "once/pb", **attributes}
        message = from_attributes(said, b"\xff\x00", content_type=None, now_ms=0, protocol="http", device="")
        return to_protobuf(message)

    single = {"content-type": "application/cloudevents+protobuf"}
    assert client.post("/events", content=wire(f"{name}-1", colour="red"), headers=single).status_code == 200
    answer = client.get("/topics/once/pb", headers={"accept": "application/cloudevents+protobuf"})
    assert answer.headers["content-type"] == "application/cloudevents+protobuf"
    found = from_protobuf(answer.content, now_ms=0, protocol="http", device="")
    assert (found.id, found.body, found.properties) == (f"{name}-1", b"\xff\x00", (("colour", "red"),))
    both = {"content-type": "application/cloudevents-batch+protobuf"}
    messages = [from_protobuf(wire(f"{name}-{n}"), now_ms=0, protocol="http", device="") for n in (1, 2)]
    batch = client.post("/events", content=to_protobuf_batch(messages), headers=both)
    assert [one.get("repeated") for one in batch.json()] == [True, None]
    assert client.post("/events", content=b"\x0a\x05", headers=single).status_code == 400
    assert client.post("/topics/once/pb", content=b"", headers=both).status_code == 415


def test_lists_are_compressed_for_who_accepts_that(opened: Callable[[], httpx.Client]) -> None:
    client = opened()
    for number in range(60):
        client.post(f"/topics/compressed/{number:03}/{'x' * 20}", content=b"x")
    while True:  # addresses are listed soon after they are published to
        plain = client.get("/topics?prefix=compressed", headers={"accept-encoding": "identity"})
        if len(plain.json()) == 60:
            break
    assert "content-encoding" not in plain.headers
    answer = client.get("/topics?prefix=compressed", headers={"accept-encoding": "gzip"})
    assert (answer.headers["content-encoding"], answer.headers["vary"]) == ("gzip", "accept-encoding")
    assert answer.json() == plain.json()
    assert int(answer.headers["content-length"]) < len(plain.content) / 2


def test_senders_that_are_configured_get_consent(opened: Callable[[], httpx.Client]) -> None:
    client = opened()
    for path in ("/events", "/topics/a/b"):
        said = {"webhook-request-origin": "events.example.com", "webhook-request-rate": "120"}
        answer = client.options(path, headers=said)
        assert answer.headers["webhook-allowed-origin"] == "events.example.com"
        assert answer.headers["webhook-allowed-rate"] == "*"
        assert "POST" in answer.headers["allow"]
    for path, origin in (("/events", "evil.example.com"), ("/kv", "events.example.com")):
        answer = client.options(path, headers={"webhook-request-origin": origin})
        assert "webhook-allowed-origin" not in answer.headers
