"""pika's asynchronous adapters, all with the same cases; the packages of three of them come by `make interop`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.amqp import pika_adapters
from tests.support.amqp.client_suites import installed_beside

pytestmark = pytest.mark.slow

TIMEOUT_S = 180
ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {"tornado": "tornado==6.6.1", "twisted": "twisted==26.10.0", "gevent": "gevent==26.9.0"}
ON_DEMAND = pytest.mark.skipif(not os.environ.get("HEADGATE_AMQP_SUITES"), reason="needs packages: make interop")


@pytest.mark.parametrize("adapter", ["select", "asyncio", *(pytest.param(name, marks=ON_DEMAND) for name in PACKAGES)])
def test_every_case_passes(shared_gateway: Any, adapter: str) -> None:
    environ = dict(os.environ)
    if adapter in PACKAGES:
        environ["PYTHONPATH"] = str(installed_beside(adapter, PACKAGES[adapter]))
    command = [sys.executable, "-m", "tests.support.amqp.pika_adapters", adapter, str(shared_gateway.port("amqp"))]
    done = subprocess.run(
        command, cwd=ROOT, env=environ, check=False, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {case.__name__: "passed" for case in pika_adapters.CASES}
