"""SenML (RFC 8428), JSON and CBOR: packs to rows.

A record's name is its base name and its name; time, value and sum likewise add up (4.6). A time below 2^28 is relative
to now (4.5.3), that is to the message's time.
"""

from typing import Any, Final

from spark.decode.values import ITEMS_MAX, METRIC_CHARS_MAX, TIME_US_MAX, Rows, Undecodable

_RELATIVE_S: Final = 1 << 28
_LABELS: Final = {  # CBOR's integers for JSON's labels (RFC 8428, table 4)
    -2: "bn",
    -3: "bt",
    -4: "bu",
    -5: "bv",
    -6: "bs",
    -1: "bver",
    0: "n",
    1: "u",
    2: "v",
    3: "vs",
    4: "vb",
    5: "s",
    6: "t",
    7: "ut",
    8: "vd",
}


def read(rows: Rows, pack: object, time_ms: int) -> None:
    """Adds a pack's records. Raises `Undecodable`."""
    if not isinstance(pack, list):
        raise Undecodable("SenML is an array of records")
    name, unit, base_s, base_value, base_sum = "", None, 0.0, 0.0, 0.0
    left = ITEMS_MAX
    for given in pack:
        if not isinstance(given, dict):
            raise Undecodable("a SenML record is an object")
        left -= 1 + 2 * len(given)
        if left < 0:
            raise Undecodable(f"SenML has more than {ITEMS_MAX} items")
        record = {_LABELS.get(key, key): value for key, value in given.items()}
        name = _text(record, "bn", name)[: METRIC_CHARS_MAX + 1]  # a longer one makes every name too long
        unit = _text(record, "bu", unit or "") or None
        base_s = _number(record, "bt", base_s)
        base_value, base_sum = _number(record, "bv", base_value), _number(record, "bs", base_sum)
        full = name + _text(record, "n", "")
        if not full:
            raise Undecodable("a SenML record has neither name nor base name")
        at_s = base_s + _number(record, "t", 0.0)
        time_us = round(at_s * 1e6) if at_s >= _RELATIVE_S else time_ms * 1000 + round(at_s * 1e6)
        if not 0 <= time_us <= TIME_US_MAX:
            raise Undecodable("a SenML record's time is before 1970 or after the year 9999")
        of = _text(record, "u", unit or "") or None
        _add(rows, record, full, of, time_us, base_value, base_sum)
        if rows.full:
            return


def _add(  # noqa: PLR0917  # a record's parts, resolved
    rows: Rows, record: dict[Any, Any], name: str, unit: str | None, time_us: int, base_value: float, base_sum: float
) -> None:
    if isinstance(record.get("vb"), bool):
        rows.flag(name, record["vb"], unit, time_us)
    elif isinstance(record.get("vs"), str):
        rows.state(name, record["vs"], unit, time_us)
    elif "v" in record or (base_value and "vd" not in record and "s" not in record):
        rows.number(name, base_value + _number(record, "v", 0.0), unit, time_us)
    if "s" in record:
        rows.number(f"{name}.sum", base_sum + _number(record, "s", 0.0), unit, time_us)


def _number(record: dict[Any, Any], label: str, default: float) -> float:
    value = record.get(label, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Undecodable(f"{label} of a SenML record is no number")
    try:
        found = float(value)
    except OverflowError:
        raise Undecodable(f"{label} of a SenML record is too large") from None
    if not -1e15 < found < 1e15 and label in ("bt", "t"):
        raise Undecodable(f"{label} of a SenML record is no time")
    return found


def _text(record: dict[Any, Any], label: str, default: str) -> str:
    value = record.get(label, default)
    if not isinstance(value, str):
        raise Undecodable(f"{label} of a SenML record is no text")
    return value
