"""Clients that come from the registries of Node and Java: a variable of the environment asks for them (`make interop`).

They are kept with the virtual environment.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NODE, NPM = shutil.which("node"), shutil.which("npm")
JAVA, MAVEN = shutil.which("java"), shutil.which("mvn")
INSTALL_TIMEOUT_S = 300
PROJECT = """<project><modelVersion>4.0.0</modelVersion>
<groupId>headgate</groupId><artifactId>tests</artifactId><version>1</version>
<dependencies><dependency>
<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>
</dependency></dependencies></project>
"""


def needs_node(variable: str) -> list[pytest.MarkDecorator]:
    """Returns the marks of tests that run only where Node is there, and a variable asks for them."""
    return [
        pytest.mark.slow,
        pytest.mark.skipif(NODE is None or NPM is None, reason="node and npm are not installed"),
        pytest.mark.skipif(not os.environ.get(variable), reason="needs npm's registry: make interop"),
    ]


def needs_java() -> list[pytest.MarkDecorator]:
    """Returns the marks of tests that run only where Java is there, and HEADGATE_JAVA asks for them."""
    return [
        pytest.mark.slow,
        pytest.mark.skipif(JAVA is None or MAVEN is None, reason="java and mvn are not installed"),
        pytest.mark.skipif(not os.environ.get("HEADGATE_JAVA"), reason="needs Maven's repository: make interop"),
    ]


def beside_package(script: Path, package: str, version: str) -> Path:
    """Returns a copy of a script beside a package of npm, which is installed there."""
    home = Path(sys.prefix) / "node" / package / version
    if not (home / "node_modules" / package).is_dir():
        home.mkdir(parents=True, exist_ok=True)
        command = [str(NPM), "install", "--prefix", str(home), "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run([*command, f"{package}@{version}"], check=True, timeout=INSTALL_TIMEOUT_S)
    return Path(shutil.copy(script, home / script.name))


def class_path(name: str, *artifacts: str) -> str:
    """Returns the class path of artifacts of Maven (group:name:version), which are copied to a folder of this name."""
    home = Path(sys.prefix) / name
    for artifact in artifacts:
        _, part, version = artifact.split(":")
        if not (home / f"{part}-{version}.jar").is_file():
            command = [str(MAVEN), "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={home}"]
            subprocess.run(command, check=True, timeout=INSTALL_TIMEOUT_S)
    return f"{home}/*"


def class_path_with_dependencies(artifact: str) -> str:
    """Returns the class path of an artifact of Maven (group:name:version) and of all that it needs to run."""
    group, name, version = artifact.split(":")
    home = Path(sys.prefix) / name / version
    if not (home / f"{name}-{version}.jar").is_file():
        home.mkdir(parents=True, exist_ok=True)
        (home / "pom.xml").write_text(PROJECT.format(group=group, name=name, version=version))
        command = [str(MAVEN), "-q", "-B", "-f", str(home / "pom.xml"), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={home}"]
        subprocess.run(command, check=True, timeout=INSTALL_TIMEOUT_S)
    return f"{home}/*"
