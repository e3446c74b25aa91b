"""Stands in for the suites' Docker client: a copy of this file is `tests/docker_client.py` of an unpacked suite.

The suites of aio-pika and aiormq start RabbitMQ in a container. Here the broker runs already, and the environment names
its ports. Tests that stop and start their broker have one of their own, which the environment says how to start; its
data stay until it is removed. Nothing of Headgate is imported: this runs in the suite's own interpreter.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from yarl import URL


class DockerNotAvailableError(Exception):
    """An error that the suites except; never raised."""


@dataclass
class DockerHostInfo:
    """The host of the broker, in place of that of containers."""

    container_host: str = "127.0.0.1"


@dataclass
class ContainerInfo:
    """The broker, as a container would be described."""

    id: str = "broker"
    host: str = "127.0.0.1"
    ports: dict[str, int] = field(
        default_factory=lambda: {
            "5672/tcp": int(os.environ["HEADGATE_SUITE_PORT"]),
            "5671/tcp": int(os.environ["HEADGATE_SUITE_TLS_PORT"]),
        }
    )


class OwnBroker:
    """The broker of tests that stop and start it; there is one at a time."""

    def __init__(self) -> None:
        self._said = json.loads(os.environ.get("HEADGATE_SUITE_OWN", "{}"))
        self._process: subprocess.Popen[bytes] | None = None
        self.info = ContainerInfo("own", ports={"5672/tcp": self._said.get("port", 0)})

    def start(self) -> None:
        """Starts the process; the suite waits until it answers."""
        assert self._process is None
        self._process = subprocess.Popen(self._said["command"], cwd=self._said["cwd"], stdin=subprocess.DEVNULL)

    def end(self, *, killed: bool) -> None:
        """Ends the process, if it runs: as a loss of power does, or as an operator does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill() if killed else process.terminate()
            process.wait()

    def remove(self) -> None:
        """Removes what it has stored."""
        self.end(killed=True)
        shutil.rmtree(self._said["data"], ignore_errors=True)


OWN = OwnBroker()


class DockerClient:
    """Starts and ends the broker of tests that do; the other one is left as it is."""

    def __init__(self, docker_host_info: Any = None) -> None:
        pass

    def run(self, image: str, ports: list[str], environment: dict[str, str] | None = None) -> ContainerInfo:
        """Returns the broker that runs, or, where no port for TLS is asked for, starts the other one."""
        if len(ports) > 1:
            return ContainerInfo()
        OWN.start()
        return OWN.info

    def start(self, container_id: str) -> None:
        """Starts the broker again."""
        OWN.start()

    def kill(self, container_id: str) -> None:
        """Kills the broker."""
        if container_id == OWN.info.id:
            OWN.end(killed=True)

    def remove(self, container_id: str) -> None:
        """Removes the broker's data."""
        if container_id == OWN.info.id:
            OWN.remove()

    def inspect(self, container_id: str) -> dict[str, Any]:
        """Returns nothing: ports stay."""
        return {}

    def _parse_ports(self, info: Mapping[str, Any]) -> dict[str, int]:
        return OWN.info.ports

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Runs a command of rabbitmqctl, as `exec` does in a container: `stop_app` or `start_app`."""
        match body and body.get("Cmd"):
            case ["rabbitmqctl", "stop_app"]:
                OWN.end(killed=False)
            case ["rabbitmqctl", "start_app"]:
                OWN.start()
        return {"Id": "command", "Running": False, "ExitCode": 0}


def check_docker_available() -> DockerHostInfo:
    """Returns a host as if there were one."""
    return DockerHostInfo()


@pytest.fixture(scope="session")
def rabbitmq_container() -> ContainerInfo:
    return ContainerInfo()


@pytest.fixture(scope="session")
def amqp_direct_url(rabbitmq_container: ContainerInfo) -> URL:
    port = rabbitmq_container.ports["5672/tcp"]
    return URL.build(scheme="amqp", user="guest", password="guest", host=rabbitmq_container.host, port=port, path="//")
