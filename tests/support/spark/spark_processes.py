"""Processes of a Spark cluster, and those that a telemetry job has started."""

import contextlib
import subprocess
from pathlib import Path

from controller.api.client import GroupConfig
from controller.api.commands import AddGroup, CreateTopic
from tests.support.cluster.local_clusters import controller_of


async def prepare(plan):
    async with controller_of(plan) as controller:
        await controller.do(AddGroup(number=0, config=GroupConfig(replicas=3, min_in_sync=2)))
        await controller.do(CreateTopic(name="telemetry", queues=4))


def processes_of(job: subprocess.Popen) -> list[int]:
    """Returns the processes in the session that the job began, Java and Python, the job's own included."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                state, _, _, session, *_ = (process / "stat").read_text().rpartition(")")[2].split()
                if int(session) == job.pid and state != "Z":
                    found.append(int(process.name))
    return found


def is_java(pid: int) -> bool:
    """Returns whether a process runs Java; not where it has ended."""
    with contextlib.suppress(OSError):
        return b"java" in Path(f"/proc/{pid}/cmdline").read_bytes()[:60]
    return False


def workers_of(job: subprocess.Popen) -> list[int]:
    """Returns the Python processes of Spark's tasks and of its source, in the session that the job began."""
    found = []
    for pid in processes_of(job):
        with contextlib.suppress(OSError):
            if b"pyspark" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return [pid for pid in found if not is_java(pid)]
