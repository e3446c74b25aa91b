"""The options of the telemetry job."""

import re
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec

from spark import parsing
from spark.errors import BadOption
from spark.source.options import parse_location
from spark.tables.files import Location
from spark.telemetry.sessions import NEVER_MS

MIN_TICK_S = 0.1
BUCKETS_MAX = 1_000  # each is a task, and some files, of every batch
HISTORY_H_MAX = 876_000  # 100 years


class TelemetryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `headgate spark telemetry`."""

    output: str | Path  # where the tables are written: a directory, or s3://bucket/path
    storage_options: dict[str, str] = {}  # of an object store, as deltalake has them: AWS_ENDPOINT_URL and the like
    checkpoint: Path | None = None  # Spark's; None: `checkpoint` below the output, where that is a directory
    target: str = "127.0.0.1:8081"  # host and port of the store's gRPC service; of several proxies, with commas
    topics: tuple[str, ...] = ()  # none: all
    rules: Path | None = None  # TOML with [[devices]] and [[decode]] (`spark.decode.rules`)
    starting_offsets: str = "earliest"  # as the data source's option; counts only at the very first start
    trigger_s: float = 2.0  # seconds from the start of one micro-batch to the next
    once: bool = False  # read the records that are there now, then end
    watermark_s: float = 120.0  # how much later than its window's end a record may be stored and still count in it
    late_s: float = 7 * 86_400.0  # how much later a settled window is still corrected
    devices_max: int = 1_000_000  # devices whose state is kept, in all
    series_max: int = 5_000_000  # devices' metrics, in all
    metrics_max: int = 1_000  # of one device
    forget_s: float = 30 * 86_400.0  # devices and metrics that nothing came from for so long are forgotten
    ca_file: Path | None = None  # PEM; with the two below where the cluster's nodes speak TLS
    cert_file: Path | None = None
    key_file: Path | None = None
    gateway_ca_file: Path | None = None  # PEM; the authorities of a gateway of `findings` with https
    records_max: int = 500_000  # in one micro-batch
    bytes_max: int = 64 << 20  # of records in one micro-batch
    retry_s: float = 60.0  # how long an absent store is waited for
    cores: int = 2
    buckets: int = 4  # parts of the state, worked on side by side: fixed when the output is begun
    session_s: float = 1_800.0  # a longer pause of a device ends its session of activity
    progress_s: float = 10.0  # seconds between two lines of progress; 0: none
    samples: bool = False  # each number and state is a row of the table `samples`
    tick_s: float = 5.0  # while no record comes: seconds between two looks at state that time alone changes
    findings: str | None = None  # URLs, with commas, of HTTP ports where findings are published; None: table only
    findings_age_s: float = 3_600.0  # findings of longer ago are no news: they are in the table only
    history_h: int = 6  # hours in which replaced rows stay readable
    master: str | None = None  # of a Spark cluster; None: this machine
    driver_memory: str = "1g"

    def __post_init__(self) -> None:
        for name in ("trigger_s", "watermark_s", "late_s", "retry_s", "findings_age_s", "forget_s", "progress_s"):
            if not 0 <= getattr(self, name) < 1e9:
                raise BadOption(name, "must be a number of seconds")
        if not 1 <= self.session_s < NEVER_MS / 1_000:
            raise BadOption("session_s", "must be a number of seconds, 1 at least")
        if not MIN_TICK_S <= self.tick_s < 1e9:
            raise BadOption("tick_s", f"must be a number of seconds, {MIN_TICK_S:g} at least")
        self._check_texts()
        self._check_reach()
        of_state = ("buckets", "history_h", "devices_max", "series_max", "metrics_max")
        for name in ("records_max", "bytes_max", "cores", *of_state):
            if getattr(self, name) < 1:
                raise BadOption(name, "must be at least 1")
        if self.forget_s < self.late_s + self.watermark_s:
            raise BadOption(
                "forget_s",
                "must be longer than windows are corrected (option late) and wait before (option watermark), together",
            )
        for name, most in (("buckets", BUCKETS_MAX), ("history_h", HISTORY_H_MAX)):
            if getattr(self, name) > most:
                raise BadOption(name, f"must be at most {most}")
        if self.checkpoint is None and self.place.local is None:
            raise BadOption("checkpoint", f"must be named where the tables are at a URL ({self.output})")

    def _check_reach(self) -> None:
        files = {"ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file}
        if any(files.values()) and (missing := [name for name, path in files.items() if path is None]):
            raise BadOption(missing[0], "is missing; the three files of TLS are given together or not at all")
        urls = [] if self.findings is None else self.findings.split(",")
        if not all(parsing.is_url(url) and _is_taken(url) for url in urls):
            shown = re.sub(
                "//.*@", "//", ",".join(urls)
            )  # without passwords, which may have slashes and commas in them
            raise BadOption("findings", f"cannot be {shown}: the URL of a gateway, as http://127.0.0.1:8080")

    def _check_texts(self) -> None:
        parsers: dict[str, Callable[[str], object]] = {
            "target": parsing.targets,
            "driver_memory": parsing.memory,
            "starting_offsets": parse_location,
            "master": parsing.master,
        }
        for name, parse in parsers.items():
            text = getattr(self, name)
            try:
                parse("local" if text is None else text)
            except ValueError as error:
                raise BadOption(name, f"cannot be {text}: {error}") from error

    @property
    def place(self) -> Location:
        """Returns the place of the tables."""
        return Location.of(self.output, self.storage_options)

    @property
    def checkpoint_dir(self) -> Path:
        """Returns where Spark keeps its positions."""
        if self.checkpoint is not None:
            return self.checkpoint
        assert self.place.local is not None
        return self.place.local / "checkpoint"


def _is_taken(url: str) -> bool:
    """Returns whether the client that publishes takes a URL: it refuses hosts that no name or address can be."""
    try:
        httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return True
