"""Nodes of one role, as a configuration describes them: `headgate controller` and `headgate store`."""

from importlib.metadata import version

from controller.api.commands import ClusterLimits
from controller.node.run import ControllerRun
from controller.node.run import serve as serve_controller_run
from gateway.config.cluster_settings import NodeAddress
from gateway.config.config import Config
from gateway.config.nodes import NodeCredentials, controller_start
from gateway.process.roles import check_controller, check_store
from gateway.process.store_options import store_options
from store.node.run import StoreRun
from store.node.run import serve as serve_store_run
from store.node.settings import Credentials, NodeSettings

NO_CREDENTIALS = NodeCredentials(None, None)


def controller_run(config: Config, *, join: bool = False) -> ControllerRun:
    """Returns the controller that a configuration describes. Raises `ConfigError`."""
    credentials = check_controller(config, join=join)
    mine, here = config.controller, controller_start(config, join=join)
    return ControllerRun(
        id=mine.id,
        listen=str(NodeAddress(mine.host, mine.port)),
        address=here.address,
        members=here.members,
        join=here.join,
        directory=here.directory,
        name=config.cluster.node_name,
        limits=ClusterLimits(
            topics_max=config.topics.topics_max,
            topics_per_creator_max=config.topics.topics_per_user_max,
            default_queues=config.topics.default_queues,
        ),
        tick_ms=mine.tick_ms,
        admin=config.admin,
        server_credentials=credentials.server,
        channel_credentials=credentials.channel,
    )


def serve_controller(config: Config, *, join: bool = False) -> int:
    """Runs a controller in this process; the exit status. Raises `ConfigError`, `ServerFailed`."""
    return serve_controller_run(controller_run(config, join=join))


def store_run(config: Config) -> StoreRun:
    """Returns the store node that a configuration describes. Raises `ConfigError`."""
    return store_settings(config, check_store(config))


def store_settings(config: Config, credentials: NodeCredentials = NO_CREDENTIALS) -> StoreRun:
    """Returns the store node that a configuration describes, whatever a store refuses of it."""
    said, cluster, rpc = config.store, config.cluster, config.rpc
    return StoreRun(
        node=NodeSettings(
            data_dir=said.data_dir,
            group=said.group,
            name=cluster.node_name,
            listen=str(NodeAddress(rpc.host, rpc.port)),
            advertise=rpc.advertise,
            zone=cluster.zone,
            priority=said.priority,
            learner=said.learner,
            version=version("headgate"),
            options=store_options(said),
        ),
        controllers=tuple(str(at) for at in cluster.addresses.values()),
        credentials=Credentials(credentials.server, credentials.channel),
        admin=config.admin,
    )


def serve_store(config: Config) -> int:
    """Runs a store node in this process; the exit status. Raises `ConfigError`, `ServerFailed`, `StoreError`."""
    return serve_store_run(store_run(config))
