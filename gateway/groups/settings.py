"""The settings of consumer groups: `[groups]`."""

from typing import Annotated

import msgspec
from msgspec import Meta

MiB = 1024 * 1024


class GroupsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[groups]`: limits on consumer groups."""

    groups_max: Annotated[int, Meta(ge=0, le=100_000, description="consumer groups; more are refused")] = 1_000
    members_max: Annotated[int, Meta(ge=1, le=1_000, description="members of one group; more are refused")] = 256
    memberships_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="of one user at one proxy, in all groups; more are refused")
    ] = 1_024
    release_s: Annotated[
        float, Meta(ge=0, le=3_600, description="time that a member has to commit a queue that another one is to read")
    ] = 30.0
    response_bytes_max: Annotated[
        int, Meta(ge=1, le=256 * MiB, description="bodies in one answer; a single message may be longer")
    ] = 4 * MiB
