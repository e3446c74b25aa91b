"""Brokers of other people, as processes, for bridges to read from: mosquitto where it is installed, and amqtt's."""

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

from tests.support.process.certificates import Issued
from tests.support.process.ports import free_port

TIMEOUT_S = 60


class Mosquitto:
    """A broker whose messages for absent clients survive `stop`, not `kill`; with a certificate also over TLS."""

    versions: ClassVar = ("5.0", "3.1.1")
    program = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
    missing = "" if Path(program).exists() else "mosquitto is not installed"

    def __init__(self, directory: Path, certificate: Issued | None = None) -> None:
        self.port = free_port()
        self.tls_port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._file = directory / "mosquitto.conf"
        self._file.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n"
            f"user root\npersistence true\npersistence_location {directory}/\n"  # root keeps its rights, if it is root
            + (
                f"listener {self.tls_port} 127.0.0.1\n"
                f"certfile {certificate.cert_file}\nkeyfile {certificate.key_file}\n"
                if certificate
                else ""
            )
        )
        self._log = directory / "mosquitto.log"

    @property
    def command(self) -> list[str]:
        return [self.program, "-c", str(self._file)]

    def start(self) -> None:
        """Starts the broker, and waits until it takes connections."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(self._log.read_text()[-2_000:]) from None
                time.sleep(0.02)

    def kill(self) -> None:
        """Kills the broker with kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stops the broker in order."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(TIMEOUT_S)
            self.process = None


class Amqtt(Mosquitto):
    """amqtt's broker: 3.1.1 only, and nothing survives it."""

    versions: ClassVar = ("3.1.1",)
    missing = ""

    @property
    def command(self) -> list[str]:
        return [sys.executable, __file__, str(self.port)]


async def _amqtt(port: int) -> None:
    from amqtt.broker import Broker

    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(_amqtt(int(sys.argv[1])))
