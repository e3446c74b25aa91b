"""The limits and times of a Raft node."""

import msgspec


class RaftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in ticks: calls of `Raft.tick`, whose pace is the driver's. Raises ValueError.

    An election begins after `election_ticks` to twice as many without a leader (thesis, 3.4), so `election_ticks`
    should be five to ten times `heartbeat_ticks` and several times a disk's sync time.
    """

    election_ticks: int = 10
    heartbeat_ticks: int = 1
    snapshot_ticks: int = 200  # how long a follower may take over a snapshot before it is sent again

    append_bytes_max: int = 1 << 20  # entries of one message, except that a single entry is never too large
    apply_bytes_max: int = 16 << 20  # entries of one `Ready` to apply, likewise
    inflight_max: int = 256  # messages with entries that a follower has not answered yet
    inflight_bytes_max: int = 16 << 20  # and the bytes of their entries
    uncommitted_bytes_max: int = 64 << 20  # entries of a leader's term that are not committed yet
    proposal_bytes_max: int = 8 << 20
    cache_bytes_max: int = 16 << 20  # entries kept in memory although they are on disk and applied
    reads_max: int = 10_000  # reads waiting for a quorum
    promote_lag_max: int = 1_000  # entries a learner may be behind when it is made a voter

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < (0 if name in {"cache_bytes_max", "promote_lag_max"} else 1):
                raise ValueError(f"{name} is {getattr(self, name)}")
        if self.election_ticks <= self.heartbeat_ticks:
            raise ValueError("election_ticks has to be greater than heartbeat_ticks")
