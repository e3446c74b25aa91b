"""A gateway with access rules and users, and clients of every protocol that meet them."""

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pika
import pytest
from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes

from controller.api.client import User
from controller.api.commands import SetUser
from gateway.config.config import load
from gateway.domain.access_settings import own_access, rights_of
from gateway.process.app import Gateway
from gateway.process.backend import local_backend
from gateway.security.passwords import hash_password
from gateway.sessions.wills import NAMESPACE, will_in
from tests.support.mqtt.paho_client import PahoClient, properties

TIMEOUT_S = 60
SHARE = 30  # topics that one user may make


DENIED, ADMINISTRATIVE = 0x87, 0x98


PASSWORD = b"a secret"
T = TypeVar("T")
ALL = ["#", "$queue/#", "$exchange/#", "$amqp/#", "$kv/#", "$group/#", "$subscription/#"]
OPEN = ["open/#", "own/${client_id}/#", "$queue/open/#", "$kv/default/open/#"]
RULES = [
    {"effect": "allow", "users": ["admin"], "filters": ALL},
    {"effect": "allow", "users": ["ada"], "anonymous": True, "filters": OPEN},
    {"effect": "deny", "users": ["ada"], "filters": ["open/secret/#", "$kv/default/open/secret/#"]},
]


_names = itertools.count()


def fresh(prefix: str) -> str:
    """Returns a name that no other test has used."""
    return f"{prefix}-{next(_names)}"


class RuledGateway:
    """A gateway on a thread of its own, so that clients may block. `sections` are added to its configuration."""

    def __init__(self, data_dir: Path, **sections: Mapping[str, Any]) -> None:
        self._data_dir = data_dir
        self._sections = sections
        self._ready: queue.Queue[BaseException | None] = queue.Queue()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> "RuledGateway":
        self._thread.start()
        if (error := self._ready.get(timeout=TIMEOUT_S)) is not None:
            raise error
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(TIMEOUT_S)

    async def _run(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        overrides: dict[str, Any] = {
            "store": {"data_dir": str(self._data_dir)},
            "listeners": {name: {"port": 0} for name in ("mqtt", "mqtt-ws", "coap", "coap-tcp", "http", "amqp")},
            "rpc": {"enabled": False},
            "admin": {"port": 0},
            "topics": {"index": ["key", "address"], "topics_per_user_max": SHARE, "default_queues": 2},
            "access": {"default": "deny", "rules": RULES},
        }
        for name, section in self._sections.items():
            overrides[name] = {**overrides.get(name, {}), **section}
        config = load(None, {}, overrides)
        try:
            async with local_backend(config) as backend, asyncio.TaskGroup() as tasks:
                self.gateway = gateway = Gateway(config, backend, tasks)
                await gateway.start()
                listening = gateway.listening
                self.ports = {one.name: one.port for one in listening if not one.secure or one.transport == "udp"}
                self.tls_ports = {one.name: one.port for one in listening if one.secure and one.transport == "tcp"}
                for name in ("admin", "ada"):
                    await self.set_user(name)
                self._ready.put(None)
                await self._over.wait()
                await gateway.stop()
                await gateway.stop_admin()
                gateway.hub.cancel_tasks()
        except BaseException as error:
            self._ready.put(error)
            raise

    async def set_user(self, name: str, rights: dict[str, Any] | None = None) -> None:
        user = User(name=name, password=HASHED, rights={} if rights is None else {"access": rights})
        await self.gateway.hub.controller.do(SetUser(user=user))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def call(self, work: Callable[[], T]) -> T:
        async def called() -> T:
            return work()

        return self.do(called())

    def http(self, name: str | None) -> httpx.Client:
        auth = None if name is None else (name, PASSWORD.decode())
        return httpx.Client(base_url=f"http://127.0.0.1:{self.ports['http']}", auth=auth, timeout=TIMEOUT_S)

    def publish(self, *addresses: str, **query: str) -> None:
        """Publishes as a user who may do everything."""
        with self.http("admin") as http:
            for address in addresses:
                assert http.post(f"/topics/{address}", content=address.encode(), params=query).status_code == 201


HASHED = hash_password(PASSWORD)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuledGateway]:
    with RuledGateway(tmp_path_factory.mktemp("access") / "data") as one:
        yield one


class UserClient(PahoClient):
    """A client of a user; its calls return the codes that it is told."""

    def __init__(
        self,
        served: RuledGateway,
        name: str | None,
        client_id: str,
        *,
        version: int = paho.MQTTv5,
        listener: str = "mqtt",  # any other one takes it by WebSocket
        password: bytes = PASSWORD,
    ) -> None:
        user = None if name is None else (name, password.decode())
        options: dict[str, Any] = {} if version == paho.MQTTv5 else {"clean_session": True}
        if listener != "mqtt":
            options["transport"] = "websockets"
        super().__init__(served.ports[listener], version, client_id, user=user, **options)

    def connect(self, *, expiry_s: int = 0) -> int:
        options: dict[str, Any] = {}
        if self.version == paho.MQTTv5:
            options["properties"] = properties(PacketTypes.CONNECT, SessionExpiryInterval=expiry_s)
            options["clean_start"] = False
        super().connect(**options)
        return int(self.code.value)

    def subscribe(self, *filters: str, qos: int = 1) -> list[int]:
        return super().subscribe([(one, qos) for one in filters])

    def publish(self, address: str, qos: int, **options: Any) -> int:
        self.paho.publish(address, b"x", qos, **options)
        return int(self.published.get(timeout=TIMEOUT_S).value)

    def hear(self) -> str:
        """Returns the topic of the next message."""
        return str(self.get().topic)


@pytest.fixture
def mqtt(served: RuledGateway) -> Iterator[Callable[..., UserClient]]:
    made: list[UserClient] = []

    def make(name: str | None, client_id: str = "", **options: Any) -> UserClient:
        made.append(UserClient(served, name, client_id or fresh("client"), **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def amqp(served: RuledGateway) -> Iterator[Callable[[str], pika.BlockingConnection]]:
    made: list[pika.BlockingConnection] = []

    def make(name: str) -> pika.BlockingConnection:
        credentials = pika.PlainCredentials(name, PASSWORD.decode())
        where = pika.ConnectionParameters("127.0.0.1", served.ports["amqp"], credentials=credentials)
        made.append(pika.BlockingConnection(where))
        return made[-1]

    yield make
    for one in made:
        with suppress(pika.exceptions.AMQPError):
            one.close()


def leave_will(client: UserClient, address: str, delay_s: int, **options: Any) -> None:
    """Connects a client with a will, and ends its connection: the will waits."""
    delay = properties(PacketTypes.WILLMESSAGE, WillDelayInterval=delay_s)
    client.paho.will_set(address, b"x", 1, properties=delay, **options)
    assert client.connect(expiry_s=1000) == 0
    client.paho.loop_stop()
    client.paho.socket().close()


async def wills_wait(served: RuledGateway, count: int) -> None:
    """Waits until as many wills wait."""
    while True:
        page = await served.gateway.hub.store.keys.prefix(f"{NAMESPACE}/", limit=100)
        if sum(bool(record.timer) for entry in page if (record := will_in(entry)) is not None) >= count:
            return
        await asyncio.sleep(0.01)


def refused(connection: pika.BlockingConnection, work: Callable[[Any], Any]) -> None:
    """Checks that some work closes its channel with 403."""
    channel = connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        work(channel)
    assert closed.value.reply_code == 403


def ruled(*allowed: str, otherwise: str = "deny", denied: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns the rights of a user of the cluster; a rule is written as "publish:a/#"."""
    rules = [
        {"effect": effect, "actions": [action], "filters": [pattern]}
        for effect, rules in (("allow", allowed), ("deny", denied))
        for action, _, pattern in (rule.partition(":") for rule in rules)
    ]
    return dict(rights_of(own_access({"otherwise": otherwise, "rules": rules})))
