"""Every figure of the store: what is measured, and in how many processes.

A study's `measure` is a coroutine function that gets an empty directory and the keywords of a case. It returns rows:
a name, and quantities by name. The same row may come several times; the medians count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

Rows: TypeAlias = Sequence[tuple[str, Mapping[str, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One figure. Each case runs in a process of its own, once a round; `rounds_max` is 1 where rounds are inside."""

    name: str
    title: str
    about: str
    program: str  # the module with `measure`
    cases: Sequence[Mapping[str, Any]]
    columns: Mapping[str, str]  # the columns of the tables
    rounds_max: int = 100
    smoke: Mapping[str, Any] = field(default_factory=dict)  # settings that make a case so small that a test can run it

    async def measure(self, directory: Path, case: Mapping[str, Any]) -> Rows:
        """Measures one case."""
        rows: Rows = await import_module(self.program).measure_case(directory, **case)
        return rows


PEAK = {"peak_mb": "peak MB"}

STUDIES: Mapping[str, Study] = {
    study.name: study
    for study in (
        Study(
            name="append",
            title="Appends by records in a frame",
            about="64 frames under way, records of 150 bytes, 8 queues. `sync`: answered when on disk (fdatasync); "
            "`async`: answered when written, on disk at most 20 ms later. MB are those of the log, rows included.",
            program="tests.bench.store.append",
            cases=[
                {"records": records, "flush": flush, "seconds": 2.0}
                for flush in ("sync", "async")
                for records in (1, 10, 100, 1000)
            ],
            columns={
                "records_per_s": "records/s",
                "mb_per_s": "MB/s",
                "frames_per_s": "frames/s",
                "cpu_us_per_frame": "CPU us a frame",
                **PEAK,
            },
            smoke={"seconds": 0.1},
        ),
        Study(
            name="visible",
            title="From the call of append to the reader",
            about="us from the call until it is acknowledged, until a listener on the tail has the frame, and until a "
            "fetch that waited at the queue's end has returned it. Flat out: 64 frames under way.",
            program="tests.bench.store.visible",
            cases=[
                {"records": 1, "rate": 1000, "seconds": 3.0},
                {"records": 100, "rate": 1000, "seconds": 3.0},
                {"records": 1, "rate": 0, "seconds": 2.0},
                {"records": 100, "rate": 0, "seconds": 2.0},
            ],
            columns={
                "fetched_p50_us": "fetched p50",
                "fetched_p99_us": "p99",
                "fetched_max_us": "max",
                "tail_p50_us": "tail p50",
                "tail_p99_us": "p99",
                "acknowledged_p50_us": "acknowledged p50",
                "acknowledged_p99_us": "p99",
                "frames_per_s": "frames/s",
                **PEAK,
            },
            smoke={"seconds": 0.5},
        ),
        Study(
            name="fetch",
            title="Reading a queue from its beginning to its end",
            about="Frames of 100 records of 150 bytes of one queue, 1 MiB a fetch: from the store's cache of frames ("
            "the newest 48 MB, again and again), from the page cache (1 GB), and from disk (1 GB, dropped from the "
            "page cache before; what the machine's host caches stays).",
            program="tests.bench.store.fetch",
            cases=[{"source": source, "mb": 1_000} for source in ("frame cache", "page cache", "disk")],
            columns={
                "records_per_s": "records/s",
                "mb_per_s": "MB/s",
                "cpu_ns_per_record": "CPU ns a record",
                **PEAK,
            },
            smoke={"mb": 20},
        ),
        Study(
            name="queues",
            title="Few queues and very many",
            about="`batch`: frames of 100 records of one queue; `mixed`: 100 records of as many queues; `single`: one "
            "record. Appends with 64 frames under way; fetches of at most 100 records go round the queues at random, "
            "in a store just opened. `tests/bench/store/many_queues.py`.",
            program="tests.bench.store.many_queues",
            cases=[
                {"shape": shape, "queues": queues, "seconds": 2.0}
                for shape in ("batch", "mixed", "single")
                for queues in (8, 50_000)
            ],
            columns={
                "append_records_per_s": "appended records/s",
                "fetch_records_per_s": "fetched records/s",
                "fetches_per_s": "fetches/s",
                "append_cpu_us_per_frame": "CPU us a frame",
                "memory_mb": "MB grown",
                "files": "files opened",
                "open_s": "open s",
                **PEAK,
            },
            smoke={"queues": 200, "seconds": 0.1},
        ),
        Study(
            name="kv",
            title="Keys and values, beside etcd",
            about="64 clients with one request under way each, 10,000 keys, 100 bytes, each put on disk before its "
            "answer, gets linearizable; the better of etcd's two interfaces is what counts. Client and server share "
            "the machine; `client` is how much of a core the client took. `tests/bench/store/kv.py`.",
            program="tests.bench.store.kv",
            cases=[{"seconds": 2.0, "rounds": 3}],
            columns={
                "per_s": "a second",
                "p50_ms": "p50 ms",
                "p99_ms": "p99 ms",
                "client_cpu_share": "client",
                "peak_mb": "peak MB of the server",
            },
            rounds_max=1,
            smoke={"seconds": 0.2, "rounds": 1, "clients": 4, "keys": 100},
        ),
        Study(
            name="timers-leases",
            title="Timers and leases",
            about="100,000 timers and 200,000 messages of 150 bytes, everything on disk before it counts; leases in "
            "batches of 256 but where it says one by one. `tests/bench/store/timers_leases.py`.",
            program="tests.bench.store.timers_leases",
            cases=[{}],
            columns={
                "per_s": "a second",
                "cpu_us_each": "CPU us each",
                "median": "late ms p50",
                "p99": "p99",
                **PEAK,
            },
            smoke={"timer_count": 2_000, "messages": 2_000},
        ),
        Study(
            name="length",
            title="What a record costs in a short log and in a long one",
            about="Frames of 100 records of 150 bytes, of one queue and 10 addresses that are indexed; 64 queues, "
            "20,000 addresses, 10,000 keys. One store, filled flat out to one length, measured, and filled further; "
            "appends are those of the last million records. `user` and `system` is the processor time of a record, "
            "`bare` what the system alone takes at that length to write and sync the same bytes without a store. A "
            "fetch is of one frame; `find` gives the newest positions of an address, `last` its last one. Everything "
            "is in the page cache but for `cold`.",
            program="tests.bench.store.length",
            cases=[{"lengths": (1_000_000, 30_000_000)}],
            columns={
                "append_records_per_s": "appended records/s",
                "append_user_ns": "user ns",
                "append_system_ns": "system ns",
                "bare_system_ns": "bare",
                "fetch_newest_us": "fetch newest us",
                "fetch_random_us": "at random",
                "fetch_random_cold_us": "cold",
                "kv_get_us": "KV get us",
                "find_us": "find 1 us",
                "find_100_us": "100",
                "last_us": "last us",
                "views_bytes": "views B",
                **PEAK,
            },
            smoke={"lengths": (10_000, 20_000)},
        ),
        Study(
            name="recovery",
            title="From the start of the process to the open store, after kill -9",
            about="A process that appended (frames of 100 records of 150 bytes, 8 queues) was killed; nothing is "
            "served until the store is open. `replayed` is the log that the views had not followed. The log is in "
            "the page cache, as after the end of a process, but for `cold`.",
            program="tests.bench.store.recovery",
            cases=[{"sizes_mb": (1_000, 5_000, 10_000), "rounds": 3}],
            columns={
                "start_s": "s to open",
                "open_s": "s of it in the store",
                "cpu_s": "CPU s",
                "replayed_mb": "MB replayed",
                "mb_per_s": "MB/s",
                **PEAK,
            },
            rounds_max=1,
            smoke={"sizes_mb": (5,), "rounds": 1},
        ),
        Study(
            name="cold-reads",
            title="Appends while old data is read from disk",
            about="Single records at 500 a second: alone, and beside readers that fetch a log of 600 MB which is not "
            "in the page cache. `tests/bench/store/cold_reads.py`.",
            program="tests.bench.store.cold_reads",
            cases=[{"readers": 1, "mb": 600}, {"readers": 4, "mb": 600}],
            columns={
                "reading_p50_us": "beside p50 us",
                "reading_p99_us": "p99",
                "reading_max_us": "max",
                "alone_p50_us": "alone p50 us",
                "alone_p99_us": "p99",
                "alone_max_us": "max",
                "read_mb_per_s": "read MB/s",
                **PEAK,
            },
            smoke={"mb": 10, "alone_s": 0.2},
        ),
    )
}
