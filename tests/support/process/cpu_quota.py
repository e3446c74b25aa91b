"""A limit on the processor time of processes and all that they start: a control group's quota (cgroups, v1 and v2)."""

import os
import signal
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

PERIOD_US = 100_000
_ENTER = 'echo $$ > "$0" && exec "$@"'  # the group is entered before anything is started
_REMOVE_S = 30.0


class CpuQuota:
    """A control group that has `share` of one processor, at most. Root may make one."""

    def __init__(self, name: str, share: float) -> None:
        v1 = Path("/sys/fs/cgroup/cpu")
        self._v1 = v1.is_dir()
        self.path = (v1 if self._v1 else Path("/sys/fs/cgroup")) / f"headgate-{os.getpid()}-{name}"
        self.path.mkdir()
        quota_us = round(share * PERIOD_US)
        if self._v1:
            (self.path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.path / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (self.path / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")

    def entering(self, *command: str) -> tuple[str, ...]:
        """Returns a command that runs another one in the group."""
        return ("/bin/sh", "-c", _ENTER, str(self.path / "cgroup.procs"), *command)

    def throttled(self) -> float:
        """Returns the share of the periods in which the group had work that its quota held back."""
        lines = dict(line.split() for line in (self.path / "cpu.stat").read_text().splitlines())
        return int(lines["nr_throttled"]) / max(1, int(lines["nr_periods"]))

    def kill(self) -> None:
        """Kills all processes of the group, those that begin meanwhile included. They are held back no more."""
        if self._v1:
            (self.path / "cpu.cfs_quota_us").write_text("-1")
        else:
            (self.path / "cpu.max").write_text("max")
        until_s = time.monotonic() + _REMOVE_S
        while (pids := (self.path / "cgroup.procs").read_text().split()) and time.monotonic() < until_s:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.02)

    def close(self) -> None:
        """Removes the group, whose processes have ended or are ending."""
        until_s = time.monotonic() + _REMOVE_S
        while True:
            try:
                self.path.rmdir()
            except OSError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.05)
            else:
                return


def can_limit() -> str:
    """Returns why this process cannot make such a group; empty where it can."""
    if sys.platform != "linux":
        return "control groups are Linux's"
    try:
        with quota("probe", 0.5):
            return ""
    except OSError as error:
        return f"no control group can be made: {error.strerror}"


@contextmanager
def quota(name: str, share: float):
    """Yields a group, and removes it."""
    made = CpuQuota(name, share)
    try:
        yield made
    finally:
        made.close()
