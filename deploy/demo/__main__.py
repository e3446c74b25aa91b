"""`python -m deploy.demo`: the main job of `make run`."""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from deploy.demo.plan import FLEETS, Target
from deploy.demo.show import Options, Show, ShowFailed

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def main(argv: list[str] | None = None) -> int:
    """Runs the demonstration; 0 when everything balances, 1 when not, 2 when it could not run."""
    args = _parser().parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 120)
    temporary = args.data_dir is None and args.seconds is not None
    root = Path(tempfile.mkdtemp(prefix="headgate-demo-")) if temporary else args.data_dir or Path("headgate-data/demo")
    try:
        code = asyncio.run(_run(args, root, console))
    except ShowFailed as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except asyncio.CancelledError:
        return 130
    if temporary and code == 0:
        shutil.rmtree(root, ignore_errors=True)
    elif temporary:
        print(f"data and logs are kept in {root}", file=sys.stderr)
    return code


async def _run(args: argparse.Namespace, root: Path, console: Console) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    me = asyncio.current_task()
    assert me is not None

    def stop() -> None:
        """Ends it in order at the first signal; ends it now at the second, children included."""
        if stopped.is_set():
            me.cancel()
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    options = Options(
        root=root,
        target=Target(port_offset=args.port_offset),
        fleets=args.fleets,
        seconds=args.seconds,
        rate=args.rate,
        spark=not args.no_spark,
    )
    return await Show(options, console, stopped).run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make run", description=__doc__)
    parser.add_argument("--for", dest="seconds", type=_seconds, help="end by itself, such as 60s or 5m, with a balance")
    parser.add_argument("--data-dir", type=Path, help="default ./headgate-data/demo; with --for a temporary one")
    parser.add_argument("--port-offset", type=int, default=0, help="added to every port")
    parser.add_argument("--rate", type=float, default=1.0, help="times the fleets' usual rates")
    parser.add_argument("--fleets", type=_fleets, default=FLEETS, help=f"some of {','.join(FLEETS)}")
    parser.add_argument("--no-spark", action="store_true", help="leave Spark out")
    return parser


def _seconds(text: str) -> float:
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 60s, 5m or 1h")
    return seconds


def _fleets(text: str) -> tuple[str, ...]:
    names = tuple(name for name in FLEETS if name in text.split(","))
    if not names or set(text.split(",")) - set(FLEETS):
        raise argparse.ArgumentTypeError(f"{text!r}: write some of {','.join(FLEETS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
