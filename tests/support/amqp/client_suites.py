"""The broker suites of AMQP clients, as their source distributions carry them: fetched, unpacked and run.

They, and what they need besides the clients, are kept with the virtual environment.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.support.process.gateways import GatewayProcess
from tests.support.repository.import_graph import ROOT

INSTALL_TIMEOUT_S = 600
HOME = Path(sys.prefix) / "amqp-suites"
BROKER = Path(__file__).with_name("suite_broker.py")


@dataclass(frozen=True)
class Result:
    """The cases of a suite, by the names that pytest takes, and what became of them; what failed has its message."""

    passed: set[str]
    skipped: set[str]
    failed: dict[str, str]


def installed_beside(folder: str, *requirements: str) -> Path:
    """Returns a folder with packages that only these tests need, for `PYTHONPATH`; they are installed there once."""
    home = HOME / folder
    done = home / ".installed"
    wanted = "\n".join(requirements)
    if not done.is_file() or done.read_text() != wanted:
        shutil.rmtree(home, ignore_errors=True)
        _pip("install", "--target", str(home), *requirements)
        done.write_text(wanted)
    return home


def unpacked(package: str) -> Path:
    """Returns the unpacked source distribution of a client in the version that is installed."""
    name = f"{package.replace('-', '_')}-{version(package)}"
    home = HOME / name
    if not (home / "tests").is_dir():
        HOME.mkdir(parents=True, exist_ok=True)
        _pip("download", "--no-deps", "--no-binary", package, "--dest", str(HOME), f"{package}=={version(package)}")
        with tarfile.open(HOME / f"{name}.tar.gz") as archive:
            archive.extractall(HOME, filter="data")
    shutil.copy(BROKER, home / "tests" / "docker_client.py")
    return home


def run(
    suite: Path,
    beside: Path,
    report: Path,
    *arguments: str,
    ports: Sequence[int],
    own: GatewayProcess,
    timeout_s: float,
) -> Result:
    """Runs a suite beside a broker with these ports, plain and TLS; tests that stop their broker have `own` started."""
    said = {"command": own.command, "cwd": str(ROOT), "data": str(own.data_dir), "port": own.port("amqp")}
    environ = {
        **os.environ,
        "PYTHONPATH": str(beside),
        "HEADGATE_SUITE_PORT": str(ports[0]),
        "HEADGATE_SUITE_TLS_PORT": str(ports[1]),
        "HEADGATE_SUITE_OWN": json.dumps(said),
    }
    options = ["-q", "-p", "no:cacheprovider", "-p", "tests.docker_client", "-o", "log_cli=false"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", *arguments],
        cwd=suite,
        env=environ,
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert report.is_file(), done.stdout[-4000:] + done.stderr[-4000:]
    return _read(report)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    subprocess.run([*command, *arguments], check=True, timeout=INSTALL_TIMEOUT_S)


def _read(report: Path) -> Result:
    passed, skipped, failed = set(), set(), {}
    for case in ET.parse(report).iter("testcase"):
        folder, module, *classes = case.get("classname", "").split(".")
        name = "::".join([f"{folder}/{module}.py", *classes, case.get("name", "")])
        broken = [one for one in case if one.tag in {"failure", "error"}]
        if broken:
            failed[name] = str(broken[0].get("message"))
        elif case.find("skipped") is not None:
            skipped.add(name)
        else:
            passed.add(name)
    return Result(passed - failed.keys(), skipped, failed)
