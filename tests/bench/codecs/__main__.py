"""Our own codecs beside libraries, on the same work: python -m tests.bench.codecs [SUBJECT ...] [--rounds 9]

Subjects: websocket, coap, cloudevents, sql92, configuration. The time is the processor's; contenders take
turns, and the medians of the rounds count. Imports are measured in processes of their own. sqlglot and lark are no
dependencies: `pip install sqlglot lark` into the environment brings them into the comparison.
"""

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.codecs.subject import Subject, Work

SUBJECTS = ("websocket", "coap", "cloudevents", "sql92", "configuration")
ROUND_S = 0.1  # of one contender in one round, about
IMPORT = """
import resource
def now():
    pages = int(open("/proc/self/statm").read().split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime * 1e3, pages * resource.getpagesize() / 2**20
before = now()
import {module}
print(*[late - early for early, late in zip(before, now())])
"""


def spent_s(run: Callable[[], Any], times: int) -> float:
    """Returns the seconds that some calls take."""
    began = time.process_time()
    for _ in range(times):
        run()
    return time.process_time() - began


def measure(work: Work, rounds: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Returns microseconds for one, by contender, a figure for each round, and how many calls a round has."""
    times: dict[str, int] = {}
    for name, run in work.contenders.items():
        run()  # the first call's own costs, such as a model that is built, are no part of the work
        calls = 1
        while (spent := spent_s(run, calls)) < ROUND_S / 4:
            calls *= 4
        times[name] = max(1, int(calls * ROUND_S / spent))
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        order = list(work.contenders)
        for name in order if number % 2 else reversed(order):
            spent = spent_s(work.contenders[name], times[name])
            found[name].append(spent / times[name] / work.count * 1e6)
    return found, times


def show(name: str, subject: Subject, rounds: int, console: Console) -> None:
    """Prints the tables of a subject."""
    table = Table("work", "by", "us", "lowest", "highest", "calls a round", title=name)
    for work in subject.works:
        spans, times = measure(work, rounds)
        for contender, found in spans.items():
            figures = (statistics.median(found), min(found), max(found))
            table.add_row(work.title, contender, *[f"{figure:.2f}" for figure in figures], str(times[contender]))
    console.print(table)
    if subject.imports:
        table = Table("import", "ms of a processor", "MiB more", title=f"{name}: imports")
        for contender, module in subject.imports.items():
            runs = [_import(module) for _ in range(rounds)]
            table.add_row(contender, *[f"{statistics.median(column):.1f}" for column in zip(*runs, strict=True)])
        console.print(table)
    for contender, say in subject.says.items():
        console.print(f"{contender} says:", style="bold")
        console.print(say(), highlight=False, markup=False)
    if subject.malformed:
        table = Table("malformed", *subject.readers, title=f"{name}: what is taken that is malformed")
        for title, given in subject.malformed.items():
            table.add_row(title, *["taken" if takes(read, given) else "refused" for read in subject.readers.values()])
        console.print(table)


def _import(module: str) -> tuple[float, float]:
    script = IMPORT.format(module=module)
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    spent_ms, more_mib = said.split()
    return float(spent_ms), float(more_mib)


def takes(read: Callable[[Any], Any], given: Any) -> bool:
    """Returns whether a reader reads an input without an exception."""
    try:
        read(given)
    except Exception:  # noqa: BLE001 - of whatever kind, it is a refusal
        return False
    return True


def main() -> None:
    """Measures the subjects that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(SUBJECTS))
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    if unknown := set(options.subjects) - set(SUBJECTS):
        parser.error(f"no subject {', '.join(sorted(unknown))}; there are {', '.join(SUBJECTS)}")
    console = Console(width=120)
    console.print(f"load {os.getloadavg()[0]:.1f}")
    for name in options.subjects or SUBJECTS:
        subject = importlib.import_module(f"tests.bench.codecs.{name}").subject()
        show(name, subject, options.rounds, console)


if __name__ == "__main__":
    main()
