"""The settings of keys and values: `[kv]`."""

from typing import Annotated

import msgspec
from msgspec import Meta

NAMESPACE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,27}\Z"  # of a user's namespace; all others are the gateway's own


class NamespaceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[[kv.namespaces]]`: limits of a namespace."""

    name: Annotated[str, Meta(pattern=NAMESPACE_PATTERN, description="the namespace")]
    keys_max: Annotated[int, Meta(ge=0, le=1 << 62, description="more keys are refused; 0: no limit")] = 0
    bytes_max: Annotated[int, Meta(ge=0, le=1 << 62, description="of its keys and values; 0: no limit")] = 0


class KvConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[kv]`: keys and values."""

    open: Annotated[bool, Meta(description="whether namespaces may be used that are not named below")] = True
    namespaces: Annotated[
        tuple[NamespaceSettings, ...], Meta(description="namespaces with limits: [[kv.namespaces]]")
    ] = ()
