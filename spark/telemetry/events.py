"""Events of devices and series: anomalies, silence, return; each with a score and a sentence."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.telemetry.windows import INSTANT

ANOMALY, LIVENESS = "analytics/anomaly/", "analytics/liveness/"  # addresses at which findings are published, by device

EVENTS = pa.schema(
    [("time", INSTANT)]
    + [(name, pa.string()) for name in ("device", "address", "metric", "kind")]
    + [(name, pa.float64()) for name in ("value", "expected", "score")]
    + [("sentence", pa.string())]
)


def finding_at(addresses: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns of each address whether findings are published there: the job's own words, which it does not count."""
    found = pc.or_(pc.starts_with(addresses, ANOMALY), pc.starts_with(addresses, LIVENESS))
    return pc.fill_null(found, fill_value=False)


def events_of(*, sentence: Sequence[str], **columns: Any) -> pa.Table:
    """Returns a table of `EVENTS`; a column that is left out is empty."""
    count = len(sentence)
    made = {"sentence": pa.array(sentence, pa.string())}
    for field in EVENTS:
        if field.name in columns:
            made[field.name] = pa.array(np.asarray(columns[field.name]), field.type)
        else:
            made.setdefault(field.name, pa.nulls(count, field.type))
    return pa.table([made[name] for name in EVENTS.names], schema=EVENTS)
