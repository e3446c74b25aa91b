"""Measures how many samples a second of a processor decodes, for each format of bodies. Prints JSON.

python -m tests.bench decoding [--messages 2000] [--rounds 9] [--seconds 0.2] [--formats json-flat,plain]

`decoded` is the work of the telemetry job's readers on messages that they have: bodies to names, values, units and
times, as columns (`spark.decode.samples.Decoder`). `as_column` also makes the Arrow column `samples` of them, from
records as the log has them, which is all that a reader does but fetch. `parsed` is a library that parses the same
bodies and leaves them there: msgspec for JSON, cbor2 for CBOR, none for Sparkplug and plain numbers. A message has five
metrics, a plain number one. The time is the processor's, of one thread; the median of the rounds counts, and `spread`
has the lowest and the highest of `decoded`. The order of formats changes from round to round.
"""

import argparse
import json
import os
import statistics
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

import cbor2
import msgspec

from spark.decode.samples import Decoder
from spark.decode.values import OK
from spark.source.columns import RecordColumns, schema_of
from store.api.message import Message
from store.api.queues import Fetched
from tests.bench.options import above_zero, at_least
from tests.support.spark.placed_frames import placed
from tests.support.store.fake_store import unplaced

METRICS: Final = ("temperature", "humidity", "pressure", "voltage", "current")
T_MS: Final = 1_700_000_000_000
DEVICES: Final = 100
QUEUE: Final = 16
DOUBLE: Final = 10  # Sparkplug's data type (6.4.16)


def value(n: int, metric: int) -> float:
    return round(((n * 7 + metric * 13) % 4_000) / 100 + 0.25, 2)  # as the two digits of a plain number say it


def flat(n: int) -> dict[str, float]:
    return {name: value(n, metric) for metric, name in enumerate(METRICS)}


def nested(n: int) -> dict[str, Any]:
    """Returns the same five numbers below two levels of names."""
    one = flat(n)
    air = {name: one[name] for name in METRICS[:3]}
    return {"air": air, "power": {"dc": {name: one[name] for name in METRICS[3:]}}}


def pack(n: int) -> list[dict[str, Any]]:
    """Returns a pack of SenML (RFC 8428) with a base name, a base time and a unit each."""
    records: list[dict[str, Any]] = [{"n": name, "u": "Cel", "v": number} for name, number in flat(n).items()]
    records[0] |= {"bn": f"urn:dev:{n % DEVICES}:", "bt": T_MS / 1_000}
    return records


LABELS: Final = {"bn": -2, "bt": -3, "n": 0, "u": 1, "v": 2}  # of SenML in CBOR (RFC 8428, table 4)


def senml_cbor(n: int) -> bytes:
    return cbor2.dumps([{LABELS[name]: one for name, one in record.items()} for record in pack(n)])


def varint(n: int) -> bytes:
    found = b""
    while n > 127:
        found += bytes([n & 127 | 128])
        n >>= 7
    return found + bytes([n])


def part(field: int, kind: int, content: bytes) -> bytes:
    return varint(field << 3 | kind) + (varint(len(content)) + content if kind == 2 else content)


def sparkplug(n: int) -> bytes:
    """Returns a DDATA payload whose metrics have their names, as one without a BIRTH has to."""
    metrics = b"".join(
        part(2, 2, part(1, 2, name.encode()) + part(4, 0, varint(DOUBLE)) + part(13, 1, struct.pack("<d", number)))
        for name, number in flat(n).items()
    )
    return part(1, 0, varint(T_MS)) + metrics + part(3, 0, varint(n % 256))


class Format(msgspec.Struct, frozen=True):
    """A format: a message's body and address, its content type, and what parses it alone."""

    body: Callable[[int], bytes]
    content_type: str | None = None
    address: str = "telemetry/site1/d{}"
    metrics: int = len(METRICS)
    parse: Callable[[bytes], Any] | None = None


FORMATS: Final[Mapping[str, Format]] = {
    "json-flat": Format(lambda n: msgspec.json.encode(flat(n)), "application/json", parse=msgspec.json.decode),
    "json-nested": Format(lambda n: msgspec.json.encode(nested(n)), "application/json", parse=msgspec.json.decode),
    "senml-json": Format(lambda n: msgspec.json.encode(pack(n)), "application/senml+json", parse=msgspec.json.decode),
    "senml-cbor": Format(senml_cbor, "application/senml+cbor", parse=cbor2.loads),
    "cbor": Format(lambda n: cbor2.dumps(flat(n)), "application/cbor", parse=cbor2.loads),
    "sparkplug": Format(sparkplug, address="spBv1.0/site1/DDATA/edge/d{}"),
    "plain": Format(lambda n: b"%.2f" % value(n, 0), "text/plain", "telemetry/site1/d{}/temperature", metrics=1),
}


def messages_of(one: Format, count: int) -> list[Message]:
    """Returns messages of some devices in turn."""
    return [
        Message(
            address=one.address.format(n % DEVICES),
            body=one.body(n),
            content_type=one.content_type,
            device=f"d{n % DEVICES}",
            time_ms=T_MS,
            protocol="mqtt",
        )
        for n in range(count)
    ]


def contenders(one: Format, messages: list[Message]) -> dict[str, Callable[[], Any]]:
    """Returns what is measured of a format, each made sure of once."""
    decoder, columns = Decoder(), RecordColumns(schema_of(("samples",)))
    rows = decoder.read(messages)
    assert rows.quality == [OK] * len(messages)
    assert len(rows.values) == one.metrics * len(messages)
    frame = placed(unplaced([(QUEUE, message) for message in messages]), 0)
    fetched = Fetched([frame], [list(range(len(messages)))], 0, len(messages))
    column = columns.batch(fetched, queue=QUEUE, topic="t").column(0)
    assert sum(len(samples) for samples in column.to_pylist()) == len(rows.values)
    found: dict[str, Callable[[], Any]] = {
        "decoded": lambda: decoder.read(messages),
        "as_column": lambda: columns.batch(fetched, queue=QUEUE, topic="t"),
    }
    if (parse := one.parse) is not None:
        bodies = [message.body for message in messages]
        found["parsed"] = lambda: [parse(body) for body in bodies]
    return found


def rate(run: Callable[[], Any], samples: int, seconds: float) -> float:
    """Returns samples for each second of a processor."""
    calls, began = 0, time.process_time()
    while (spent := time.process_time() - began) < seconds or not calls:
        run()
        calls += 1
    return samples * calls / spent


def measure(names: list[str], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Returns the figures of each format."""
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in names}
    works = {name: contenders(FORMATS[name], messages_of(FORMATS[name], options.messages)) for name in names}
    for number in range(options.rounds):
        for name in names if number % 2 else reversed(names):
            samples = FORMATS[name].metrics * options.messages
            for what, run in works[name].items():
                found[name][what].append(rate(run, samples, options.seconds))
    return {
        name: {what: round(statistics.median(figures)) for what, figures in one.items()}
        | {"spread": [round(min(one["decoded"])), round(max(one["decoded"]))]}
        | {"body_bytes": len(FORMATS[name].body(0))}
        for name, one in found.items()
    }


def formats(text: str) -> list[str]:
    """Returns names of formats. Raises `ArgumentTypeError`."""
    names = text.split(",")
    for name in names:
        if name not in FORMATS:
            raise argparse.ArgumentTypeError(f"{name!r} is no format; there are {', '.join(FORMATS)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=at_least(1), default=2_000, help="decoded in one go, as a fetch brings them")
    parser.add_argument("--rounds", type=at_least(1), default=9)
    parser.add_argument("--seconds", type=above_zero, default=0.2, help="of a processor, in each round")
    parser.add_argument("--formats", type=formats, default=list(FORMATS), help="with commas; default all")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    found = measure(options.formats, options)
    shape = {name: getattr(options, name) for name in ("messages", "rounds", "seconds")}
    print(json.dumps({"shape": shape, "load": [load, os.getloadavg()[0]], "samples_per_core_s": found}, indent=2))


if __name__ == "__main__":
    main()
