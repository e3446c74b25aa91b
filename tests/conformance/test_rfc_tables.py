"""The tables of the normative statements of RFC 7252, 7959 and 9113 are whole, and the tests that they name exist.

Those of RFC 7641 and 8323, and of CloudEvents, are beside the tests of these adapters.
"""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parent
COAP, HTTP = TESTS / "unit" / "adapters" / "coap", TESTS / "unit" / "adapters" / "http" / "wire"
FILES = {
    **{
        name: COAP / f"test_coap_{name}.py"
        for name in (
            *("blocks", "conditions", "echo", "endpoint", "mapping", "observe", "options", "oscore", "reads"),
            *("resources", "secured", "separate", "wire"),
        )
    },
    "nstart": COAP / "test_coap_observe_nstart.py",
    "dtls": TESTS / "interop" / "test_coap_dtls_clients.py",
    "h2": HTTP / "test_http_h2.py",
    "errors": HTTP / "test_http_h2_errors.py",
    "frames": HTTP / "test_http_h2_frames.py",
    "clients": TESTS / "interop" / "http" / "test_http_clients.py",
}
STATEMENTS = {"7252": COAP, "7959": COAP, "9113": HTTP}  # where the file `statements` is
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


def table(rfc: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((HERE / f"rfc{rfc}.toml").read_text("utf-8"))


@cache
def functions(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^(?:async )?def test_(\w+)\(", path.read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize("rfc", STATEMENTS)
def test_every_statement_is_there_once(rfc: str) -> None:
    found = table(rfc)
    counted = [f"{section}-{n}" for section, count in found["counts"].items() for n in range(1, count + 1)]
    excused = [one for names in found["excused"].values() for one in names.split()]
    assert sorted([*excused, *found["reasons"], *found["statements"]]) == sorted(counted)
    assert found["excused"].keys() <= REASONS.keys()


@pytest.mark.parametrize(
    ("rfc", "statement"), [(rfc, statement) for rfc in STATEMENTS for statement in table(rfc)["statements"]]
)
def test_each_statement_has_its_tests(rfc: str, statement: str) -> None:
    said, *tests = table(rfc)["statements"][statement]
    assert said.endswith(".")
    assert tests
    prefix = "coap" if STATEMENTS[rfc] is COAP else "http2"
    for test in tests:
        where, name = test.split(": ")
        path = STATEMENTS[rfc] / f"test_{prefix}_statements.py" if where == "statements" else FILES[where]
        assert name in functions(path), test


def test_a_table_leaves_out_no_section() -> None:
    assert {rfc: sum(table(rfc)["counts"].values()) for rfc in STATEMENTS} == {"7252": 219, "7959": 44, "9113": 281}
