"""`headgate cluster topics list`, `drop` and `delete`, which need the store groups beside the controllers."""

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer

from gateway.cli.cluster.controllers import ConfigOption, ControllersOption, ask, channel

REACH_S = 5.0  # for the home group's master to answer
T = TypeVar("T")


def register(app: typer.Typer) -> None:
    """Adds the commands."""

    @app.command("list")
    def list_queues(
        config: ConfigOption = None,
        controllers: ControllersOption = None,
        *,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    ) -> None:
        """Every queue: number, topic, group, state, records kept, and how many a consumer group has not read."""
        from gateway.operating import queues  # noqa: PLC0415 - here and below: imports of this command alone

        found = _with_store(config, controllers, queues.lines)
        if as_json:
            import msgspec  # noqa: PLC0415

            for line in found:
                typer.echo(json.dumps(msgspec.to_builtins(line)))
            return
        _show(found)

    @app.command("drop")
    def drop_queue(
        queue: Annotated[int, typer.Argument(min=16, help="The number of a topic's queue that is closed.")],
        config: ConfigOption = None,
        controllers: ControllersOption = None,
        *,
        force: Annotated[bool, typer.Option("--force", help="Also where a consumer has not read all of it.")] = False,
    ) -> None:
        """Forget a closed queue that everybody has read."""
        from gateway.operating import queues  # noqa: PLC0415

        if force:
            ask(config, controllers, lambda controller: queues.drop(controller, None, queue))
        else:
            _with_store(config, controllers, lambda controller, store: queues.drop(controller, store, queue))
        typer.echo(f"queue {queue} is dropped")

    @app.command("delete")
    def delete_topic(
        topic: Annotated[str, typer.Argument(help="The topic's name.")],
        config: ConfigOption = None,
        controllers: ControllersOption = None,
        *,
        force: Annotated[bool, typer.Option("--force", help="Also where a consumer has not read all of it.")] = False,
        yes: Annotated[bool, typer.Option("--yes", help="Do not ask before.")] = False,
    ) -> None:
        """Delete a topic that all consumers have read: its messages cannot be read any more."""
        from gateway.operating import queues  # noqa: PLC0415

        if not yes:
            typer.confirm(f"Delete {topic}? Its messages cannot be read any more.", abort=True)
        if force:
            ask(config, controllers, lambda controller: queues.delete(controller, None, topic))
        else:
            _with_store(config, controllers, lambda controller, store: queues.delete(controller, store, topic))
        typer.echo(f"topic {topic} is deleted")


def _with_store(config: Any, controllers: str | None, work: Callable[[Any, Any], Awaitable[T]]) -> T:
    """Does something with the controllers and all store groups. Raises `ControllerError`, `StoreError`."""
    from store.cluster.cluster import ClusterStore, connect_remote  # noqa: PLC0415

    async def asked(controller: Any) -> T:
        await controller.barrier()
        connect = connect_remote(controller, credentials=channel(config), budget_s=REACH_S)
        async with await ClusterStore.open(controller, connect) as store:
            return await work(controller, store)

    return ask(config, controllers, asked)


def _show(found: Any) -> None:
    rows = [
        (
            str(one.number),
            one.topic,
            str(one.group),
            one.state,
            "does not answer" if one.records is None else str(one.records),
            "" if one.records is None else str(one.unread),
        )
        for one in found
    ]
    if not sys.stdout.isatty():
        for row in rows:
            typer.echo("\t".join(row))
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("queue", "topic", "group", "state", "records", "unread"):
        table.add_column(column, justify="right" if column in {"queue", "group", "records", "unread"} else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table if rows else "no topics yet")
