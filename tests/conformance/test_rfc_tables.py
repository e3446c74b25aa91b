"""The tables of normative statements of RFCs and of CloudEvents are whole, and the tests that they name exist.

Statements of other formats of CloudEvents are beside their tests.
"""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parent
ADAPTERS = TESTS / "unit" / "adapters"
COAP, HTTP, EVENTS = ADAPTERS / "coap", ADAPTERS / "http" / "wire", ADAPTERS / "cloudevents"
FILES = {
    **{
        name: COAP / f"test_coap_{name}.py"
        for name in (
            *("blocks", "conditions", "echo", "endpoint", "mapping", "observe", "options", "oscore"),
            *("reads", "repeats", "resources", "secured", "separate", "stream", "websocket", "wire"),
        )
    },
    "pubsub": COAP / "topics" / "test_coap_pubsub.py",
    "nstart": COAP / "test_coap_observe_nstart.py",
    "property": TESTS / "property" / "adapters" / "test_coap_observe_loss.py",
    "sim": TESTS / "sim" / "coap" / "test_coap_sim.py",
    "coap_clients": TESTS / "interop" / "test_coap_clients.py",
    "wildcard": TESTS / "unit" / "gateway" / "runtime" / "test_wildcard_socket.py",
    "coap_streams": TESTS / "interop" / "coap" / "test_coap_streams.py",
    "dtls": TESTS / "interop" / "test_coap_dtls_clients.py",
    "h2": HTTP / "test_http_h2.py",
    "errors": HTTP / "test_http_h2_errors.py",
    "frames": HTTP / "test_http_h2_frames.py",
    "clients": TESTS / "interop" / "http" / "test_http_clients.py",
    **{name: EVENTS / f"test_cloudevents_{name}.py" for name in ("binary", "bindings", "structured", "timestamps")},
    "event_headers": ADAPTERS / "http" / "handlers" / "test_http_event_headers.py",
    "routes": ADAPTERS / "http" / "handlers" / "test_http_routes.py",
    "http_messages": ADAPTERS / "http" / "handlers" / "test_http_messages.py",
    "mqtt": ADAPTERS / "mqtt" / "session" / "test_mqtt_publish.py",
    "mqtt_subscribe": ADAPTERS / "mqtt" / "session" / "test_mqtt_subscribe.py",
    "amqp": ADAPTERS / "amqp" / "test_amqp_events.py",
    "amqp_properties": ADAPTERS / "amqp" / "test_amqp_properties.py",
    "amqp_structured": ADAPTERS / "amqp" / "test_amqp_structured.py",
}
STATEMENTS = {  # the files `statements`
    "rfc7252": COAP / "test_coap_statements.py",
    "rfc7641": COAP / "test_coap_statements.py",
    "rfc7959": COAP / "test_coap_statements.py",
    "rfc8323": COAP / "test_coap_statements.py",
    "rfc9113": HTTP / "test_http2_statements.py",
    "cloudevents": EVENTS / "test_cloudevents_statements.py",
}
REASONS = {
    "author": "binds specifications, or those who write them",
    "cache": "binds caches; the gateway is none",
    "client": "binds clients",
    "icmp": "ICMP errors do not reach the socket, which is not connected",
    "multicast": "multicast groups are not joined",
    "operator": "binds those who configure or deploy",
    "permission": "permits, and demands nothing",
    "proxy": "binds proxies; the gateway is none",
    "push": "binds who pushes; the gateway does not",
    "rawkeys": "raw public keys are not offered",
    "tls": "OpenSSL does it, with the defaults of Python's ssl",
}


def table(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((HERE / f"{name}.toml").read_text("utf-8"))


@cache
def functions(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^(?:async )?def test_(\w+)\(", path.read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_is_there_once(name: str) -> None:
    found = table(name)
    counted = [f"{section}-{n}" for section, count in found["counts"].items() for n in range(1, count + 1)]
    excused = [one for names in found["excused"].values() for one in names.split()]
    assert sorted([*excused, *found.get("reasons", ()), *found["statements"]]) == sorted(counted)
    assert found["excused"].keys() <= REASONS.keys()


@pytest.mark.parametrize(
    ("name", "statement"), [(name, statement) for name in STATEMENTS for statement in table(name)["statements"]]
)
def test_each_statement_has_its_tests(name: str, statement: str) -> None:
    said, *tests = table(name)["statements"][statement]
    assert said.endswith(".")
    assert tests
    for test in tests:
        where, function = test.split(": ")
        path = STATEMENTS[name] if where == "statements" else FILES[where]
        assert function in functions(path), test


def test_a_table_leaves_out_no_section() -> None:
    counts = {name: sum(table(name)["counts"].values()) for name in STATEMENTS}
    assert counts == {"rfc7252": 219, "rfc7641": 57, "rfc7959": 44, "rfc8323": 48, "rfc9113": 281, "cloudevents": 165}
