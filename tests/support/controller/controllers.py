"""Controllers for tests: nodes over a network in memory, nodes with real sockets in one process, and real processes."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
import urllib.request

from controller.disk.driver import Driver
from controller.node.node import ControllerNode
from controller.node.service import ControllerService
from controller.raft import Membership, MemoryStorage, RaftMember, decode, encode, first_snapshot
from controller.raft.errors import StorageFailed
from controller.remote.remote import RemoteController
from store.rpc.credentials import CredentialFiles
from tests.support.process.ports import free_port
from tests.support.process.waiting import until

TICK_S = 0.01


def now_ms():
    return time.time_ns() // 1_000_000


class Words:
    """A state machine that holds every command it was given; one that begins with "no" is refused."""

    def __init__(self):
        self.words = []
        self.moves = 0

    def apply(self, entry):
        from controller.api.client import TopicExists

        word = entry.data.decode()
        if word.startswith("no"):
            raise TopicExists(word)
        self.words.append(word)
        return len(self.words)

    def restore(self, snapshot):
        self.words = snapshot.data.decode().split()

    def snapshot(self):
        return " ".join(self.words).encode()

    def moved(self):
        self.moves += 1


class Network:
    """Drivers in one process; messages go through their bytes, as long as nobody is `cut` off."""

    def __init__(self, ids=(1, 2, 3), **options):
        self.cut = set()
        self.drivers, self.machines, self.storages, self.tasks = {}, {}, {}, {}
        self.options = {"tick_s": None} | options
        self.membership = Membership.of(*(RaftMember(id=id_) for id_ in ids))
        for id_ in ids:
            self.add(id_, first_snapshot(self.membership))

    def add(self, id_, first=None, storage=None):
        self.storages[id_] = storage or self.storages.get(id_) or MemoryStorage(first)
        self.machines[id_] = Words()
        self.drivers[id_] = Driver(id_, self.storages[id_], self.machines[id_], send=self.send, **self.options)
        self.tasks[id_] = asyncio.get_running_loop().create_task(self.drivers[id_].run())
        return self.drivers[id_]

    def send(self, messages):
        for message in messages:
            if message.to in self.drivers and not {message.to, message.sender} & self.cut:
                asyncio.get_running_loop().call_soon(self._arrive, message.to, encode(message))

    def _arrive(self, to, data):
        if to in self.drivers and to not in self.cut and not self.tasks[to].done():
            with contextlib.suppress(StorageFailed):  # its task says so
                self.drivers[to].step(decode(data))

    async def lead(self, id_=None):
        """Lets time pass until a controller leads, or until this one does."""
        async with asyncio.timeout(60):
            while True:
                for at, driver in self.drivers.items():
                    if at not in self.cut and driver.status.role.value == "leader" and id_ in {None, at}:
                        return driver
                for at, driver in self.drivers.items():
                    if (id_ in {None, at} or driver.status.leader is not None) and not self.tasks[at].done():
                        driver.tick()
                for _ in range(20):
                    await asyncio.sleep(0)
                await asyncio.sleep(0.001)

    async def settle(self, ticks=3):
        for _ in range(ticks):
            for at, driver in self.drivers.items():
                if not self.tasks[at].done():
                    driver.tick()
            await asyncio.sleep(0.005)

    async def close(self):
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        for driver in self.drivers.values():
            driver.close()


class Controllers:
    """Controllers with real sockets and disks, in this process."""

    def __init__(self, directory, count=3, **options):
        self.directory = directory
        self.addresses = {id_: f"127.0.0.1:{free_port()}" for id_ in range(1, count + 1)}
        self.options = {"tick_s": TICK_S, "now_ms": now_ms} | options
        self.nodes, self.services, self.remotes = {}, {}, []
        self.server_credentials = None

    async def start(self, *ids, join=False):
        for id_ in ids or self.addresses:
            self.addresses.setdefault(id_, f"127.0.0.1:{free_port()}")
            self.nodes[id_] = await ControllerNode.open(
                self.directory / str(id_),
                node_id=id_,
                members=dict(self.addresses),
                join=join,
                address=self.addresses[id_],
                node=f"c{id_}",
                **self.options,
            )
            self.services[id_] = await ControllerService.start(
                self.nodes[id_], self.addresses[id_], credentials=self.server_credentials
            )
        return self

    async def stop(self, *ids):
        for id_ in ids or list(self.nodes):
            await self.services.pop(id_).stop()
            await self.nodes.pop(id_).close()

    def remote(self, *ids, **options):
        chosen = [self.addresses[id_] for id_ in ids or self.addresses]
        self.remotes.append(RemoteController(chosen, **({"now_ms": now_ms} | options)))
        return self.remotes[-1]

    async def leader(self):
        await until(lambda: any(node.leading for node in self.nodes.values()))
        return next(id_ for id_, node in self.nodes.items() if node.leading)

    async def followers(self):
        leader = await self.leader()
        return [id_ for id_ in self.nodes if id_ != leader]

    async def __aenter__(self):
        return await self.start()

    async def __aexit__(self, *_):
        for remote in self.remotes:
            await remote.close()
        with contextlib.suppress(KeyError):
            await self.stop()


def certificates(directory):
    """Makes a CA, certificates of it for "node" and "client", and a "stranger" that is its own."""

    def run(*arguments):
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    directory.mkdir()
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "stranger"):
        run("req", "-x509", *key, "-days", "2", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for name in ("node", "client"):
        run("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        run(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-out", f"{name}.pem", "-days", "2", "-extfile", "names"),
        )
    return lambda name: CredentialFiles(directory / f"{name}.pem", directory / f"{name}.key", directory / "ca.pem")


class ControllerProcess:
    """`headgate controller` in a process of its own; `kill` is kill -9."""

    def __init__(self, directory, id_, addresses, *arguments):
        self.id = id_
        self.admin_port = free_port()
        self.log = directory / f"c{id_}.log"
        self.directory = directory
        self.data_dir = directory / f"c{id_}"
        self.addresses = addresses
        self.arguments = arguments
        self.process = None

    def spawn(self, *arguments):
        """Starts the process, and does not wait for it."""
        config = self.directory / f"c{self.id}.toml"
        listed = ", ".join(f'{id_} = "{address}"' for id_, address in sorted(self.addresses.items()))
        port = self.addresses[self.id].rpartition(":")[2]
        config.write_text(
            f"[cluster]\nnode = 'c{self.id}'\ncontrollers = {{ {listed} }}\n"
            f"[controller]\nid = {self.id}\nport = {port}\ndata_dir = '{self.data_dir}'\n"
            f"[admin]\nport = {self.admin_port}\n"
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", "controller", "-c", str(config), *self.arguments, *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        return self

    def wait(self, timeout_s=180):
        """Waits until the process is ready."""
        deadline = time.monotonic() + timeout_s
        while self.page("/readyz") is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"controller {self.id} is not ready:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.02)
        return self

    def page(self, path):
        """Returns a page of the admin port; returns None where the status is not 2xx."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}", timeout=5) as answer:
                return answer.read().decode()
        except OSError:
            return None

    def status(self):
        return json.loads(self.page("/status"))

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait(20)

    def stop(self):
        """Asks the process to stop, and returns its exit status."""
        self.process.terminate()
        return self.process.wait(20)


class ControllerProcesses:
    """A cluster's controllers as processes."""

    def __init__(self, directory, count=3):
        self.directory = directory
        self.addresses = {id_: f"127.0.0.1:{free_port()}" for id_ in range(1, count + 1)}
        self.all = {id_: ControllerProcess(directory, id_, dict(self.addresses)) for id_ in self.addresses}

    def start(self, *ids):
        for id_ in ids or self.all:
            self.all[id_].spawn()
        for id_ in ids or self.all:
            self.all[id_].wait()
        return self

    def join(self, id_):
        self.addresses[id_] = f"127.0.0.1:{free_port()}"
        self.all[id_] = ControllerProcess(self.directory, id_, dict(self.addresses), "--join")
        return self.all[id_].spawn()

    def leader(self):
        """Waits until a controller leads, and returns its process."""
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            for one in self.all.values():
                if one.process.poll() is None and "headgate_controller_leading 1.0" in (one.page("/metrics") or ""):
                    return one
            time.sleep(0.02)
        raise AssertionError("nobody leads")

    def close(self):
        for one in self.all.values():
            if one.process is not None and one.process.poll() is None:
                one.kill()
