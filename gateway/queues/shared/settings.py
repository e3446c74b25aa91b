"""The settings of shared subscriptions: `[shared_subscriptions]`."""

from typing import Annotated

import msgspec
from msgspec import Meta


class SharedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[shared_subscriptions]`: subscriptions that several MQTT clients share, `$share/{group}/{filter}`."""

    groups_max: Annotated[
        int, Meta(ge=0, description="groups, each with its filter; a client that asks for one more is refused")
    ] = 10_000
