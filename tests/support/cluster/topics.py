"""Topics by which a test asks what the controllers of a cluster of processes remember."""

from controller.api.commands import CreateTopic
from gateway.process.local_cluster import ClusterPlan
from tests.support.cluster.local_clusters import controller_of


async def make_topic(plan: ClusterPlan, name: str) -> None:
    """Adds a topic, which the controllers have to know from then on."""
    async with controller_of(plan) as controller:
        await controller.do(CreateTopic(name=name, queues=1))


async def find_topic(plan: ClusterPlan, name: str) -> None:
    """Fails where the controllers have forgotten a topic."""
    async with controller_of(plan) as controller:
        await controller.barrier()
        assert name in [one.name for one in controller.topics()], name
