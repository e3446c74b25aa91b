"""The settings of each protocol that browsers reach by WebSocket: the pages that may, and the names they call."""

from typing import Annotated, TypeAlias

from msgspec import Meta

PageOrigins: TypeAlias = Annotated[
    tuple[str, ...], Meta(description='origins whose pages may connect by WebSocket from a browser; "*" for all')
]
KnownHosts: TypeAlias = Annotated[
    tuple[str, ...],
    Meta(description="names by which pages of this machine may call it by WebSocket, besides localhost"),
]
