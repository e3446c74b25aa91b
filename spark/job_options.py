"""The options of the telemetry job."""

from pathlib import Path

import msgspec

from spark.errors import BadOption

__all__ = ["TelemetryOptions"]


class TelemetryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `headgate spark telemetry`."""

    output: Path  # where the tables are written (`spark.tables`)
    checkpoint: Path | None = None  # Spark's; None: `checkpoint` below the output
    target: str = "127.0.0.1:8081"  # host and port of the store's gRPC service
    topics: tuple[str, ...] = ()  # none: all
    starting_offsets: str = "earliest"  # as the data source's option; counts only at the very first start
    trigger_s: float = 2.0  # seconds from the start of one micro-batch to the next
    once: bool = False  # read what there is now, then end
    watermark_s: float = 120.0  # how much later than its window's end a record may be stored and still count in it
    records_max: int = 500_000  # in one micro-batch
    retry_s: float = 60.0  # how long an absent store is waited for
    cores: int = 2
    shuffle_partitions: int = 4
    driver_memory: str = "1g"

    def __post_init__(self) -> None:
        for name in ("trigger_s", "watermark_s", "retry_s"):
            if not 0 <= getattr(self, name) < 1e9:
                raise BadOption(name, "must be a number of seconds")
        for name in ("records_max", "cores", "shuffle_partitions"):
            if getattr(self, name) < 1:
                raise BadOption(name, "must be at least 1")

    @property
    def checkpoint_dir(self) -> Path:
        """Returns where Spark keeps its positions."""
        return self.checkpoint if self.checkpoint is not None else self.output / "checkpoint"
