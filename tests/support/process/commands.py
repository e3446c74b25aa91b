"""Commands of `headgate`, run in the process of a test."""

from typer.testing import CliRunner

from gateway.cli.commands import app


def headgate(*arguments: str) -> str:
    """Runs a command, which has to succeed; returns what it prints."""
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output
