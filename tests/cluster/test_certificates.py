"""A cluster whose certificates are renewed while it runs, by another authority."""

import urllib.request

import pytest

from controller.api.client import GroupConfig
from controller.api.commands import AddGroup
from controller.remote.remote import RemoteController
from gateway.process.local_cluster import ClusterPlan
from store.base.clock import now_ms
from store.rpc.credentials import CredentialFiles
from tests.support.cluster.local_clusters import on_free_ports, started, until_ready
from tests.support.process.certificates import Authority, node_files
from tests.support.process.program import headgate
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

TLS = """
[cluster.tls]
cert_file = "{0.certificate}"
key_file = "{0.key}"
ca_file = "{0.authority}"
"""


def files_of(plan):
    return CredentialFiles(*(plan.directory / "tls" / name for name in ("node.pem", "node.key", "ca.pem")))


def renew(plan, name):
    """Writes the files anew, of another authority."""
    made = node_files(Authority(plan.directory / "made", name), "127.0.0.1")
    files_of(plan).certificate.parent.mkdir(exist_ok=True)
    for file, new in zip(files_of(plan), made, strict=True):
        file.write_bytes(new.read_bytes())


async def one_group(plan):
    controller = RemoteController(list(plan.addresses.values()), now_ms=now_ms, credentials=files_of(plan).channel())
    try:
        await controller.do(AddGroup(number=0, config=GroupConfig(replicas=2, min_in_sync=2)))
    finally:
        await controller.close()


def published(cluster, text):
    """Returns whether a message is stored."""
    url = f"http://127.0.0.1:{cluster.node('proxy-1').port - 1883 + 8080}/topics/renewed/a"
    request = urllib.request.Request(url, data=text.encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status == 201
    except OSError:
        return False


def commanded(cluster, *words):
    """Returns what a command has said."""
    done = headgate("cluster", *words, "--config", str(cluster.plan.directory / "proxy-1.toml"))
    return done.stdout.decode() + done.stderr.decode()


def test_commands_to_replicas_speak_tls(tmp_path):
    """They ended with an AttributeError."""
    plan = on_free_ports(ClusterPlan(tmp_path, controllers=1, groups=1, replicas=2, proxies=1))
    renew(plan, "first")
    with started(plan, one_group, every=TLS.format(files_of(plan))) as cluster:
        wait_until(lambda: published(cluster, "before"), "nothing is stored")
        assert "nothing is damaged" in commanded(cluster, "replicas", "repair", "0", "1")
        commanded(cluster, "switch-over", "0", "1")  # which may be master already
        assert "replica 2 is master" in commanded(cluster, "switch-over", "0", "2")


def test_nodes_go_on_with_certificates_of_another_authority_without_a_restart(tmp_path):
    """Every node had to be restarted before its certificate expired."""
    plan = on_free_ports(ClusterPlan(tmp_path, controllers=1, groups=1, replicas=2, proxies=1))
    renew(plan, "first")
    with started(plan, one_group, every=TLS.format(files_of(plan))) as cluster:
        wait_until(lambda: published(cluster, "before"), "nothing is stored")
        renew(plan, "second")
        for name in ("store-0-1", "store-0-2"):
            cluster.stop(name, kill=True)
            cluster.start(name)
            until_ready(cluster, [name], timeout_s=240)
            wait_until(lambda name=name: published(cluster, name), f"nothing is stored after the end of {name}")
