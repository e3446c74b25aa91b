"""Filters in SQL92: `gateway.domain.sql92` beside sqlglot, lark and the standard library's sqlite3.

sqlglot and lark give a syntax tree; lark's grammar stands below, so what lark takes shows how much a grammar alone
refuses. Messages would then be asked by closures of our own, or by sqlglot's executor with a plan that is kept. sqlite3
does both; that it has to know the names of properties beforehand is not counted.
"""

import importlib.util
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any

from gateway.domain.sql92 import compile_where
from store.api.message import Message
from tests.bench.codecs.subject import Subject, Work

PLAIN = "type = 'alarm'"
LONG = (
    "type = 'alarm' AND (qos >= 1 OR retain = TRUE) AND address LIKE 'telemetry/%/temp' "
    "AND size_bytes BETWEEN 10 AND 1000 AND device IN ('dev1', 'dev2', 'dev42') AND key IS NOT NULL"
)
MESSAGES = [
    Message(
        address=f"telemetry/site{n % 7}/temp",
        body=b"x" * 100,
        device=f"dev{n % 50}",
        type="alarm" if n % 2 else "reading",
        key=f"k{n}",
        qos=n % 3,
    )
    for n in range(100)
]
COLUMNS = ("address", "type", "key", "device", "qos", "retain", "time_ms")
REFUSED = {
    "a function": "length(address) > 3",
    "a function that takes memory": "randomblob(10000000) IS NULL",
    "a subquery": "qos = (SELECT 1)",
    "a query over a table of its own": "qos IN (WITH n(i) AS (SELECT 1) SELECT i FROM n)",
    "CASE": "CASE WHEN qos = 1 THEN TRUE END",
    "two comparisons": "1 = qos = 1",
    "a number beside a text": "qos = 'one'",
    "a text as a condition": "NOT type",
    "an order of conditions": "retain < TRUE",
    "a comment": "qos = 1 -- one",
    "another statement": "qos = 1; qos = 2",
    "a level more than 24": "(" * 25 + "qos = 1" + ")" * 25,
}
GRAMMAR = r"""
?start: either
?either: both ("OR"i both)*
?both: opposite ("AND"i opposite)*
?opposite: "NOT"i opposite -> not | test
?test: sum (COMPARE sum)? | sum negation? "BETWEEN"i sum "AND"i sum -> between
     | sum negation? "IN"i "(" sum ("," sum)* ")" -> in | sum negation? "LIKE"i TEXT ("ESCAPE"i TEXT)? -> like
     | sum "IS"i negation? "NULL"i -> null
negation: "NOT"i
?sum: product (/[+-]/ product)*
?product: sign (/[*\/]/ sign)*
?sign: /[+-]/ sign | NUMBER | TEXT | "TRUE"i -> true | "FALSE"i -> false | NAME | "(" either ")"
COMPARE: "=" | "<>" | "<=" | "<" | ">=" | ">"
NUMBER: /[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?/
TEXT: /'([^']|'')*'/
NAME: /[A-Za-z_$][A-Za-z0-9_$.]*/ | /"[^"]+"/
%ignore /[ \t\r\n]+/
"""


def installed(module: str) -> bool:
    """Returns whether a library is here that is no dependency."""
    return importlib.util.find_spec(module) is not None


def compilers() -> dict[str, Callable[[str], Any]]:
    """Returns what makes something of an expression's text, without a cache."""
    found: dict[str, Callable[[str], Any]] = {"ours": compile_where.__wrapped__}
    if installed("sqlglot"):
        import sqlglot

        found["sqlglot"] = partial(sqlglot.parse_one, dialect="postgres")
    if installed("lark"):
        from lark import Lark

        found["lark"] = Lark(GRAMMAR, parser="lalr").parse
    uncached = sqlite3.connect(":memory:", cached_statements=0)
    found["sqlite3"] = lambda text: _Sqlite(text, uncached)
    return found


class _Sqlite:
    """A statement that is asked of one message after the other."""

    def __init__(self, text: str, connection: sqlite3.Connection) -> None:
        names = ", ".join(f"? AS {name}" for name in (*COLUMNS, "size_bytes"))
        self._statement = f"SELECT ({text}\n) FROM (SELECT {names})"
        self._ask = connection.execute
        self.matches(MESSAGES[0])

    def matches(self, message: Message) -> bool:
        """Returns whether the expression is true of a message."""
        values = [getattr(message, name) for name in COLUMNS]
        return self._ask(self._statement, (*values, len(message.body))).fetchone()[0] == 1


def _sqlglot_picks(text: str) -> Callable[[], list[int]]:
    from sqlglot.executor import ensure_tables
    from sqlglot.executor.python import PythonExecutor
    from sqlglot.optimizer import optimize
    from sqlglot.planner import Plan

    kinds = dict.fromkeys(COLUMNS, "TEXT") | {
        "qos": "INT",
        "retain": "BOOLEAN",
        "size_bytes": "INT",
        "number": "INT",
    }
    plan = Plan(optimize(f"SELECT number FROM m WHERE {text}", {"m": kinds}, leave_tables_isolated=True))

    def picks() -> list[int]:
        rows = [
            {name: getattr(one, name) for name in COLUMNS} | {"size_bytes": len(one.body), "number": number}
            for number, one in enumerate(MESSAGES)
        ]
        found = PythonExecutor(tables=ensure_tables({"m": rows})).execute(plan)
        return [row[0] for row in found.rows]

    return picks


def subject() -> Subject:
    """Returns the comparison."""
    works, all_indexes = [], range(len(MESSAGES))
    for title, text in (("an expression of one comparison", PLAIN), ("an expression of 8 tests", LONG)):
        works.append(Work(f"compile {title}", 1, {name: partial(make, text) for name, make in compilers().items()}))
        where, statement = compile_where(text), _Sqlite(text, sqlite3.connect(":memory:"))
        contenders: dict[str, Callable[[], Any]] = {
            "ours": partial(where.picks, MESSAGES, all_indexes),
            "sqlite3": lambda statement=statement: [i for i in all_indexes if statement.matches(MESSAGES[i])],
        }
        if installed("sqlglot"):
            contenders["sqlglot"] = _sqlglot_picks(text)
        answers = {name: ask() for name, ask in contenders.items()}
        assert all(answer == answers["ours"] for answer in answers.values()), answers
        assert 0 < len(answers["ours"]) < len(MESSAGES)
        works.append(Work(f"ask {title} of a message, of 100", len(MESSAGES), contenders))
    imports = {"ours": "gateway.domain.sql92", "sqlite3": "sqlite3"}
    imports |= {name: name for name in ("sqlglot", "lark") if installed(name)}
    return Subject(works, compilers(), REFUSED, imports)
