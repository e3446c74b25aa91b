"""Measures Headgate beside its peers, on this machine, in one run: `python -m tests.bench`.

python -m tests.bench                                    every figure that is possible here
python -m tests.bench mqtt-publish --rounds 5            one of them
python -m tests.bench mqtt-publish --topics 1250 --servers headgate,nats
python -m tests.bench mqtt-publish --also 'mine=my-broker --port {port}'
python -m tests.bench list                               what there is
python -m tests.bench store append queues                the store's own figures, or some of them
python -m tests.bench cluster failover                   a cluster's figures, or some of them
python -m tests.bench profile                            what a message costs at each step inside
python -m tests.bench codecs --help                      a program of its own: codecs, filters, sinks, telemetry ...
python -m tests.bench report                             the kept figures into docs/performance.md
"""

import argparse
import importlib
import resource
import runpy
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
from rich.console import Console

from tests.bench import machine, report
from tests.bench.catalogue import SERVERS, other
from tests.bench.figures import FIGURES, Figure
from tests.bench.load.base import Load
from tests.bench.options import made_directory
from tests.bench.result import RESULTS, save, table
from tests.bench.runner import Plan, measure
from tests.bench.store import front

ADDRESS = {"host", "port", "pid", "count"}  # fields of a load that are no options of its own
# Programs with options of their own, which print JSON and keep nothing.
PROGRAMS = {
    "backlog": "tests.bench.spark.spark_backlog",
    "codecs": "tests.bench.codecs.__main__",
    "declares": "tests.bench.gateway.declares",
    "decoding": "tests.bench.spark.spark_decode",
    "end-to-end": "tests.bench.spark.spark_end_to_end",
    "filters": "tests.bench.gateway.filters",
    "leases": "tests.bench.gateway.leases",
    "slow-sync": "tests.bench.gateway.slow_sync",
    "sinks": "tests.bench.gateway.push_sinks",
    "subscribers": "tests.bench.gateway.subscribers",
    "telemetry": "tests.bench.spark.spark_telemetry",
    "workers": "tests.bench.spark.spark_workers",
}


def main(words: Sequence[str]) -> int:
    """Runs what the words ask for, and returns the exit status: 1 when a run of Headgate's failed, 2 for wrong
    usage.
    """
    if words and words[0] in PROGRAMS:
        sys.argv[1:] = words[1:]
        runpy.run_module(PROGRAMS[words[0]], run_name="__main__", alter_sys=True)
        return 0
    arguments = _parser().parse_args(words)
    return arguments.work(arguments)


def _end(number: int, _frame: object) -> None:
    """Ends the program on SIGTERM, and with it all that it started."""
    sys.exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _common(parser)
    parser.set_defaults(work=_measure_all, figure=None)
    commands = parser.add_subparsers(metavar="FIGURE")
    for figure in FIGURES.values():
        one = commands.add_parser(figure.name, help=figure.title, description=type(figure.load).__doc__)
        _common(one)
        _options(one, figure.load)
        one.set_defaults(work=_measure_one, figure=figure)
    front.add_options(commands.add_parser("store", help="the store's own figures"), "store")
    front.add_options(commands.add_parser("cluster", help="a cluster's figures"), "cluster")
    commands.add_parser("list", help="what there is").set_defaults(work=_list)
    commands.add_parser("profile", help="what a message costs inside").set_defaults(work=_profile)
    commands.add_parser("report", help="the kept figures into docs/performance.md").set_defaults(work=_report)
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="every server once in each; default 3")
    parser.add_argument("--seconds", type=float, default=2.0, help="a run takes about so long; default 2")
    parser.add_argument("--servers", help="only these, comma-separated")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the figures are kept")
    parser.add_argument(
        "--dir", type=made_directory, help="where the servers' data lies while they run; decides the disk"
    )


def _options(parser: argparse.ArgumentParser, load: Load) -> None:
    """Adds an option for each field of a load, and the few that a single figure takes."""
    parser.add_argument("--count", type=int, help="of messages or requests in a run, instead of --seconds")
    parser.add_argument(
        "--also", action="append", default=[], help="one more server: 'NAME=COMMAND with {port} {data}'"
    )
    for field in msgspec.structs.fields(load):
        if field.name not in ADDRESS:
            kind, text = _kind(field.type)
            default = getattr(load, field.name)
            parser.add_argument(
                f"--{field.name.replace('_', '-')}", type=kind, default=default, help=f"{text}default {default}"
            )


def _kind(annotation: Any) -> tuple[type, str]:
    """Returns a field's plain type, and the description in its annotation."""
    text = ""
    if hasattr(annotation, "__metadata__"):
        text = "".join(f"{meta.description}; " for meta in annotation.__metadata__ if meta.description)
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is not None:  # a Literal
        annotation = type(get_args(annotation)[0])
    return annotation, text


def _measure_one(arguments: argparse.Namespace) -> int:
    figure: Figure = arguments.figure
    own = {field.name for field in msgspec.structs.fields(figure.load)} - ADDRESS
    changed = msgspec.to_builtins(figure.load) | {name: getattr(arguments, name) for name in own}
    try:
        load = msgspec.convert(changed, type(figure.load))
        others = [other(definition, figure.protocol) for definition in arguments.also]
    except ValueError as error:
        print(f"python -m tests.bench {figure.name}: {error}", file=sys.stderr)
        return 2
    return _measure(arguments, [replace(figure, load=load)], others)


def _measure_all(arguments: argparse.Namespace) -> int:
    return _measure(arguments, list(FIGURES.values()), [])


def _measure(arguments: argparse.Namespace, figures: Sequence[Figure], others: Sequence[Any]) -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the servers inherit it
    wanted = arguments.servers.split(",") if arguments.servers else SERVERS
    unknown = set(wanted) - set(SERVERS)
    if unknown:
        print(
            f"python -m tests.bench: no server {', '.join(sorted(unknown))}; known: {', '.join(SERVERS)}",
            file=sys.stderr,
        )
        return 2
    plan = Plan(
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        count=getattr(arguments, "count", None),
        directory=arguments.dir,
    )
    console, status = Console(), 0
    if machine.busy():
        console.print("others are using this machine: these figures are not worth keeping", style="yellow")
    for figure in figures:
        specs = [SERVERS[name] for name in figure.servers if name in wanted]
        with console.status(figure.title) as shown:
            result = measure(
                figure, [*specs, *others], plan, lambda text, title=figure.title: shown.update(f"{title}: {text}")
            )
        console.print(table(result))
        console.print(f"kept in {save(result, arguments.results)}\n", style="dim", highlight=False)
        ours = result.servers.get("headgate")
        status |= ours is not None and bool(ours.errors)
    return int(status)


def _list(_: argparse.Namespace) -> int:
    for figure in FIGURES.values():
        print(f"{figure.name:22} {figure.title}: {', '.join(figure.servers)}")
    for name, module in PROGRAMS.items():
        print(f"{name:22} {_first_line(module)}")
    for spec in SERVERS.values():
        why = spec.missing()
        print(f"{spec.name:22} {f'missing: {why}' if why else spec.version()}")
    return 0


def _first_line(module: str) -> str:
    return (importlib.import_module(module).__doc__ or "").partition("\n")[0]


def _profile(_: argparse.Namespace) -> int:
    from tests.bench.gateway import mqtt_path

    return mqtt_path.main()


def _report(_: argparse.Namespace) -> int:
    return report.main()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main(sys.argv[1:]))
