"""Sparkplug B: the meaning of its topic names (Sparkplug 3.0.0, chapter 4).

    spBv1.0/{group}/{type}/{edge node}            NBIRTH NDEATH NDATA NCMD
    spBv1.0/{group}/{type}/{edge node}/{device}   DBIRTH DDEATH DDATA DCMD
    spBv1.0/STATE/{host application}

Whatever else begins with `spBv1.0` is a topic name as any other.
"""

from functools import lru_cache
from typing import NamedTuple

NAMES_MAX = 8_192  # topic names remembered, of all connections
NAME_CHARS_MAX = 256  # longer ones are looked at every time

_NAMESPACE = "spBv1.0/"
_NODE = frozenset({"NBIRTH", "NDEATH", "NDATA", "NCMD"})
_DEVICE = frozenset({"DBIRTH", "DDEATH", "DDATA", "DCMD"})
_PROTOBUF = "application/x-protobuf"  # of all payloads but STATE's, which are JSON (6.4)


class Sparkplug(NamedTuple):
    """The type, content type and device that a topic name says."""

    type: str  # "sparkplug.NDATA"
    content_type: str
    device: str  # "{edge node}" or "{edge node}/{device}"; of STATE the host application


def sparkplug_of(topic: str) -> Sparkplug | None:
    """Returns the meaning of a topic name for its messages; None when it is not one of Sparkplug's."""
    if not topic.startswith(_NAMESPACE):
        return None
    return _remembered(topic) if len(topic) <= NAME_CHARS_MAX else _read(topic)


def _read(topic: str) -> Sparkplug | None:
    levels = topic.split("/")
    if not all(levels):
        return None
    kind = levels[2] if len(levels) > 3 else ""
    if levels[1] == "STATE":
        return Sparkplug("sparkplug.STATE", "application/json", levels[2]) if len(levels) == 3 else None
    if (len(levels) == 4 and kind in _NODE) or (len(levels) == 5 and kind in _DEVICE):
        return Sparkplug(f"sparkplug.{kind}", _PROTOBUF, "/".join(levels[3:]))
    return None


_remembered = lru_cache(NAMES_MAX)(_read)
