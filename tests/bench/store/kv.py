"""Keys and values: puts and gets a second, Headgate beside etcd, one node each, both synced before they answer. JSON.

python -m tests.bench.store.kv [--seconds 3] [--rounds 3] [--clients 64] [--keys 10000] [--bytes 100] [--dir DIR]

Every client has one connection and one request under way. Headgate and etcd's JSON gateway are asked by the same code,
over HTTP/1.1. That gateway is a hop of its own, so etcd is asked over gRPC, too, with the bytes of protobuf messages
written by hand, so that nothing but gRPC's own client is measured with it: take the better of the two for etcd. Client
and server share the machine, so the client's share of a processor is shown. `in process` is the store without any
server: what a proxy in the same process pays. All servers run all the time; a round asks each in turn. Gets are
linearizable with all of them. Where etcd is not installed (Debian: etcd-server) that is said, and Headgate is measured
alone.
"""

import argparse
import asyncio
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import uvloop

from store.base.errors import StoreError
from store.local.local import LocalStore
from tests.bench.options import made_directory
from tests.bench.procfs import memory_mb
from tests.bench.servers import free_base, free_port
from tests.bench.store.studies import Rows

START_S = 30.0
ADMIN_PORT, HTTP_PORT = 8088, 8080
PORTS = (1883, 8083, 5683, 5672, 8080, 8081, 8088)


class HttpClient(asyncio.Protocol):
    """One HTTP/1.1 connection that asks again when it is answered; counts what was answered 2xx."""

    def __init__(self, following: Callable[[], bytes], until: float, ended: asyncio.Future[None]) -> None:
        self.following, self.until, self.ended = following, until, ended
        self.buffered, self.done, self.refused = b"", 0, 0
        self.asked = 0.0
        self.took: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.asked = time.perf_counter()
        if self.asked >= self.until:
            self.transport.close()
            return
        self.transport.write(self.following())

    def data_received(self, data: bytes) -> None:
        self.buffered += data
        head, gap, body = self.buffered.partition(b"\r\n\r\n")
        if not gap:
            return
        lower = head.lower()
        at = lower.log.find(b"content-length: ")
        if at < 0 or len(body) < int(lower[at + 16 :].split(b"\r\n", 1)[0]):
            return
        self.buffered = b""
        if head[9:10] == b"2":
            self.done += 1
            self.took.append(time.perf_counter() - self.asked)
        else:
            self.refused += 1
        self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def summary(done: int, refused: int, took: list[float], seconds: float, cpu_s: float) -> dict[str, float]:
    took.sort()
    return {
        "per_s": round(done / seconds, 1),
        "p50_ms": round(took[len(took) // 2] * 1e3, 3) if took else 0.0,
        "p99_ms": round(took[len(took) * 99 // 100] * 1e3, 3) if took else 0.0,
        "refused": refused,
        "client_cpu_share": round(cpu_s / seconds, 2),
    }


async def over_http(port: int, build: Callable[[], bytes], options: argparse.Namespace) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    started, cpu = time.perf_counter(), time.process_time()
    until = started + options.seconds
    clients = []
    for _ in range(options.clients):
        ended = loop.create_future()
        _, client = await loop.create_connection(lambda ended=ended: HttpClient(build, until, ended), "127.0.0.1", port)
        clients.append(client)
    await asyncio.gather(*(client.ended for client in clients))
    took = [one for client in clients for one in client.took]
    spent = time.perf_counter() - started
    done, refused = sum(client.done for client in clients), sum(client.refused for client in clients)
    return summary(done, refused, took, spent, time.process_time() - cpu)


class Keys:
    """The requested keys: random ones, with values that differ."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.chance = random.Random(1)
        self.count = options.keys
        self.value = self.chance.randbytes(options.bytes)

    def key(self) -> str:
        return f"bench/{self.chance.randrange(self.count):07}"


# ---- Headgate


class Headgate:
    name = "headgate"

    def __init__(self, base: int, keys: Keys) -> None:
        self.port = HTTP_PORT + base
        self.keys = keys

    def put(self) -> bytes:
        head = (
            f"PUT /kv/{self.keys.key()} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(self.keys.value)}\r\n\r\n"
        )
        return head.encode() + self.keys.value

    def get(self) -> bytes:
        return f"GET /kv/{self.keys.key()} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()

    async def measure(self, what: str, options: argparse.Namespace) -> dict[str, float]:
        return await over_http(self.port, getattr(self, what), options)


@contextmanager
def headgate(directory: Path):
    base = free_base(PORTS)
    command = [str(Path(sys.executable).with_name("headgate")), "serve", "--data-dir", str(directory / "headgate")]
    with running([*command, "--port-offset", str(base)], f"http://127.0.0.1:{ADMIN_PORT + base}/readyz") as pid:
        yield base, pid


# ---- etcd


class EtcdGateway:
    """etcd's own JSON gateway."""

    name = "etcd (JSON)"

    def __init__(self, port: int, keys: Keys) -> None:
        self.port = port
        self.keys = keys
        self.value = b64encode(keys.value).decode()

    def request(self, path: str, body: str) -> bytes:
        head = f"POST /v3/kv/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()

    def put(self) -> bytes:
        key = b64encode(self.keys.key().encode()).decode()
        return self.request("put", f'{{"key":"{key}","value":"{self.value}"}}')

    def get(self) -> bytes:
        key = b64encode(self.keys.key().encode()).decode()
        return self.request("range", f'{{"key":"{key}"}}')

    async def measure(self, what: str, options: argparse.Namespace) -> dict[str, float]:
        return await over_http(self.port, getattr(self, what), options)


def field(number: int, data: bytes) -> bytes:
    """Returns a length-delimited field of protobuf."""
    size, length = len(data), b""
    while size > 0x7F:
        length += bytes((size & 0x7F | 0x80,))
        size >>= 7
    return bytes((number << 3 | 2,)) + length + bytes((size,)) + data


class EtcdGrpc:
    """etcd's native interface: PutRequest and RangeRequest are key = 1, value = 2."""

    name = "etcd (gRPC)"

    def __init__(self, port: int, keys: Keys) -> None:
        self.target = f"127.0.0.1:{port}"
        self.keys = keys

    def put(self) -> bytes:
        return field(1, self.keys.key().encode()) + field(2, self.keys.value)

    def get(self) -> bytes:
        return field(1, self.keys.key().encode())

    async def measure(self, what: str, options: argparse.Namespace) -> dict[str, float]:
        method = f"/etcdserverpb.KV/{'Put' if what == 'put' else 'Range'}"
        build, took, refused = getattr(self, what), [], 0
        started, cpu = time.perf_counter(), time.process_time()

        async def client(channel: grpc.aio.Channel) -> None:
            nonlocal refused
            call = channel.unary_unary(method)
            while (asked := time.perf_counter()) < started + options.seconds:
                try:
                    await call(build())
                    took.append(time.perf_counter() - asked)
                except grpc.RpcError:
                    refused += 1

        options_of_channel = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
        channels = [grpc.aio.insecure_channel(self.target, options_of_channel) for _ in range(options.clients)]
        await asyncio.gather(*map(client, channels))
        spent = time.perf_counter() - started
        for channel in channels:
            await channel.close()
        return summary(len(took), refused, took, spent, time.process_time() - cpu)


@contextmanager
def etcd(directory: Path):
    port = free_port()
    peer = free_port()
    client, own = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
    command = ["etcd", "--data-dir", str(directory / "etcd"), "--log-level", "error", "--name", "bench"]
    command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", own]
    command += ["--initial-advertise-peer-urls", own, "--initial-cluster", f"bench={own}"]
    with running(command, f"{client}/health") as pid:
        yield port, pid


# ---- the store alone


class InProcess:
    name = "in process"

    def __init__(self, store: LocalStore, keys: Keys) -> None:
        self.store = store
        self.keys = keys

    async def measure(self, what: str, options: argparse.Namespace) -> dict[str, float]:
        took, refused = [], 0
        started, cpu = time.perf_counter(), time.process_time()

        async def client() -> None:
            nonlocal refused
            while (asked := time.perf_counter()) < started + options.seconds:
                try:
                    if what == "put":
                        await self.store.keys.put(self.keys.key(), self.keys.value, namespace="bench")
                    else:
                        await self.store.keys.get(self.keys.key(), namespace="bench")
                        await asyncio.sleep(0)  # a get never waits: the others have their turn
                except StoreError:
                    refused += 1
                took.append(time.perf_counter() - asked)

        await asyncio.gather(*(client() for _ in range(options.clients)))
        spent = time.perf_counter() - started
        return summary(len(took) - refused, refused, took, spent, time.process_time() - cpu)


# ---- all of them


@contextmanager
def running(command: list[str], ready: str):
    """Yields a running server, and ends it afterwards."""
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            until = time.monotonic() + START_S
            while not answers(ready):
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    raise SystemExit(f"{command[0]} did not start: {log.read()[-2000:].decode('utf-8', 'replace')}")
                time.sleep(0.05)
            yield process.pid
        finally:
            process.terminate()


def answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2):
            return True
    except OSError:
        return False


async def rounds(servers: list[object], options: argparse.Namespace) -> dict[str, dict[str, list[dict[str, float]]]]:
    found: dict[str, dict[str, list[dict[str, float]]]] = {one.name: {"put": [], "get": []} for one in servers}
    for _ in range(options.rounds):
        for what in ("put", "get"):
            for one in servers:
                found[one.name][what].append(await one.measure(what, options))
    return found


async def measured(
    directory: Path, stack: ExitStack, options: argparse.Namespace
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Returns every server's runs; `peak_mb` is the most memory that the server's process ever had."""
    keys = Keys(options)
    base, headgate_pid = stack.enter_context(headgate(directory))
    servers: list[object] = [Headgate(base, keys)]
    pids: dict[str, int | str] = {servers[0].name: headgate_pid}
    if shutil.which("etcd"):
        port, etcd_pid = stack.enter_context(etcd(directory))
        servers += [EtcdGateway(port, keys), EtcdGrpc(port, keys)]
        pids |= {EtcdGateway.name: etcd_pid, EtcdGrpc.name: etcd_pid}
    async with await LocalStore.open(directory / "store") as store:
        servers.append(InProcess(store, keys))
        for one in servers:  # warm, and with keys to get
            await one.measure("put", argparse.Namespace(**{**vars(options), "seconds": min(options.seconds, 1.0)}))
        found = await rounds(servers, options)
    for name, kinds in found.items():
        peak = {"peak_mb": memory_mb("VmHWM", pids.get(name, "self"))}
        for runs in kinds.values():
            runs[:] = [run | peak for run in runs]
    return found


async def measure_case(directory: Path, *, seconds: float, rounds: int, clients: int = 64, keys: int = 10_000) -> Rows:
    """Measures one case of the store's figures (`tests.bench.store`)."""
    options = argparse.Namespace(seconds=seconds, rounds=rounds, clients=clients, keys=keys, bytes=100)
    with ExitStack() as stack:
        found = await measured(directory, stack, options)
    return [(f"{what}, {name}", run) for what in ("put", "get") for name in found for run in found[name][what]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--dir", type=made_directory)
    options = parser.parse_args()
    load = {name: getattr(options, name) for name in ("seconds", "rounds", "clients", "keys", "bytes")}
    report: dict[str, object] = {"load": load}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.dir)))
        if shutil.which("etcd"):
            said = subprocess.run(["etcd", "--version"], capture_output=True, text=True, check=True).stdout
            report["etcd_version"] = said.split("\n", 1)[0].rpartition(" ")[2]
        else:
            report["skipped"] = {"etcd": "etcd is not installed (Debian: etcd-server)"}
        found = uvloop.run(measured(directory, stack, options))
    report["servers"] = {
        name: {
            what: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            | {"runs_per_s": [run["per_s"] for run in runs]}
            for what, runs in kinds.items()
        }
        for name, kinds in found.items()
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
