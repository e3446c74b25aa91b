"""A driver of the telemetry job killed before every step of a pass, without Spark: every table equals the log."""

import signal
import subprocess
import sys

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyarrow")

from spark.tables.reader import Tables
from tests.support.process.gateways import restart
from tests.support.spark.log_recount import Telemetry, assert_recounted

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(3_600)]

STEPS_MAX, KILLS_MIN = 300, 40
GATEWAY_EVERY = 10  # kills of the driver for one of the gateway
SEED = 12


def test_a_driver_killed_before_any_step_of_a_pass_neither_loses_nor_doubles(new_gateway, tmp_path):
    gateway = new_gateway().start()
    target = f"127.0.0.1:{gateway.port('rpc')}"
    telemetry = Telemetry(gateway.url, SEED)
    driver = [sys.executable, "-m", "tests.support.spark.driver_process", str(tmp_path / "tables")]
    driver += [str(tmp_path / "checkpoint"), target, gateway.url]
    kills = survived = 0
    try:
        for step in range(STEPS_MAX):
            telemetry.feed(100)
            ended = subprocess.run([*driver, str(step)], capture_output=True, text=True, check=False)
            assert ended.returncode in {0, -signal.SIGKILL}, ended.stderr
            kills, survived = kills + (ended.returncode != 0), survived + (ended.returncode == 0)
            if survived > 3:  # no pass has so many steps
                break
            if step % GATEWAY_EVERY == 0:
                gateway.kill()
                restart(gateway)
        print(f"{kills} kills of the driver, the last before step {step} of a pass", flush=True)
        assert kills >= KILLS_MIN
        ended = subprocess.run([*driver, str(STEPS_MAX)], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert_recounted(Tables(tmp_path / "tables"), target)
    finally:
        telemetry.close()
