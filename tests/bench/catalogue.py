"""Headgate and its peers: what each needs to run here, and what an acknowledgement of its means."""

import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.bench.servers import HOST, Launch, ServerSpec, free_base, free_port

ON_DISK = "on disk (fdatasync) before every acknowledgement"
IN_MEMORY = "in memory, nothing on disk"
NOTHING = "nothing is kept"
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # as the distribution's package has it
HEADGATE_PORTS = {
    "mqtt": 1883,
    "mqtt-ws": 8083,
    "coap": 5683,
    "amqp": 5672,
    "http": 8080,
    "rpc": 8081,
    "admin": 8088,
}


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout + done.stderr


def _found(*programs: str) -> str | None:
    """Returns the first of some programs that is installed; also looks in /usr/sbin, which is not in every PATH."""
    for program in programs:
        path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
        if path:
            return path
    return None


def _needs_program(*programs: str) -> Callable[[], str | None]:
    return lambda: None if _found(*programs) else f"{programs[0]} is not installed"


def _needs_package(package: str) -> Callable[[], str | None]:
    def missing() -> str | None:
        try:
            version(package)
        except PackageNotFoundError:
            return f"the Python package {package} is not installed"
        return None

    return missing


def _needs_spark() -> str | None:
    return _needs_package("pyspark")() or _needs_program("java")()


def _version_of(*programs: str, ask: str, pattern: str = r"\d+(?:\.\d+)+") -> Callable[[], str]:
    def ask_it() -> str:
        found = re.search(pattern, _output(_found(*programs) or programs[0], ask))
        return found[0] if found else "unknown"

    return ask_it


# ---- Headgate


def _headgate(directory: Path) -> Launch:
    offset = free_base(HEADGATE_PORTS.values())
    command = (str(Path(sys.executable).with_name("headgate")), "serve")
    options = ("--data-dir", str(directory / "data"), "--port-offset", str(offset))
    ports = {name: port + offset for name, port in HEADGATE_PORTS.items()}
    return Launch(command=(*command, *options), ports=ports)


def _headgate_version() -> str:
    """Returns the version with its commit, and whether the tree was changed since."""
    commit = _output("git", "describe", "--always", "--dirty=, changed", "--exclude=*").strip()
    return (
        f"{version('headgate')} ({commit})" if re.fullmatch(r"[0-9a-f]+(, changed)?", commit) else version("headgate")
    )


# ---- brokers


def _mosquitto(directory: Path) -> Launch:
    port = free_port()
    config = directory / "mosquitto.conf"
    lines = [f"listener {port} {HOST}", "allow_anonymous true", "set_tcp_nodelay true"]
    # As root it would change its user, and with that forget to end with us (prctl(2)).
    lines += ["persistence false", "max_queued_messages 0", "log_type error", "user root"]
    config.write_text("\n".join(lines) + "\n")
    return Launch(command=(_found("mosquitto") or "", "-c", str(config)), ports={"mqtt": port})


def _nats(directory: Path) -> Launch:
    port, clients = free_port(), free_port()
    config = directory / "nats.conf"
    store = f'jetstream {{ store_dir: "{directory / "data"}" }}'
    mqtt = f'mqtt {{ host: "{HOST}", port: {port} }}'
    config.write_text(f'server_name: bench\nhost: "{HOST}"\nport: {clients}\n{store}\n{mqtt}\n')
    return Launch(command=(_found("nats-server") or "", "-c", str(config)), ports={"mqtt": port})


def _rabbitmq(directory: Path) -> Launch:
    amqp, mqtt, distribution, names = (free_port() for _ in range(4))
    config, plugins = directory / "rabbitmq.conf", directory / "plugins"
    lines = [f"listeners.tcp.1 = {HOST}:{amqp}", f"mqtt.listeners.tcp.1 = {HOST}:{mqtt}", "mqtt.allow_anonymous = true"]
    config.write_text("\n".join(lines) + "\n")
    plugins.write_text("[rabbitmq_mqtt].\n")
    environ = {
        "HOME": str(directory),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_CONFIG_FILE": str(config),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_DIST_PORT": str(distribution),
        "ERL_EPMD_PORT": str(names),  # a name server of its own, which is ended with it
        "ERL_EPMD_ADDRESS": HOST,
    }
    stop_names = (_found("epmd") or "true", "-kill")
    return Launch(command=(str(RABBITMQ),), ports={"amqp": amqp, "mqtt": mqtt}, environ=environ, clean_up=stop_names)


def _rabbitmq_version() -> str:
    versions = [path.name.partition("-")[2] for path in (RABBITMQ.parents[1] / "lib").glob("rabbitmq_server-*")]
    return max(versions, default="unknown")


# ---- bare servers


def _python_peer(program: str, protocol: str, *options: str) -> Callable[[Path], Launch]:
    def launch(_: Path) -> Launch:
        port = free_port()
        command = (sys.executable, "-m", f"tests.bench.peers.{program}", "--host", HOST, "--port", str(port))
        return Launch(command=(*command, *options), ports={protocol: port})

    return launch


def _bare_log(directory: Path) -> Launch:
    port, program = free_port(), "tests.bench.peers.bare_log"
    command = (sys.executable, "-m", program, "--host", HOST, "--port", str(port), "--file", str(directory / "log"))
    return Launch(command=command, ports={"mqtt": port})


def _libcoap(_: Path) -> Launch:
    port = free_port()
    program = _found(*LIBCOAP) or ""
    return Launch(command=(program, "-A", HOST, "-p", str(port), "-d", "100"), ports={"coap": port})


LIBCOAP = ("coap-server-notls", "coap-server-openssl", "coap-server-gnutls", "coap-server")

SERVERS: Mapping[str, ServerSpec] = {
    spec.name: spec
    for spec in (
        ServerSpec(
            name="headgate",
            keeps=dict.fromkeys(HEADGATE_PORTS, ON_DISK),
            missing=lambda: None,
            version=_headgate_version,
            launch=_headgate,
        ),
        ServerSpec(
            name="mosquitto",
            keeps={"mqtt": IN_MEMORY},
            missing=_needs_program("mosquitto"),
            version=_version_of("mosquitto", ask="-h"),
            launch=_mosquitto,
        ),
        ServerSpec(
            name="nats",
            keeps={"mqtt": "JetStream's files; synced every two minutes, not before an acknowledgement"},
            missing=_needs_program("nats-server"),
            version=_version_of("nats-server", ask="--version"),
            launch=_nats,
        ),
        ServerSpec(
            name="rabbitmq",
            keeps={
                "mqtt": "what no queue is bound for is dropped; to a subscriber at QoS 0 nothing is on disk",
                "amqp": "persistent messages in a durable queue, on disk before they are confirmed",
            },
            missing=lambda: None if RABBITMQ.exists() else "rabbitmq-server is not installed",
            version=_rabbitmq_version,
            launch=_rabbitmq,
        ),
        ServerSpec(
            name="amqtt",
            keeps={"mqtt": IN_MEMORY},
            missing=_needs_package("amqtt"),
            version=lambda: version("amqtt"),
            launch=_python_peer("amqtt_broker", "mqtt"),
        ),
        ServerSpec(
            name="bare-log",
            keeps={"mqtt": "in a file (fdatasync) before every acknowledgement; no index, no delivery"},
            missing=lambda: None,
            version=lambda: f"Python {platform.python_version()}",
            launch=_bare_log,
        ),
        ServerSpec(
            name="aiocoap",
            keeps={"coap": NOTHING},
            missing=_needs_package("aiocoap"),
            version=lambda: version("aiocoap"),
            launch=_python_peer("aiocoap_server", "coap"),
        ),
        ServerSpec(
            name="libcoap",
            keeps={"coap": "the last value of a resource, in memory"},
            missing=_needs_program(*LIBCOAP),
            version=_version_of(*LIBCOAP, ask="-h"),
            launch=_libcoap,
        ),
        ServerSpec(
            name="bare-http",
            keeps={"http": "events are read with the CloudEvents SDK; " + NOTHING},
            missing=_needs_package("cloudevents"),
            version=lambda: f"httptools {version('httptools')}, h2 {version('h2')}",
            launch=_python_peer("http_server", "http"),
        ),
        ServerSpec(
            name="bare-h2",
            keeps={"http": NOTHING},
            missing=_needs_package("h2"),
            version=lambda: f"httptools {version('httptools')}, h2 {version('h2')}",
            launch=_python_peer("http_server", "http", "--unread"),
        ),
        ServerSpec(
            name="granian",
            keeps={"http": NOTHING},
            missing=_needs_package("granian"),
            version=lambda: version("granian"),
            launch=_python_peer("granian_app", "http"),
        ),
        ServerSpec(
            name="uvicorn",
            keeps={"http": NOTHING},
            missing=_needs_package("uvicorn"),
            version=lambda: f"{version('uvicorn')} (httptools {version('httptools')})",
            launch=_python_peer("uvicorn_app", "http"),
        ),
        ServerSpec(
            name="store",
            keeps={"store": ON_DISK},
            missing=lambda: None,
            version=_headgate_version,
            launch=None,
        ),
        ServerSpec(
            name="spark",
            keeps={"spark": "nothing is acknowledged"},
            missing=_needs_spark,
            version=lambda: f"pyspark {version('pyspark')}",
            launch=None,
        ),
    )
}


def other(definition: str, protocol: str) -> ServerSpec:
    """Returns a server named on the command line: `name=command`, in which {port} and {data} are filled in.

    Raises ValueError.
    """
    name, _, command = definition.partition("=")
    if not name or "{port}" not in command:
        raise ValueError(f"{definition!r}: write NAME=COMMAND with {{port}} in it, and {{data}} for its directory")

    def launch(directory: Path) -> Launch:
        port = free_port()
        words = [word.format(port=port, data=directory) for word in shlex.split(command)]
        return Launch(command=words, ports={protocol: port})

    return ServerSpec(
        name=name, keeps={protocol: "unknown"}, missing=lambda: None, version=lambda: "unknown", launch=launch
    )
