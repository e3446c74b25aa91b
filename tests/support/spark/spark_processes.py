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


def workers_of(job: subprocess.Popen) -> list[int]:
    """Returns the Python processes of Spark's tasks and of its source, in the session that the job began."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                session = int((process / "stat").read_text().rpartition(")")[2].split()[3])
                if session == job.pid and b"pyspark" in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
    return [pid for pid in found if b"java" not in Path(f"/proc/{pid}/cmdline").read_bytes()[:60]]
