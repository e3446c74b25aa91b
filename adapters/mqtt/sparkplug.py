"""Sparkplug B: what a topic name says of its messages (Sparkplug 3.0.0, chapter 4).

    spBv1.0/{group}/{type}/{edge node}            NBIRTH NDEATH NDATA NCMD
    spBv1.0/{group}/{type}/{edge node}/{device}   DBIRTH DDEATH DDATA DCMD
    spBv1.0/STATE/{host application}

Whatever else begins with `spBv1.0` is a topic name as any other.
"""

from typing import NamedTuple

import msgspec

from gateway.message import Message

__all__ = ["NAMESPACE", "Sparkplug", "sparkplug_of"]

NAMESPACE = "spBv1.0"

_NODE = frozenset({"NBIRTH", "NDEATH", "NDATA", "NCMD"})
_DEVICE = frozenset({"DBIRTH", "DDEATH", "DDATA", "DCMD"})
_PROTOBUF = "application/x-protobuf"  # of all payloads but STATE's, which are JSON (6.4)


class Sparkplug(NamedTuple):
    """What a topic name says."""

    type: str  # "sparkplug.NDATA"
    content_type: str
    device: str  # "{edge node}" or "{edge node}/{device}"; of STATE the host application

    def told(self, message: Message) -> Message:
        """A message with the type and content type that its publisher has not given."""
        if message.type is not None and message.content_type is not None:
            return message
        return msgspec.structs.replace(
            message, type=message.type or self.type, content_type=message.content_type or self.content_type
        )


def sparkplug_of(topic: str) -> Sparkplug | None:
    """What a topic name says of its messages, None when it is not one of Sparkplug's."""
    if not topic.startswith("spBv1.0/"):
        return None
    levels = topic.split("/")
    if not all(levels):
        return None
    if len(levels) == 3 and levels[1] == "STATE":
        return Sparkplug("sparkplug.STATE", "application/json", levels[2])
    if levels[1] == "STATE":
        return None
    if (len(levels) == 4 and levels[2] in _NODE) or (len(levels) == 5 and levels[2] in _DEVICE):
        return Sparkplug(f"sparkplug.{levels[2]}", _PROTOBUF, "/".join(levels[3:]))
    return None
