"""What a role refuses of a configuration, beyond what no role can read.

A role calls its check before it opens anything, so a mistake is a line and not a process that ends half way up.
"""

from collections.abc import Callable, Mapping, Sequence

from gateway.auth import tokens_of
from gateway.config import Config
from gateway.controller_process import node_credentials, place
from gateway.errors import ConfigError
from gateway.tls import ServerTls

__all__ = ["ROLES", "check_controller", "check_proxy", "check_serve", "check_store", "refusals", "roles_of"]

NO_CONTROLLERS = 'cluster.controllers: is empty; write where the controllers are, { 1 = "10.0.0.1:8082" }'


def check_serve(config: Config) -> None:
    """Raises `ConfigError` for what `headgate serve` refuses."""
    if config.rpc.enabled:
        node_credentials(config.cluster, host=config.rpc.host, key="rpc.host")
    if config.tls.enabled:
        ServerTls(config.tls).context(())
    tokens_of(config.auth)


def check_proxy(config: Config) -> None:
    """Raises `ConfigError` for what `headgate proxy` refuses."""
    if not config.cluster.controllers:
        raise ConfigError(NO_CONTROLLERS)
    node_credentials(config.cluster, host="localhost", key="cluster")
    check_serve(config)


def check_store(config: Config) -> None:
    """Raises `ConfigError` for what `headgate store` refuses."""
    if not config.cluster.controllers:
        raise ConfigError(NO_CONTROLLERS)
    node_credentials(config.cluster, host=config.rpc.host, key="rpc.host")


def check_controller(config: Config, *, join: bool = False) -> None:
    """Raises `ConfigError` for what `headgate controller` refuses."""
    place(config, join=join)
    node_credentials(config.cluster, host=config.controller.host, key="controller.host")


ROLES: Mapping[str, Callable[[Config], None]] = {
    "serve": check_serve,
    "controller": check_controller,
    "store": check_store,
    "proxy": check_proxy,
}


def roles_of(config: Config) -> Sequence[str]:
    """The roles that a configuration is written for: of one that names controllers, all that a node can have.

    It is no controller's where it does not have the number of one of them and says nothing else of one either.
    """
    cluster = config.cluster
    if not cluster.controllers:
        return ["serve"]
    mine = config.controller
    controller = mine.id in cluster.addresses or mine.join or mine != type(mine)()
    return [*(["controller"] if controller else []), "store", "proxy"]


def refusals(config: Config, roles: Sequence[str]) -> Sequence[str]:
    """What these roles refuse, a line each; none twice."""
    found: dict[str, None] = {}
    for role in roles:
        try:
            ROLES[role](config)
        except ConfigError as error:
            found.update(dict.fromkeys(f"{role}: {line}" for line in str(error).splitlines()))
    return list(found)
