"""The output of `headgate store` about a data directory."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from store.api.message import Message
from store.api.message import decode as decode_message
from store.engine.repair import Stats, VerifiedLog, ViewsVerified
from store.format.frame import FIRST_QUEUE, Frame
from store.format.records import PARTS_QUEUE
from store.format.records import decode as decode_record

DAMAGES_SHOWN = 20
BODY_BYTES_SHOWN = 200


def print_unlocked(data_dir: Path, why: str | None) -> None:
    """Says on standard error of a directory that could not be locked that a store may be running on it."""
    if why is not None:
        typer.echo(f"headgate: {data_dir} is read without its lock ({why}); make sure that no store runs", err=True)


def verified_document(found: VerifiedLog, compared: ViewsVerified | None) -> dict[str, Any]:
    """Returns the `--json` document of a verified directory."""
    document: dict[str, Any] = {
        "sound": found.is_sound and (compared is None or compared.is_sound),
        "frames": found.frames,
        "records": found.records,
        "sound_bytes": found.sound_bytes,
        "damages": [damage._asdict() for damage in found.damages],
        "longer": list(found.longer),
        "torn": None if found.torn is None else found.torn._asdict(),
    }
    return document if compared is None else {**document, "views": compared._asdict()}


def print_verified(found: VerifiedLog, compared: ViewsVerified | None) -> None:
    """Prints the same for people."""
    typer.echo(f"{found.frames:,} frames with {found.records:,} records in {found.sound_bytes:,} bytes are sound")
    if found.torn is not None:
        size = found.torn.end - found.torn.start
        typer.echo(f"{size:,} bytes at the end are left by a crash; the next start cuts them off")
    for damage in found.damages[:DAMAGES_SHOWN]:
        size = damage.end - damage.start
        typer.echo(f"DAMAGED {damage.segment}: {size:,} bytes at log offset {damage.start}: {damage.why}")
    if len(found.damages) > DAMAGES_SHOWN:
        typer.echo(f"and {len(found.damages) - DAMAGES_SHOWN} more")
    for name in found.longer:
        typer.echo(f"LONGER {name}: the file goes on behind its seal; the next start cuts it")
    if compared is not None and compared.problem is not None:
        typer.echo(f"NOT COMPARED: {compared.problem}; headgate store rebuild-views makes them anew")
    elif compared is not None:
        typer.echo(f"{compared.same:,} entries of the views are as a rebuild makes them")
        for view, count in compared.different.items():
            typer.echo(f"DIFFERENT {view}: {count:,} entries; headgate store rebuild-views makes them anew")


def records(frame: Frame, queue: int | None) -> Iterator[dict[str, Any]]:
    """Yields the output line of each record of a frame."""
    for number, row in enumerate(frame.rows):
        if queue is not None and row["queue"] != queue:
            continue
        line: dict[str, Any] = {
            "position": f"{frame.start:x}.{number:x}",
            "offset": frame.start,
            "stored_at_ms": frame.header.stored_at_ms,
            "queue": int(row["queue"]),
            "flags": int(row["flags"]),
        }
        record = frame.record(number)
        if row["queue"] == PARTS_QUEUE:
            line |= {"kind": "BodyPart", "bytes": len(record)}
        elif row["queue"] < FIRST_QUEUE:
            own = decode_record(record)
            line["kind"] = type(own).__name__
            if own is not None:
                line["record"] = msgspec.to_builtins(own, builtin_types=(bytes,))
        else:
            line |= _message(record)
        yield line


def _message(record: bytes) -> dict[str, Any]:
    try:
        message = decode_message(record)
    except msgspec.MsgspecError:
        return {"kind": "unknown", "bytes": len(record)}
    said = {
        name: value
        for name in Message.__struct_fields__
        if (value := getattr(message, name)) not in (None, "", (), False) and name != "body"
    }
    return {"kind": "message", **said, "body": message.body, "bytes": len(record)}


def print_line(line: dict[str, Any], *, as_json: bool) -> None:
    """Prints one record."""
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        return
    shown = {
        name: value[:BODY_BYTES_SHOWN] if name == "body" else value
        for name, value in line.items()
        if name != "position"
    }
    text = " ".join(f"{name}={value!r}" for name, value in shown.items())
    sys.stdout.write(f"{line.get('position', 'DAMAGED')} {text}\n")


def print_stats(found: Stats) -> None:
    """Sizes, and a table of the views."""
    typer.echo(f"log: {found.log_bytes:,} bytes in {found.segments} segments, {found.first} to {found.end}")
    behind = found.end - found.dispatched
    typer.echo(
        f"views: {found.views_bytes:,} bytes, " + (f"{behind:,} bytes behind the log" if behind else "up to date")
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("view")
    table.add_column("entries", justify="right")
    table.add_column("bytes", justify="right")
    for view in found.views:
        table.add_row(view.name, f"{view.entries:,}", f"{view.size_bytes:,}")
    if found.views:
        Console().print(table)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows a bar on standard error where that is a terminal. Yields a function to call with the progress."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=max(total, 1))
        yield lambda done: bar.update(task, completed=done)
