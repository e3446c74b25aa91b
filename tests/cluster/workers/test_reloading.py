"""SIGHUP: users and access rules are those of the file, in one process and in several, for who is there too."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.mqtt.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Publish,
    Subscribe,
    SubscriptionRequest,
)
from gateway.security.passwords import hash_password
from tests.support.mqtt.packet_client import PacketClient
from tests.support.process.gateways import GatewayProcess

pytestmark = pytest.mark.slow

WAIT_S = 60.0
HASHED = hash_password(b"bob-secret")
ADMINISTRATIVE, DENIED, ACCEPTED = 0x98, 0x87, 0
CLIENTS = 4  # of a name: over two workers some are at each, most likely


class UserClient(PacketClient):
    """A client of a user, or without a name."""

    def __init__(self, gateway: GatewayProcess, name: str, number: int = 0) -> None:
        super().__init__(gateway.port("mqtt"))
        password = f"{name}-secret".encode() if name else None
        connect = Connect(version=5, client_id=f"{name}{number}", username=name or None, password=password)
        self.connack = self.ask(connect)

    def publish(self, topic: str) -> int:
        """Returns the PUBACK's code; a code that says only that nobody subscribes counts as 0."""
        code: int = self.ask(Publish(topic=topic, payload=b"x", qos=1, packet_id=7)).code & ~0x10
        return code

    def subscribe(self, pattern: str) -> None:
        answer = self.ask(Subscribe(packet_id=8, requests=(SubscriptionRequest(pattern=pattern),)))
        assert answer.codes == (0,)


class Reloaded:
    """A gateway and its file."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.file = directory / "headgate.toml"
        (directory / "alice").write_text("alice-secret\n")
        self._alice = directory / "alice"
        self.write()
        self.gateway = GatewayProcess(directory / "data", "--config", str(self.file), *arguments)
        self.processes = 2 if arguments else 1
        self._done = 0
        self._clients: list[UserClient] = []

    def client(self, name: str, number: int = 0) -> UserClient:
        self._clients.append(UserClient(self.gateway, name, number))
        return self._clients[-1]

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.gateway.close()

    def write(self, *, bob: bool = True, filters: str = "d/#", rest: str = "") -> None:
        users = f'[auth.users.alice]\npassword_file = "{self._alice}"\n'
        users += f'[auth.users.bob]\npassword_hash = "{HASHED}"\n' if bob else ""
        rules = f'[access]\ndefault = "deny"\n[[access.rules]]\neffect = "allow"\nfilters = ["{filters}"]\n'
        self.file.write_text(f'{users}{rules}{rest}[log]\nformat = "json"\n')

    def said(self, event: str) -> list[dict[str, Any]]:
        lines = [line for line in self.gateway.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in map(json.loads, lines) if line["event"].startswith(event)]

    def reload(self) -> None:
        """Sends SIGHUP, and waits until every process has the new configuration."""
        self._done += self.processes
        self.hang_up()
        self.until("users and access rules are", self._done)

    def hang_up(self) -> None:
        assert self.gateway.process is not None
        os.kill(self.gateway.process.pid, signal.SIGHUP)

    def until(self, event: str, count: int) -> dict[str, Any]:
        deadline = time.monotonic() + WAIT_S
        while len(found := self.said(event)) < count:
            assert time.monotonic() < deadline, self.gateway.log.read_text()[-4_000:]
            time.sleep(0.02)
        return found[-1]


@pytest.fixture(params=[(), ("--workers", "2")], ids=["alone", "workers"])
def reloaded(request, tmp_path):
    reloaded = Reloaded(tmp_path, *request.param)
    reloaded.gateway.start()
    yield reloaded
    reloaded.close()


def test_users_and_rules_are_read_again(reloaded):
    alices = [reloaded.client("alice", n) for n in range(CLIENTS)]
    bobs = [reloaded.client("bob", n) for n in range(CLIENTS)]
    nobody = reloaded.client("")
    for one in (*alices, nobody):
        one.subscribe("d/#")

    # Rights change: for connected publishers, and for subscribers.
    reloaded.write(filters="d/open")
    reloaded.reload()
    assert {one.publish("d/hidden") for one in (*bobs, *alices, nobody)} == {DENIED}
    reloaded.write(rest='[[access.rules]]\neffect = "deny"\nactions = ["subscribe"]\nfilters = ["#"]\n')
    reloaded.reload()
    assert {one.publish("d/open") for one in bobs} == {ACCEPTED}
    assert all(one.is_well() for one in (*alices, nobody))

    # Users change: connections of removed users are closed, all others stay.
    reloaded.write(bob=False)
    reloaded.reload()
    farewells = [one.hear() for one in bobs]
    assert [(type(one), one.code) for one in farewells] == [(Disconnect, ADMINISTRATIVE)] * CLIENTS
    assert reloaded.client("bob").connack.code == 0x86
    assert all(one.is_well() for one in (*alices, nobody))
    reloaded.write()
    reloaded.reload()
    assert isinstance(connack := reloaded.client("bob").connack, Connack)
    assert connack.code == ACCEPTED


def test_a_file_with_a_mistake_changes_nothing_and_what_needs_a_restart_is_said(reloaded):
    bob = reloaded.client("bob")
    reloaded.file.write_text('[auth]\nanonymus = "nobody"\n')
    reloaded.hang_up()
    (mistake,) = reloaded.until("the new configuration is invalid", 1)["mistakes"]
    assert mistake.startswith("auth.anonymus")
    assert bob.publish("d/x") == ACCEPTED
    assert reloaded.client("bob", 1).connack.code == ACCEPTED

    reloaded.write(filters="other/#", rest="[limits]\nconnections_per_address = 1\n")
    reloaded.reload()
    assert reloaded.until("changes in these sections take effect at the next restart", 1)["sections"] == ["limits"]
    assert bob.publish("d/x") == DENIED


def test_requests_on_one_connection_are_judged_anew(tmp_path):
    reloaded = Reloaded(tmp_path)
    reloaded.gateway.start()
    try:
        with httpx.Client(base_url=reloaded.gateway.url, timeout=WAIT_S) as client:
            bob = {"auth": ("bob", "bob-secret")}
            assert client.post("/topics/d/x", content=b"x", **bob).is_success
            assert client.post("/topics/d/x", content=b"x", auth=("alice", "alice-secret")).is_success
            reloaded.write(bob=False)
            reloaded.reload()
            assert client.post("/topics/d/x", content=b"x", **bob).status_code == 401
            assert client.post("/topics/d/x", content=b"x", auth=("alice", "alice-secret")).is_success
    finally:
        reloaded.close()
