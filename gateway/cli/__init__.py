"""The command line: one file for each group of commands, `commands` for those without a group.

Nothing imports this room. What only some commands need is imported when they run.
"""


def main() -> None:
    """The console script."""
    from gateway.cli.commands import main as run  # noqa: PLC0415 - a room loads none of its files

    run()
