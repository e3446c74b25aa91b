"""A control group's quota holds its processes back, and what they start."""

import subprocess
import sys

import pytest

from tests.support.process.cpu_quota import can_limit, quota
from tests.support.process.waiting import wait_until

BUSY = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"


@pytest.mark.slow
@pytest.mark.skipif(bool(can_limit()), reason=can_limit() or "-")
def test_a_busy_process_and_its_child_are_held_back():
    with quota("test", 0.05) as group:
        process = subprocess.Popen(group.entering(sys.executable, "-c", BUSY))
        try:
            wait_until(lambda: group.throttled() > 0.5)
        finally:
            group.kill()
            process.wait()
    assert not group.path.exists()
