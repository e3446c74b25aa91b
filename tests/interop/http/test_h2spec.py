"""h2spec, the conformance tests of HTTP/2 and HPACK (RFC 7540, 7541), against the gateway: `make interop`.

It comes from Go's proxy, so this test runs only where HEADGATE_H2SPEC=1 asks for it and go is there.
"""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

VERSION = "v2.2.1+incompatible"  # the last one that Go's proxy has
MODULE = "github.com/summerwind/h2spec"
GO = shutil.which("go")
TIMEOUT_S = 400

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(GO is None, reason="go is not installed"),
    pytest.mark.skipif(not os.environ.get("HEADGATE_H2SPEC"), reason="needs Go's proxy: make interop"),
]


@pytest.fixture(scope="session")
def h2spec() -> Path:
    """Returns the program, which is kept with the virtual environment."""
    home = Path(sys.prefix) / "h2spec" / VERSION
    if not (home / "h2spec").is_file():
        home.mkdir(parents=True, exist_ok=True)
        (home / "go.mod").write_text(f"module h2spec\n\ngo 1.22\n\nrequire {MODULE} {VERSION}\n")
        command = [str(GO), "build", "-mod=mod", "-o", "h2spec", f"{MODULE}/cmd/h2spec"]
        subprocess.run(command, check=True, timeout=TIMEOUT_S, cwd=home)
    return home / "h2spec"


EXCUSED = {
    # The port speaks HTTP/1.1, too, and takes what is no preface for that: it is answered 400 in HTTP/1.1 and closed.
    "http2/3.5 Sends invalid connection preface": "HTTP/1.1 header",
}


def test_h2spec_finds_nothing(h2spec: Path, shared_gateway: Any, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    command = [h2spec, "-h", "127.0.0.1", "-p", str(shared_gateway.port("http")), "-P", "/topics/h2spec", "-o", "5"]
    done = subprocess.run(
        [*map(str, command), "-j", str(report)], check=False, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert report.is_file(), done.stdout + done.stderr
    cases = list(ET.parse(report).iter("testcase"))
    assert len(cases) > 140
    failed = {
        f"{case.get('package')} {case.get('classname')}": "".join(case.itertext()).strip()
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
    assert {name: why for name, why in failed.items() if EXCUSED.get(name, "?") not in why} == {}
