"""Measures the cost of finding the filters that an address matches, among few and among very many. Prints JSON.

A quarter each of the filters has no wildcard, a `+` at the end, a `#`, and a `+` in the middle; every address is looked
for as if for the first time, which a gateway does once while it remembers addresses. The time is the processor's.

python -m tests.bench.gateway.filters [--filters 1000,10000,100000] [--rounds 5]
"""

import argparse
import json
import random
import statistics
import sys
import time

from gateway.domain.filters import FilterTrie

KINDS = ("site/{0}/dev{1}/temp", "site/{0}/dev{1}/+", "site/{0}/dev{1}/#", "site/+/dev{1}/temp")
MATCHES = 20_000


def measure(count: int, rounds: int) -> dict[str, float]:
    """Returns the microseconds that a match takes, and that adding a filter takes."""
    chance = random.Random(1)
    patterns = [KINDS[n % len(KINDS)].format(chance.randrange(100), n) for n in range(count)]
    addresses = [f"site/{chance.randrange(100)}/dev{chance.randrange(count)}/temp" for _ in range(MATCHES)]
    trie: FilterTrie[int] = FilterTrie()
    began = time.process_time()
    for number, pattern in enumerate(patterns):
        trie.add(pattern, number)
    added = time.process_time() - began
    spans = []
    for _ in range(rounds):
        began = time.process_time()
        for address in addresses:
            trie.match(address)
        spans.append(time.process_time() - began)
    return {
        "filters": count,
        "match_us": round(statistics.median(spans) / MATCHES * 1e6, 2),
        "add_us": round(added / count * 1e6, 2),
    }


def main() -> None:
    """Measures each number of filters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filters", default="1000,10000,100000")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found = [measure(int(count), options.rounds) for count in options.filters.split(",")]
    json.dump(found, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
