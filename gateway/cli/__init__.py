"""The command line: one file for each group of commands, `commands` for those without a group.

Modules that only some commands need are imported when these run.

Imported by: none.
Imports: gateway.*, controller.api, controller.incarnations, spark.*, store.api, store.base, store.cluster,
store.engine, store.format.
"""


def main() -> None:
    """Runs the console script."""
    from gateway.cli.commands import main as run  # noqa: PLC0415 - a room loads none of its files

    run()
