"""Compares what processes of a cluster say of themselves with what clients get, while resources are taken away."""

import json
import shutil
import time
import urllib.error
import urllib.request

import httpx
import pytest
from typer.testing import CliRunner

from controller.api.client import GroupConfig, QueueClosed
from controller.api.commands import AddGroup
from gateway.cli.commands import app
from gateway.process.local_cluster import ClusterPlan
from tests.support.cluster.local_clusters import controller_of, on_free_ports, started

pytestmark = pytest.mark.slow

PATIENCE_S = 60
HTTP_PORT = 8080


async def two_groups(plan):
    async with controller_of(plan) as controller:
        for number in (0, 1):
            await controller.do(AddGroup(number=number, config=GroupConfig()))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with started(on_free_ports(ClusterPlan(tmp_path_factory.mktemp("cluster"), 1, 2, 1, 1, 1)), two_groups) as found:
        yield found


def page(cluster, name, path):
    """Returns the status and the text of a process's page."""
    try:
        with urllib.request.urlopen(f"http://{cluster.admin(name)}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def until(cluster, name, holds):
    """Waits until /readyz is as expected, and returns its text."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        status, text = page(cluster, name, "/readyz")
        if holds(status, text):
            return text
        assert time.monotonic() < deadline, (name, status, text)
        time.sleep(0.05)


def said_by_cluster_status(cluster):
    addresses = ",".join(cluster.plan.addresses.values())
    result = CliRunner().invoke(app, ["cluster", "status", "--json", "--controllers", addresses])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)["troubles"]


def topics(cluster, *words):
    """Calls `headgate cluster topics`; returns its output, or raises what the command line says in one line."""
    addresses = ",".join(cluster.plan.addresses.values())
    result = CliRunner().invoke(app, ["cluster", "topics", *words, "--controllers", addresses])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_queues_are_listed_closed_and_dropped_by_commands(cluster):
    """Runs the commands themselves, over the network, with queues in two groups."""
    until(cluster, "proxy-1", lambda status, text: text == "ready\n")
    url = f"http://127.0.0.1:{HTTP_PORT + cluster.plan.port_offset}"
    for n in range(20):
        assert httpx.post(f"{url}/topics/listed/{n}?key={n}", content=b"x").status_code == 201
    assert httpx.post(f"{url}/groups/late/members", json={"topic": "listed", "start": "earliest"}).status_code == 201
    queues = [json.loads(line) for line in topics(cluster, "list", "--json").splitlines()]
    assert ({one["group"] for one in queues}, sum(one["records"] for one in queues)) == ({0, 1}, 20)
    assert [line.split("\t")[0] for line in topics(cluster, "list").splitlines()] == [
        str(one["number"]) for one in queues
    ]
    number = next(str(one["number"]) for one in queues if one["unread"])
    with pytest.raises(QueueClosed, match=f"queue {number} is open: close it"):
        topics(cluster, "drop", number, "--force")
    assert topics(cluster, "close", number) == f"listed: queue {number} is closed\n"
    with pytest.raises(QueueClosed, match=f"queue {number} of listed is not read to its end.*'late': "):
        topics(cluster, "drop", number)
    assert topics(cluster, "drop", number, "--force") == f"queue {number} is dropped\n"
    assert number not in [line.split("\t")[0] for line in topics(cluster, "list").splitlines()]


def test_words_follow_what_is_taken_away(cluster):
    for name in ("store-0-1", "store-1-1", "proxy-1"):
        assert until(cluster, name, lambda status, text: text == "ready\n")
    assert said_by_cluster_status(cluster) == []
    assert 'headgate_group_writable{group="1"} 1.0' in page(cluster, "proxy-1", "/metrics")[1]
    assert "headgate_log_damages 0.0" in page(cluster, "store-1-1", "/metrics")[1]

    shutil.rmtree(cluster.plan.directory / "data" / "store-1-1")  # of a group that is not home
    gone = "was removed or replaced while the store had it open"
    until(cluster, "store-1-1", lambda status, text: status == 503 and gone in text)
    assert page(cluster, "store-1-1", "/healthz")[0] == 503
    text = until(cluster, "proxy-1", lambda status, text: "store group 1" in text)
    assert page(cluster, "proxy-1", "/readyz")[0] == 200
    assert text.startswith("degraded\n")
    assert 'headgate_group_writable{group="1"} 0.0' in page(cluster, "proxy-1", "/metrics")[1]
    assert any("store group 1" in trouble for trouble in said_by_cluster_status(cluster))
    (other,) = [one for one in json.loads(page(cluster, "proxy-1", "/status")[1])["groups"] if one["number"] == 1]
    assert (other["writable"], bool(other["troubles"])) == (False, True)
    (topic,) = json.loads(page(cluster, "proxy-1", "/status")[1])["topics"]  # the page failed where a group had queues
    assert 0 < topic["unknown"] < topic["queues"]

    cluster.stop("store-0-1", kill=True)  # the home group: nobody can connect any more
    text = until(cluster, "proxy-1", lambda status, _: status == 503)
    assert "store group 0" in text
    cluster.start("store-0-1")
    until(cluster, "proxy-1", lambda status, text: status == 200 and "store group 0" not in text)
