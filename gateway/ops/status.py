"""The status of a gateway: the document of `/status`, written by the runtime, read by the command line."""

from collections.abc import Mapping

import msgspec

from store.api.lost_status import LostStatus


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """One open port."""

    name: str  # the listener's, or "admin", "rpc"
    host: str
    port: int  # the real one, where the configuration said 0
    transport: str = "tcp"
    secure: bool = False  # the TLS twin
    summary: str = ""


class TopicStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One topic. `records` are those that can be read now, over its queues but the `unknown` ones.

    `unknown` counts queues that do not answer, as those of a store group that is not reached.
    """

    name: str
    queues: int
    records: int
    unknown: int = 0
    config: str = ""  # its settings, "retention_ms=3600000 compact=true"


class LogStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The ends of the log, as byte positions: end >= confirmed."""

    end: int
    confirmed: int
    pending_bytes: int = 0


class DamageStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the log, from one log offset to another, that hold no valid frame and are never served."""

    segment: str
    start: int
    end: int
    why: str
    found_by: str  # "recovery", "start", "read", "scrub", "seal", "replication", "election"


class ViewDamageStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of a view that differ from those written; they are never served."""

    view: str
    why: str
    found_by: str  # "read", "verification", "restart"


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One store group of a cluster, as this process knows it. `reached`: its master answers here.

    `writable`: it stores publishes, as far as is known here. `troubles` are its faults, if any. `lost_messages` counts
    those that damage has taken for good; None: that is not known, and `lost_unknown` says why.
    """

    number: int
    master: int | None
    master_epoch: int
    sync_set: tuple[int, ...]
    sync_epoch: int
    reached: bool
    writable: bool = True
    troubles: tuple[str, ...] = ()
    lost_messages: int | None = 0
    lost_unknown: str = ""


class BridgeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One upstream broker. `here`: it is bridged by this process, which is one of several; only it says more."""

    name: str
    here: bool
    connected: bool
    stored: int = 0  # since the start of this process
    refused: Mapping[str, int] = msgspec.field(default_factory=dict)  # by cause
    unacknowledged: int = 0
    reconnects: int = 0
    last_message_age_s: float | None = None
    forwarded: int = 0  # confirmed by the upstream since the start of this process
    not_forwarded: Mapping[str, int] = msgspec.field(default_factory=dict)  # by cause
    unconfirmed: int = 0
    behind_bytes: int | None = None  # of the log, that are not forwarded; None: nothing is forwarded
    error: str = ""  # why it is not connected, or does not go on


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One worker of a gateway of several. `pid` is 0 while it is being started again."""

    number: int
    pid: int
    ready: bool
    restarts: int
    connections: int


class ScrubStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the pass over closed log files: at log offset `at`, of those up to `to`."""

    at: int = 0
    to: int = 0
    passes: int = 0  # finished
    began_ms: int = 0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The status document. `stored` counts messages by protocol since the start of this process."""

    version: str
    ready: bool
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # present troubles of some clients, or limits that the next failure would meet
    uptime_s: float = 0.0
    data_dir: str = ""
    log: LogStatus = LogStatus(end=0, confirmed=0)
    damages: tuple[DamageStatus, ...] = ()
    lost: tuple[LostStatus, ...] = ()  # the messages in the damages; in a cluster, as masters say
    lost_more: int = 0  # ranges of them that are left out
    damaged_views: tuple[ViewDamageStatus, ...] = ()
    scrub: ScrubStatus = ScrubStatus()
    groups: tuple[GroupStatus, ...] = ()
    listeners: tuple[Listening, ...] = ()
    connections: Mapping[str, int] = msgspec.field(default_factory=dict)
    stored: Mapping[str, int] = msgspec.field(default_factory=dict)
    topics: tuple[TopicStatus, ...] = ()
    proxy: str = ""  # the name of this process among several on the same store
    workers: tuple[WorkerStatus, ...] = ()
    bridges: tuple[BridgeStatus, ...] = ()
