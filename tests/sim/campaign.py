"""A long run of joint histories that can be interrupted: `python -m tests.sim.campaign --first 1 --seeds 20000`.

The campaign saves its progress in a file, so a run that was stopped goes on behind the last block of seeds that was
finished. The file is the record of the run too: which seeds, of which commit, how many failed. One process for each
core takes blocks.
A run that goes on plays the seeds that have failed once more first: those that pass now move to `mended`, with why they
had failed and the commit that they pass at.
`--kind files` plays histories in which files of controllers and small files of replicas are damaged, too; a seed's
history of one kind has nothing to do with that of another one, and each kind has a record of its own.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORDS = {"joint": HERE / "results" / "joint.json", "files": HERE / "results" / "joint_files.json"}  # by kind
BLOCK_S_MAX = 1_800  # a block takes about 10 s; nobody waits for ever for a history without an end
UNFINISHED = "the block"
BLOCK = 50  # seeds a process plays before it ends, and that are played again when the run is interrupted


def play_block(first: int, count: int, kind: str) -> dict[str, str]:
    """Plays a block in another process, and returns the seeds that fail with their reasons."""
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tests.sim.campaign"),
                *("--block", str(first), "--seeds", str(count), "--kind", kind),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=BLOCK_S_MAX,
        )
    except subprocess.TimeoutExpired:
        return {str(first): f"{UNFINISHED} has not ended after {BLOCK_S_MAX} s: one of its histories has no end"}
    if done.returncode:
        return {str(first): f"{UNFINISHED} has ended its process with {done.returncode}: {done.stderr[-500:]}"}
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def say_block(first: int, count: int, kind: str) -> None:
    """Plays a block and prints which seeds have failed."""
    from tests.sim.joint.joint_history import play

    failed = {}
    for seed in range(first, first + count):
        try:
            play(seed, files=kind == "files")
        except Exception as error:  # noqa: BLE001 - all that fail are named
            failed[str(seed)] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps(failed))


def blocks(first: int, seeds: int, done: list[int]) -> Iterator[tuple[int, int]]:
    """Blocks that are not done, with their sizes."""
    finished = set(done)
    for start in range(first, first + seeds, BLOCK):
        if start not in finished:
            yield start, min(BLOCK, first + seeds - start)


def play_failed_again(record: dict[str, Any], processes: int, kind: str, now: str) -> None:
    """Plays the failed seeds of a record once more. A block that did not come to its end is to be played whole."""
    for seed in [seed for seed, why in record["failed"].items() if why.startswith(UNFINISHED)]:
        del record["failed"][seed]
        record["blocks"].remove(int(seed))
    with ThreadPoolExecutor(processes) as pool:
        playing = {seed: pool.submit(play_block, int(seed), 1, kind) for seed in record["failed"]}
        for seed, future in playing.items():
            if found := future.result():
                record["failed"].update(found)
            else:
                record["mended"][seed] = {"failed": record["failed"].pop(seed), "passes_at": now}


def commit() -> str:
    """Returns the commit that is tested, with a mark when the tree differs from it in more than records."""

    def git(*said: str) -> str:
        return subprocess.run(["git", *said], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!tests/sim/results")
    return git("describe", "--always", "--abbrev=12") + ("-dirty" if changed else "")


def keep(record: Path, run: dict[str, Any]) -> int:
    """Writes a record; how many seeds were played."""
    played = sum(min(BLOCK, run["first"] + run["seeds"] - at) for at in run["blocks"])
    record.with_suffix(".new").write_text(json.dumps({**run, "played": played}) + "\n")
    record.with_suffix(".new").rename(record)
    return played


def run(first: int, seeds: int, processes: int, record: Path, kind: str) -> int:
    """Plays what is left of a run; how many seeds have failed in all of it."""
    before: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}
    if (before.get("first"), before.get("seeds")) != (first, seeds):
        before = {"first": first, "seeds": seeds, "commits": [], "blocks": [], "failed": {}}
    before.setdefault("mended", {})
    now = commit()
    if now not in before["commits"]:
        before["commits"].append(now)
    record.parent.mkdir(exist_ok=True)
    play_failed_again(before, processes, kind, now)
    keep(record, before)
    with ThreadPoolExecutor(processes) as pool:
        playing = {
            pool.submit(play_block, start, count, kind): (start, count)
            for start, count in blocks(first, seeds, before["blocks"])
        }
        for future in as_completed(playing):
            start, _ = playing[future]
            before["failed"].update(future.result())
            before["blocks"] = sorted([*before["blocks"], start])
            print(f"{keep(record, before)} of {seeds}, {len(before['failed'])} failed", flush=True)
    return len(before["failed"])


def main() -> int:
    """Plays a run, or one block of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kind", choices=RECORDS, default="joint")
    parser.add_argument("--record", type=Path, help="by default that of the kind, in tests/sim/results")
    parser.add_argument("--block", type=int, help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.block is not None:
        say_block(said.block, said.seeds, said.kind)
        return 0
    record = said.record or RECORDS[said.kind]
    return 1 if run(said.first, said.seeds, said.processes, record, said.kind) else 0


if __name__ == "__main__":
    sys.exit(main())
