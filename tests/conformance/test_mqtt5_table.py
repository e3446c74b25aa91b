"""The tables of MQTT's statements are whole, what they name exists, and the documentation counts them rightly."""

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from adapters.mqtt.messages.options import Options

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
PAGE = TESTS.parent / "docs" / "mqtt.md"

# How many statements each clause of the specification has. Their numbers have no gaps but these.
CLAUSES = {
    "1.5.4": 3, "1.5.5": 1, "1.5.7": 1, "2.1.3": 1, "2.2.1": 6, "2.2.2": 1, "3.1.0": 2, "3.1.2": 30, "3.1.3": 12,
    "3.1.4": 6, "3.2.0": 2, "3.2.2": 22, "3.3.1": 13, "3.3.2": 20, "3.3.4": 10, "3.4.2": 3, "3.5.2": 3, "3.6.1": 1,
    "3.6.2": 3, "3.7.2": 3, "3.8.1": 1, "3.8.3": 5, "3.8.4": 8, "3.9.2": 2, "3.9.3": 2, "3.10.1": 1, "3.10.3": 2,
    "3.10.4": 6, "3.11.2": 2, "3.11.3": 2, "3.12.4": 1, "3.14.0": 1, "3.14.1": 1, "3.14.2": 4, "3.14.4": 3, "3.15.1": 1,
    "3.15.2": 3, "4.1.0": 2, "4.2.0": 1, "4.3.1": 1, "4.3.2": 5, "4.3.3": 13, "4.4.0": 2, "4.5.0": 2, "4.6.0": 6,
    "4.7.0": 1, "4.7.1": 2, "4.7.2": 1, "4.7.3": 4, "4.8.2": 6, "4.9.0": 3, "4.12.0": 7, "4.12.1": 2, "4.13.1": 1,
    "4.13.2": 1, "6.0.0": 4,
}  # fmt: skip
NEVER_GIVEN = {"2.2.1-1"}
STATEMENTS = [
    name
    for clause, count in CLAUSES.items()
    for name in (f"{clause}-{number}" for number in range(1, count + 1))
    if name not in NEVER_GIVEN
]


def table(name: str) -> dict[str, dict[str, Any]]:
    """Returns a table by its statements; one that stands in it twice is no TOML."""
    return tomllib.loads((HERE / name).read_text("utf-8"))


OF_5, OF_3 = table("mqtt5.toml"), table("mqtt311.toml")


@cache
def module(stem: str) -> ast.Module:
    (path,) = [path for path in TESTS.rglob(f"{stem}.py") if "__pycache__" not in path.parts]
    return ast.parse(path.read_text("utf-8"))


def functions(stem: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    body = module(stem).body
    return {one.name: one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


def named(stem: str, pattern: str) -> dict[str, set[str]]:
    """Returns the statements that the docstrings of a module's tests name, by test."""
    return {
        f"{stem}::{name}": set(re.findall(pattern, ast.get_docstring(one) or ""))
        for name, one in functions(stem).items()
        if name.startswith("test_")
    }


def test_every_statement_is_there_in_order():
    assert list(OF_5) == STATEMENTS
    assert len(STATEMENTS) == 251


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_is_tested_or_excused(name):
    row = OF_5[name]
    assert row["binds"] in {"server", "client", "both"}
    assert row["says"].endswith(".")
    assert row.keys() in ({"binds", "says", "tests"}, {"binds", "says", "why"})
    assert row.get("tests") or row.get("why")


@pytest.mark.parametrize(("row", "name"), [(row, name) for row in (OF_5, OF_3) for name in row])
def test_the_tests_exist(row, name):
    for test in row[name].get("tests", ()):
        stem, _, rest = test.partition("::")
        function, _, parameters = rest.partition("[")
        found = functions(stem)[function]
        decorators = [ast.unparse(one) for one in found.decorator_list]
        assert not any("skip" in one or "xfail" in one for one in decorators)
        if parameters:
            assert any("parametrize" in one for one in decorators)
            assert parameters.rstrip("]").split("-")[0] in ast.unparse(found)


def test_only_what_binds_clients_or_is_not_offered_is_excused():
    for name, row in OF_5.items():
        if "why" in row and row["binds"] != "client":
            assert "offered" in row["why"], name


def test_a_test_says_what_it_is_for_and_the_table_says_the_same():
    said = {test: names for path in sorted(HERE.glob("test_mqtt5_*.py")) for test, names in _of_5(path.stem).items()}
    listed: dict[str, set[str]] = {test: set() for test in said}
    for name, row in OF_5.items():
        for test in row.get("tests", ()):
            if test in listed:
                listed[test].add(name)
    assert listed == said


def _of_5(stem: str) -> dict[str, set[str]]:
    found = named(stem, r"MQTT-(\d+\.\d+\.\d+-\d+)")
    return {test: names for test, names in found.items() if stem != "test_mqtt5_table"}


def test_the_same_for_3_1_1():
    said = named("test_mqtt311", r"MQTT-(\d+(?:\.\d+)+(?:-\d+)?)")
    listed: dict[str, set[str]] = {test: set() for test in said}
    for name, row in OF_3.items():
        assert row.keys() == {"says", "in_5_0", "tests"}
        for test in row["tests"]:
            listed[test].add(name)
    assert listed == said


def totals() -> str:
    """Returns the lines that the documentation has."""
    lines = ["| binds | statements | tested | excused |", "|---|---|---|---|"]
    counts = Counter((row["binds"], "tests" in row) for row in OF_5.values())
    for binds in ("server", "both", "client"):
        tested, excused = counts[binds, True], counts[binds, False]
        lines.append(f"| {binds} | {tested + excused} | {tested} | {excused} |")
    tested = sum("tests" in row for row in OF_5.values())
    lines.append(f"| all | {len(OF_5)} | {tested} | {len(OF_5) - tested} |")
    return "\n".join(lines)


def test_the_documentation_has_the_totals():
    page = PAGE.read_text("utf-8")
    assert totals() in page, f"docs/mqtt.md should say:\n{totals()}"
    assert f"{len(OF_3)} statements of 3.1.1" in page


def test_the_documentation_has_the_limits_as_they_are():
    found = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE.read_text("utf-8"), re.MULTILINE))
    assert len(found) >= 17
    assert found == {name: str(getattr(Options(), name)) for name in found}
