"""Complaints of replicas and proxies about a master that they cannot reach."""

from typing import Annotated

import msgspec
from msgspec import Meta

from controller.api.client import ControllerRequest

HINT_MS = 500  # of silence before it is said at all: two heartbeats of a master to its replicas
COMPLAIN_MS = 2_000  # before it counts as a complaint: eight of them
PROXY_COMPLAIN_MS = 3_000  # likewise of a proxy: three pings
REPORT_S = 1.0  # between two reports of a proxy
REACHES_COUNT_MAX = 16  # as many replicas as a group has, learners included
REPORT_COMPLAINTS_MAX = 256  # groups in one report; a proxy with more complains of these first
PROXY_CHARS_MAX = 64  # of a proxy's name

_Number = Annotated[int, Meta(ge=0, le=1 << 62)]


class Complaint(msgspec.Struct, frozen=True, kw_only=True):
    """The master of `epoch` has said nothing to the complainer for `silent_ms`.

    The epoch makes a complaint void after the next election. `met`: the complainer has heard this master in this
    epoch before. `reaches` are the other replicas of the group that have answered the complainer a moment ago.
    """

    group: _Number
    epoch: _Number
    silent_ms: _Number
    met: bool = True
    reaches: Annotated[tuple[_Number, ...], Meta(max_length=REACHES_COUNT_MAX)] = ()


class Report(ControllerRequest[None], frozen=True, kw_only=True, tag="report"):
    """A proxy's complaints of this moment; none of them says that it reaches every master."""

    proxy: Annotated[str, Meta(min_length=1, max_length=PROXY_CHARS_MAX)]
    complaints: Annotated[tuple[Complaint, ...], Meta(max_length=REPORT_COMPLAINTS_MAX)] = ()


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """The complaints about a group's master, for operators: how many of how many, and for how long.

    `slow`: the master says that its disk is slow. `stays` says why the group has this master still, where the
    complaints would be enough; empty: they are not, or it is being replaced.
    """

    replicas: int = 0
    replicas_heard: int = 0
    proxies: int = 0
    proxies_heard: int = 0
    silent_ms: int = 0
    slow: bool = False
    stays: str = ""

    @property
    def whom(self) -> str:
        """Returns how many nodes the master is unreachable for, "2 of 2 replicas, 1 of 2 proxies"; empty for none."""
        counts = (self.replicas, self.replicas_heard, "replicas"), (self.proxies, self.proxies_heard, "proxies")
        return ", ".join(f"{count} of {heard} {nodes}" for count, heard, nodes in counts if count)
