"""The OpenAPI document as Schemathesis reads it: requests that fit it, and such that do not, to a real gateway.

By day a few examples for each operation; HEADGATE_NIGHTLY asks many more.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("schemathesis") is None, reason="schemathesis is not installed (`make setup`)"),
]

CONFIG = Path(__file__).parents[2] / "support" / "http" / "schemathesis.toml"
TIMEOUT_S = 110
EXAMPLES = 2  # of each operation in the fuzzing phase


def run(gateway: Any, tmp_path: Path, *arguments: str, timeout_s: float = TIMEOUT_S) -> None:
    """Runs Schemathesis; /subscribe is left out, as its answers do not end."""
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "schemathesis.cli",
                "--config-file",
                str(CONFIG),
                "run",
                f"{gateway.url}/openapi.json",
            ),
            *(
                "--exclude-path",
                "/subscribe",
                "--request-timeout",
                "30",
                "--no-color",
                "--no-shrink",
                "--warnings",
                "off",
            ),
            *arguments,
        ],
        cwd=tmp_path,
        env={name: text for name, text in os.environ.items() if not name.lower().endswith("_proxy")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]


def test_schemathesis_finds_nothing(shared_gateway: Any, tmp_path: Path) -> None:
    run(shared_gateway, tmp_path, "--phases", "fuzzing", "--max-examples", str(EXAMPLES), "--seed", "1")


@pytest.mark.nightly
@pytest.mark.timeout(1_900)
def test_schemathesis_finds_nothing_in_many_requests(new_gateway: Any, tmp_path: Path) -> None:
    phases = ("--phases", "examples,coverage,fuzzing,stateful")
    run(new_gateway().start(), tmp_path, *phases, "--max-examples", "100", timeout_s=1_800)
