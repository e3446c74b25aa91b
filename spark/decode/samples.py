"""Telemetry bodies: which numbers a message reports, and what is to be said of a message that reports none.

A body is JSON (RFC 8259). Of an object every numeric field of the top level is a metric, except that `value` is the
metric named by the last level of the address, as in `{"value": 21.5}` published to `site1/dev42/temperature`; a bare
number is the same. Booleans, texts, nulls and nested values are no metrics and are passed over.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from store.api.message import Message

__all__ = ["BAD_JSON", "ENCODED", "METRICS_MAX", "METRIC_CHARS_MAX", "NO_METRICS", "OK", "TOO_MANY", "Samples", "read"]

METRICS_MAX = 256  # of one message; the rest of its fields is passed over
METRIC_CHARS_MAX = 256  # a field with a longer name is passed over

OK = "ok"
NO_METRICS = "no_metrics"  # JSON, but without a number where one would count
BAD_JSON = "bad_json"
ENCODED = "encoded"  # compressed by its sender: not looked into
TOO_MANY = "too_many_metrics"  # the first METRICS_MAX were taken

_parse = msgspec.json.Decoder().decode
_VALUE = "value"


class Samples(NamedTuple):
    """The samples of a batch: message `i` has `metrics[bounds[i]:bounds[i + 1]]`, `values` likewise."""

    bounds: list[int]
    metrics: list[str]
    values: list[float]
    quality: list[str]  # one a message


def read(messages: Sequence[Message]) -> Samples:
    """The samples of each message; never raises for what a body holds.

    A loop with local names, because it runs once a message: 0.9 us for an object of two fields, 0.3 of it parsing.
    """
    bounds, metrics, values, quality = [0], list[str](), list[float](), list[str]()
    parse, name_it, number_it, bound_it, judge = (
        _parse,
        metrics.append,
        values.append,
        bounds.append,
        quality.append,
    )
    for message in messages:
        had = verdict = None
        if message.content_encoding:
            verdict = ENCODED
        else:
            try:
                parsed = parse(message.body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                verdict = BAD_JSON
            else:
                had = len(metrics)
                for name, value in parsed.items() if type(parsed) is dict else ((_VALUE, parsed),):
                    if type(value) is int:
                        try:
                            value = float(value)  # noqa: PLW2901  # the field as a metric: one name, one value
                        except OverflowError:
                            continue
                    elif type(value) is not float:
                        continue
                    if len(name) > METRIC_CHARS_MAX:
                        continue
                    if len(metrics) - had == METRICS_MAX:
                        verdict = TOO_MANY
                        break
                    name_it(name if name != _VALUE else message.address.rpartition("/")[2] or _VALUE)
                    number_it(value)
        if verdict is None:
            verdict = OK if len(metrics) != had else NO_METRICS
        judge(verdict)
        bound_it(len(metrics))
    return Samples(bounds, metrics, values, quality)
