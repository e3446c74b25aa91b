"""RabbitMQ as a process of a test's own, where it is installed: the broker that clients of AMQP 0-9-1 expect."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import IO

from tests.support.mqtt.upstreams import free_port
from tests.support.process.certificates import Issued

START_TIMEOUT_S = 240
STOP_TIMEOUT_S = 30
SCRIPTS = Path("/usr/lib/rabbitmq/bin")  # the distribution's; /usr/sbin has wrappers that change the user

MISSING = "" if (SCRIPTS / "rabbitmq-server").exists() else "rabbitmq-server is not installed"


class RabbitMQ:
    """One broker without plug-ins, its data in a directory of the test's; `guest` may connect from here.

    With a certificate, whose authority's file is `ca_file`, it listens over TLS, too.
    """

    def __init__(self, directory: Path, certificate: Issued | None = None, ca_file: Path | None = None) -> None:
        self.port = free_port()
        self.tls_port = free_port()
        self._log = directory / "rabbitmq.log"
        self._process: subprocess.Popen[bytes] | None = None
        plugins = directory / "enabled_plugins"
        plugins.write_text("[].")
        config = directory / "rabbitmq.conf"
        tls = (
            f"listeners.ssl.local = 127.0.0.1:{self.tls_port}\nssl_options.cacertfile = {ca_file}\n"
            f"ssl_options.certfile = {certificate.cert_file}\nssl_options.keyfile = {certificate.key_file}\n"
            if certificate
            else ""
        )
        config.write_text(f"listeners.tcp.local = 127.0.0.1:{self.port}\n{tls}")
        self._environ = {
            **os.environ,
            "HOME": str(directory),  # of the Erlang cookie
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(free_port()),
            "RABBITMQ_NODENAME": f"headgate-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(directory / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "rabbitmq-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",  # no busy waiting
        }

    @property
    def amqp_port(self) -> int:
        """The port of AMQP."""
        return self.port

    @property
    def pid(self) -> int:
        """The process of Erlang, which scripts have started."""
        assert self._process is not None
        return int(subprocess.check_output(["pgrep", "--session", str(self._process.pid), "beam.smp"]))

    def start(self) -> "RabbitMQ":
        """Starts the server, and waits until it takes connections."""
        with self._log.open("ab") as log:
            self._process = self._run(log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"RabbitMQ did not start:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.1)
        return self

    def _run(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [str(SCRIPTS / "rabbitmq-server")],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=self._environ,
            start_new_session=True,  # its shells and helpers end with it
        )

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as peer:
                peer.settimeout(5)
                peer.sendall(b"AMQP\x00\x00\x09\x01")
                return bool(peer.recv(1))
        except OSError:
            return False

    def kill(self) -> None:
        """Kills the server's processes, as a loss of power would end them."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def close(self) -> None:
        """See that it is gone, and its port mapper with it."""
        self.kill()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while True:
            ended = subprocess.run(["epmd", "-kill"], env=self._environ, check=False, capture_output=True, text=True)
            if "not allowed" not in ended.stdout + ended.stderr or time.monotonic() > deadline:
                return
            time.sleep(0.1)  # it has not noticed the end of the broker yet
