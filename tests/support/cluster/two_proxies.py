"""A cluster of one store group with two proxies."""

import pytest

from gateway.process.local_cluster import ClusterPlan
from tests.support.cluster.local_clusters import all_groups, on_free_ports, started


class TwoProxies:
    def __init__(self, cluster):
        self.cluster = cluster
        proxies = [node for node in cluster.nodes if node.role == "proxy"]
        self.one, self.other = (node.port for node in proxies)
        self.admin_port = proxies[0].admin_port


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with started(on_free_ports(ClusterPlan(tmp_path_factory.mktemp("cluster"), 1, 1, 1, 1, 2)), all_groups) as cluster:
        yield TwoProxies(cluster)
