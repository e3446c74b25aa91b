"""Stands in for the suites' Docker client: a copy of this file is `tests/docker_client.py` of an unpacked suite.

The suites of aio-pika and aiormq start RabbitMQ in a container. Here the broker runs already, and the environment names
its ports. Nothing of Headgate is imported: this runs in the suite's own interpreter.
"""

import os
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


class DockerClient:
    """Starts and ends nothing."""

    def __init__(self, docker_host_info: Any = None) -> None:
        pass

    def run(self, image: str, ports: list[str], environment: dict[str, str] | None = None) -> ContainerInfo:
        """Returns the broker that runs."""
        return ContainerInfo()

    def kill(self, container_id: str) -> None:
        """Leaves the broker as it is."""

    def remove(self, container_id: str) -> None:
        """Leaves the broker as it is."""


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
