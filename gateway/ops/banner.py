"""The output of `headgate serve` when it is ready: a short table on a terminal, log lines otherwise."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from gateway.ops.status import Listening
from store.base import logs

log = logs.get(__name__)


def announce(listening: Sequence[Listening], *, data_dir: str, console: Console | None = None) -> None:
    """Prints the listeners and their addresses."""
    console = Console(stderr=True) if console is None else console
    if not console.is_terminal:
        for one in listening:
            log.info("listening", **{name: getattr(one, name) for name in one.__struct_fields__ if name != "summary"})
        return
    table = Table(title="Headgate is ready", title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in ("listener", "address", "", "speaks"):
        table.add_column(heading)
    for one in listening:
        host = f"[{one.host}]" if ":" in one.host else one.host
        kind = f"{one.transport} + {'DTLS' if one.transport == 'udp' else 'TLS'}" if one.secure else one.transport
        table.add_row(one.name, f"{host}:{one.port}".replace("[", r"\["), kind, one.summary)
    console.print(table)
    console.print(f"data in {data_dir}; stop with Ctrl-C", style="dim", highlight=False)
