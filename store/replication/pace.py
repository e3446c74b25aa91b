"""The times and sizes replication works with."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationPace:
    """Named limits of both cores; the defaults suit one data centre.

    A replica that fails stops acknowledgements until it is out of the SyncStateSet, so senders wait for `lag_ms` then:
    Kafka's 30 s and RocketMQ's 15 s are longer than most senders wait. It may be short, because leaving the
    set costs one command of the controller and no data, never makes the set smaller than `min_in_sync`, and is undone a
    moment after the replica has caught up. A replica whose connection broke, which a killed process's does at once, is
    let go after `gone_ms` already.
    """

    heartbeat_ms: int = 250  # a master sends something to its replica that often, up to a quarter sooner
    answer_ms: int = 500  # a replica that is asked for nothing answers the first heartbeat after so long
    quiet_ms: int = 20  # the confirmed offset goes with the next data, or alone when there were none for so long
    lag_ms: int = 2_000  # a replica that has been behind the master for so long leaves the set
    gone_ms: int = 500  # likewise one that is not connected
    stall_ms: int = 4_000  # as long as that without enough replicas, appends are refused rather than left waiting
    silent_ms: int = 3_000  # a peer that says nothing for so long is given up
    retry_ms: int = 500  # an unanswered question to the controller is put again
    refused_ms: int = 2_000  # a refused one is not, for so long
    fresh_ms: int = 2_000  # growing the set is asked of a controller that has answered since
    hold_ms: int = 100  # confirming waits for a replica that is about to join, under load always a little behind
    hold_again_ms: int = 2_000  # and not again before this
    drain_ms: int = 5_000  # a switch-over that takes longer is called off
    batch_bytes: int = 1 << 20  # frames in one message, about
    window_bytes: int = 32 << 20  # sent to a replica and not acknowledged
