"""The methods of class access, which AMQP 0-9-1 has dropped: old clients still ask for a ticket before anything else.

pamqp does not know them. As in RabbitMQ, every request is granted, and tickets mean nothing.
"""

from typing import Final

from pamqp.base import Frame


class AccessRequest(Frame):
    """access.request (AMQP 0-9, 1.6)."""

    name = "Access.Request"
    frame_id = 10
    index = 0x001E000A
    __slots__ = ["realm", "exclusive", "passive", "active", "write", "read"]  # noqa: RUF023 - as they are on the wire

    _realm = "shortstr"
    _exclusive = _passive = _active = _write = _read = "bit"


class AccessRequestOk(Frame):
    """access.request-ok, with a ticket."""

    name = "Access.RequestOk"
    frame_id = 11
    index = 0x001E000B
    __slots__ = ["ticket"]

    _ticket = "short"


ACCESS: Final[dict[int, type[Frame]]] = {AccessRequest.index: AccessRequest, AccessRequestOk.index: AccessRequestOk}
