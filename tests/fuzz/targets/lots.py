"""The loops of fuzz targets: inputs in lots of 10,000, each lot from its own seed, and findings that are made again."""

import argparse
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeAlias

LOT = 10_000

# Fuzzes with so many inputs, and counts in a tally what became of them. Raises `Found`.
Target: TypeAlias = Callable[[Random, int, dict[str, int]], None]


class Found(Exception):
    """An input that does what none may, and how to make it again."""


def hurt(data: bytes, random: Random, *, telling: bytes) -> bytes:
    """Returns the bytes, hurt: bits, bytes that mean something, more, less, something twice."""
    found = bytearray(data)
    for _ in range(1 + random.getrandbits(1)):
        chance = random.getrandbits(48)
        how, at, what = chance & 7, (chance >> 3 & 0xFFFF) % (len(found) + 1), chance >> 24
        if how <= 1 and found:
            found[at - 1] ^= 1 << (what & 7)
        elif how <= 3 and found:
            found[at - 1] = telling[what % len(telling)]
        elif how == 4:
            found[at:at] = what.to_bytes(3, "big")[: 1 + what % 3]
        elif how == 5:
            del found[at : at + 1 + what % 6]
        elif how == 6:
            found[at:at] = found[at : at + 1 + (what & 15)]
        else:
            found[at : at + 2] = (what & 0xFFFF).to_bytes(2, "big")
    return bytes(found)


def count(tally: dict[str, int], **counts: int) -> None:
    """Adds to what became of inputs; `_` in a name is a space."""
    for name, number in counts.items():
        word = name.replace("_", " ")
        tally[word] = tally.get(word, 0) + number


def hex_of(data: bytes) -> str:
    """Returns the bytes as a finding shows them."""
    return data.hex(" ")


def drawn(shapes: Sequence[bytes], hurt: Callable[[bytes, Random], bytes]) -> Callable[[Random], bytes]:
    """Returns what makes inputs: one of some shapes each, hurt."""
    return lambda random: hurt(shapes[random.getrandbits(16) % len(shapes)], random)


def single_inputs(
    draw: Callable[[Random], Any],
    read: Callable[[Any], str],
    *,
    refusals: type[Exception] | tuple[type[Exception], ...],
    shown: Callable[[Any], str] = hex_of,
) -> Target:
    """Returns the target of a decoder, which takes each input by itself.

    `draw` makes an input; `read` decodes and checks it, and returns the word that it counts as. One of `refusals`
    counts as "refused"; any other exception is a finding, in which `shown` says the input.
    """

    def target(random: Random, inputs: int, tally: dict[str, int]) -> None:
        counts: dict[str, int] = {}
        given: Any = b""
        try:
            for _ in range(inputs):
                given = draw(random)
                try:
                    word = read(given)
                except refusals:
                    word = "refused"
                counts[word] = counts.get(word, 0) + 1
        except Exception as error:
            raise Found(shown(given)) from error
        count(tally, **counts)

    return target


def run(
    targets: Mapping[str, Target],
    target: str,
    seed: int,
    inputs: int,
    *,
    lot: int = 0,
    tell: Callable[[str], None] = print,
) -> int:
    """Fuzzes one target with so many inputs; returns how many lots had a finding. Tells each, and how to repeat it."""
    findings, tally, began = 0, dict[str, int](), time.monotonic()
    for number in range(lot, lot + -(-inputs // LOT)):
        try:
            targets[target](Random(f"{target} {seed} {number}"), min(LOT, inputs), tally)
        except Found as found:
            findings += 1
            tell(f"{target}: --seed {seed} --lot {number}: {found}")
            tell("".join(traceback.format_exception(found)))
    took_s = time.monotonic() - began
    tell(
        f"{target}: {inputs} inputs of seed {seed}, {findings} findings, {took_s:.0f} s, "
        f"{inputs / max(took_s, 1e-9):.0f} a second; " + ", ".join(f"{count} {word}" for word, count in tally.items())
    )
    return findings


def main(targets: Mapping[str, Target], description: str | None, words: Sequence[str]) -> int:
    """Runs what a command line asks for; returns the exit status, 1 when something was found."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lot", type=int, default=0, help="the first one")
    parser.add_argument("--target", choices=targets, action="append", help="all by default")
    given = parser.parse_args(words)
    findings = [run(targets, target, given.seed, given.inputs, lot=given.lot) for target in given.target or targets]
    return int(any(findings))
