"""`headgate amqp` prints names that hold what a terminal, a table or the next program would obey."""

import sys

import msgspec
import typer
from typer.testing import CliRunner

from gateway.cli.protocols import amqp_listing
from gateway.ops.amqp_report import QueueReport

NAMES = ["[/red]per%cent[bold]", "a\tb\nc", "\x1b[2J", "é"]
SHOWN = ["[/red]per%cent[bold]", r"a\tb\nc", r"\x1b[2J", "é"]


def printed(*options):
    app = typer.Typer()
    found = [QueueReport(vhost="/", name=name, messages=1, consumers=0) for name in NAMES]
    amqp_listing.add_listing(
        app, "queues", "", lambda _amqp, _vhost: found, columns=("queue", "messages"), row=lambda q: (q.name, "1")
    )
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def test_a_name_of_any_characters_is_one_column_of_one_line():
    assert printed() == [f"{name}\t1" for name in SHOWN]
    assert [msgspec.json.decode(line)["name"] for line in printed("--json")] == NAMES


def test_a_table_shows_names_as_they_are(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    row = [QueueReport(vhost="/", name=name, messages=1, consumers=0) for name in NAMES]
    amqp_listing.show(row, ("queue",), lambda one: (one.name,), as_json=False)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()[1:]] == SHOWN
