"""The CloudEvents SDKs for JavaScript, Go and Java as senders and sinks, in binary and structured mode: `make interop`.

They come from their languages' registries, so these tests run only where HEADGATE_EVENTS_SDKS=1 asks for them.
The extension is ASCII without spaces: the SDKs for JavaScript (10.0.0) and Go (2.16.2) neither write nor read the
percent-encoding that the HTTP binding asks for in headers (3.1.3.2).
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.mqtt.paho_client import fresh

SOURCES = Path(__file__).with_name("sdks")
JAVASCRIPT = "10.0.0"
GO = "v2.16.2"
JAVA = (
    "io.cloudevents:cloudevents-api:4.0.1",
    "io.cloudevents:cloudevents-core:4.0.1",
    "io.cloudevents:cloudevents-http-basic:4.0.1",
    "io.cloudevents:cloudevents-json-jackson:4.0.1",
    "com.fasterxml.jackson.core:jackson-databind:2.18.2",
    "com.fasterxml.jackson.core:jackson-core:2.18.2",
    "com.fasterxml.jackson.core:jackson-annotations:2.18.2",
)
TIMEOUT_S = 200
INSTALL_S = 400

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("HEADGATE_EVENTS_SDKS"), reason="needs registries: make interop"),
]


def run(*command: object, cwd: Path | None = None) -> None:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, check=False, capture_output=True, text=True, timeout=INSTALL_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


def javascript(home: Path) -> list[str]:
    """Returns the command of the program beside the SDK from npm."""
    if not (home / "node_modules" / "cloudevents").is_dir():
        run(
            "npm",
            "install",
            "--prefix",
            home,
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            f"cloudevents@{JAVASCRIPT}",
        )
    return ["node", str(shutil.copy(SOURCES / "events.mjs", home))]


def go(home: Path) -> list[str]:
    """Returns the command of the program that is built with the SDK from Go's proxy."""
    program = home / "events"
    shutil.copy(SOURCES / "events.go", home)
    if not (home / "go.sum").is_file():
        (home / "go.mod").write_text(f"module events\n\ngo 1.22\n\nrequire github.com/cloudevents/sdk-go/v2 {GO}\n")
        run("go", "mod", "tidy", cwd=home)
    run("go", "build", "-o", program, ".", cwd=home)
    return [str(program)]


def java(home: Path) -> list[str]:
    """Returns the command of the program beside the SDK from Maven's repository."""
    for artifact in JAVA:
        _, name, version = artifact.split(":")
        if not (home / f"{name}-{version}.jar").is_file():
            run("mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={home}")
    return ["java", "-cp", f"{home}/*", str(SOURCES / "Events.java")]


@pytest.mark.parametrize(
    ("tool", "make", "version"), [("npm", javascript, JAVASCRIPT), ("go", go, GO), ("mvn", java, JAVA[0].split(":")[2])]
)
def test_an_sdk_sends_events_and_reads_them_as_a_sink(
    new_gateway: Any, tmp_path: Path, tool: str, make: Callable[[Path], list[str]], version: str
) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    home = Path(sys.prefix) / f"events-{make.__name__}" / version
    home.mkdir(parents=True, exist_ok=True)
    command = make(home)
    file = tmp_path / "push.toml"
    file.write_text('[subscriptions]\nprivate_sinks = ["127.0.0.1"]\n')
    gateway = new_gateway("--config", str(file)).start()
    subject, modes = fresh("sdk"), ("binary", "structured")
    with (
        httpx.Client(base_url=gateway.url, timeout=60, trust_env=False) as client,
        subprocess.Popen(
            [*command, gateway.url, subject, str(3 * len(modes))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as program,
    ):
        try:
            assert program.stdout is not None
            port = program.stdout.readline().strip()
            assert port, program.communicate()[1]
            for mode in modes:
                body = {"sink": f"http://127.0.0.1:{port}/", "protocol": "HTTP", "config": {"addresses": [subject]}}
                answer = client.post("/subscriptions", json={**body, "protocolsettings": {"mode": mode}})
                assert answer.status_code == 201
            told, errors = program.communicate("\n", timeout=TIMEOUT_S)
        finally:
            program.kill()
    assert program.returncode == 0, errors
    came = sorted(json.loads(told), key=lambda one: (one["structured"], one["id"]))
    assert [(one["structured"], one["id"]) for one in came] == [(s, n) for s in (False, True) for n in "123"]
    for one in came:
        assert (one["type"], one["source"], one["subject"]) == ("com.example.sdk", "/sdk", subject)
        assert (one["time"], one["colour"]) == ("2026-11-23T02:45:00.123Z", "red")
        if one["id"] == "3":
            assert (one["datacontenttype"], one["data"]) == ("application/octet-stream", "AP8B")
        else:
            assert one.get("datacontenttype", "application/json").startswith("application/json")
            assert one["data"] == {"n": int(one["id"])}
