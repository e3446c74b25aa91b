"""A whole cluster on this machine, for trying and testing: which processes, with which configuration, in which order.

Everything lies in one directory: a TOML file and a log for each process, and its data below `data`. Started again in
the same directory it is the same cluster. Ports are fixed, so that clients find it again:

    controllers  8082, 8092, 8102 ...    admin 8582, 8592, 8602 ...
    stores       9100 + 10 a group + 1 a replica    admin 9600 and on
    proxies      as `headgate serve`, 100 further for each one more
"""

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gateway.process.child import Child, module_command
from gateway.process.supervisor import Supervisor

LOOPBACK = "127.0.0.1"
PROXY_LISTENERS = ("mqtt", "mqtt-ws", "coap", "coap-tcp", "http", "amqp")
PROXY_STEP = 100
STOP_S = 20.0  # from SIGTERM to SIGKILL
TROUBLE_BYTES_MAX = 4096  # of a process's own status


class ClusterPlan(NamedTuple):
    """The size of a local cluster."""

    directory: Path
    controllers: int = 3
    groups: int = 2
    replicas: int = 3  # of each group
    min_in_sync: int = 2
    proxies: int = 2
    port_offset: int = 0
    hosts: Mapping[str, str] = {}  # addresses of processes by their names; loopback where there is none

    @property
    def addresses(self) -> Mapping[int, str]:
        """Returns the addresses of the controllers."""
        return {
            n + 1: f"{self.host(f'controller-{n + 1}')}:{8082 + 10 * n + self.port_offset}"
            for n in range(self.controllers)
        }

    def host(self, name: str) -> str:
        """Returns the address of a process."""
        return self.hosts.get(name, LOOPBACK)


class ClusterProcess(NamedTuple):
    """One process."""

    name: str
    role: str  # the sub-command
    config: str  # TOML
    admin_port: int
    port: int  # gRPC, of a proxy MQTT
    host: str = LOOPBACK


def nodes(plan: ClusterPlan) -> Sequence[ClusterProcess]:
    """Returns all processes, in the order in which they are started: controllers, stores, proxies."""
    return [*_controllers(plan), *_stores(plan), *_proxies(plan)]


def _controllers(plan: ClusterPlan) -> Iterator[ClusterProcess]:
    for n in range(plan.controllers):
        name, port, admin = f"controller-{n + 1}", 8082 + 10 * n + plan.port_offset, 8582 + 10 * n + plan.port_offset
        own = (
            f'[controller]\nid = {n + 1}\nhost = "{plan.host(name)}"\nport = {port}\n'
            f'data_dir = "{plan.directory / "data" / name}"\n'
        )
        yield ClusterProcess(name, "controller", _config(plan, name, own, admin), admin, port, plan.host(name))


def _stores(plan: ClusterPlan) -> Iterator[ClusterProcess]:
    for group in range(plan.groups):
        for replica in range(plan.replicas):
            name, at = f"store-{group}-{replica + 1}", 10 * group + replica + plan.port_offset
            store = f'[store]\ndata_dir = "{plan.directory / "data" / name}"\ngroup = {group}\n'
            own = f'{store}\n[rpc]\nhost = "{plan.host(name)}"\nport = {9100 + at}\n'
            yield ClusterProcess(
                name, "store", _config(plan, name, own, 9600 + at), 9600 + at, 9100 + at, plan.host(name)
            )


def _proxies(plan: ClusterPlan) -> Iterator[ClusterProcess]:
    for n in range(plan.proxies):
        name, offset = f"proxy-{n + 1}", PROXY_STEP * n + plan.port_offset
        host, first = plan.host(name), f"port_offset = {offset}\n"
        own = "\n".join(f'[{one}]\nhost = "{host}"' for one in ("rpc", *[f"listeners.{x}" for x in PROXY_LISTENERS]))
        if host != LOOPBACK:
            own += '\n[auth]\nanonymous = "everyone"\nguest = "everyone"'
        yield ClusterProcess(
            name, "proxy", first + _config(plan, name, own + "\n", 8088), 8088 + offset, 1883 + offset, host
        )


def _config(plan: ClusterPlan, name: str, own: str, admin_port: int) -> str:
    controllers = ", ".join(f'{id_} = "{address}"' for id_, address in plan.addresses.items())
    cluster = f'[cluster]\nnode = "{name}"\ncontrollers = {{ {controllers} }}\n'
    if plan.hosts:
        cluster += "insecure = true\n"  # its operator has made a network for the processes alone
    return f'{cluster}\n{own}\n[admin]\nhost = "{plan.host(name)}"\nport = {admin_port}\n'


class LocalCluster(Supervisor):
    """The processes of a plan, kept by a supervisor that starts none again.

    `under` is the command that each is run under, if any: it has to become the process, as `nsenter` does.
    """

    def __init__(self, plan: ClusterPlan, *, under: Callable[[str], Sequence[str]] = lambda name: ()) -> None:
        super().__init__(self._launched, stop_s=STOP_S)
        self.plan = plan
        self._under = under
        self.nodes = nodes(plan)

    def write(self) -> None:
        """Writes every process's configuration. Raises OSError."""
        (self.plan.directory / "data").mkdir(parents=True, exist_ok=True)
        for node in self.nodes:
            self._file(node.name, "toml").write_text(node.config)

    def _launched(self, name: str) -> Child:
        command = module_command("gateway.cli", self.node(name).role, "--config", str(self._file(name, "toml")))
        return Child.start(name, [*self._under(name), *command], log=self._file(name, "log"))

    def of_role(self, role: str) -> Sequence[str]:
        """Returns the names of the processes of a role."""
        return [node.name for node in self.nodes if node.role == role]

    def stop_all(self) -> None:
        """Ends everything; processes that depend on others first."""
        for role in ("proxy", "store", "controller"):
            self.stop(*self.of_role(role))

    def pid(self, name: str) -> int:
        """Returns the process's id."""
        return self.children[name].pid

    def node(self, name: str) -> ClusterProcess:
        """Returns a process's place in the plan."""
        return next(node for node in self.nodes if node.name == name)

    def ready(self, name: str) -> bool:
        """Returns whether a process says that it can serve."""
        return self.trouble(name) is None

    def trouble(self, name: str) -> str | None:
        """Returns the reason why a process cannot serve, as it says itself; None: it can."""
        try:
            with urllib.request.urlopen(f"http://{self.admin(name)}/readyz", timeout=2) as answer:
                return None if answer.status == 200 else "not ready"
        except urllib.error.HTTPError as error:
            with error:
                return ", ".join(error.read(TROUBLE_BYTES_MAX).decode("utf-8", "replace").split("\n")).strip(", ")
        except (urllib.error.URLError, OSError):
            return "does not answer yet"
        except http.client.HTTPException:  # of a process that is not ours
            return f"{self.admin(name)} does not answer as an admin page"

    def admin(self, name: str) -> str:
        """Returns the host:port of a process's admin pages."""
        node = self.node(name)
        return f"{node.host}:{node.admin_port}"

    def _file(self, name: str, suffix: str) -> Path:
        return self.plan.directory / f"{name}.{suffix}"
