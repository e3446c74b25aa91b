"""Metrics that the documents name are there, on the roles that they are said to be on, and no others."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from controller.node import run as controller_process
from gateway.config.config import load
from gateway.ops.metrics import Metrics
from gateway.process.backend import ClusterBackend
from gateway.process.nodes import store_settings
from gateway.process.store_figures import StoreFigures
from store.log.scrub import Scrubbed
from store.node import run as store_process

GRAFANA = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "headgate.json"
DOCS = Path(__file__).resolve().parents[2] / "docs"
NAME = re.compile(r"`(headgate_[a-z0-9_]+)")
TABLE = re.compile(r"^\| `(headgate_[a-z0-9_]+)[^|]*\| ([a-z, ]+) \|", re.MULTILINE)


def names(registry: CollectorRegistry) -> set[str]:
    """Returns the names of metrics as a scrape has them."""
    found = set()
    for family in registry.collect():
        if family.name.startswith("headgate_"):
            found.add(f"{family.name}_total" if family.type == "counter" else family.name)
    return found


class Node:
    """A controller of which only figures are asked."""

    leading, has_leader, applied = None, False, 0

    membership = SimpleNamespace(voters=())

    @staticmethod
    def status():
        return SimpleNamespace(term=0, commit=0, topics=0, groups=0, replicas_alive=0)


@pytest.fixture(scope="module")
def exported():
    """Returns the metrics that each role exports, by role."""
    one, proxy = Metrics(), Metrics()
    alone = SimpleNamespace(end=0, confirmed=0, damages=(), view_damages=(), scrubbed=Scrubbed(0, 0, 0, 0))
    alone.log = SimpleNamespace(confirmed=0, pending_bytes=0)
    alone.replication = SimpleNamespace(end=0)
    alone.damages_repaired = alone.messages_lost = 0
    StoreFigures(alone, tuple).watch(one)
    nothing = SimpleNamespace(losses=tuple)
    cluster = SimpleNamespace(_groups=tuple, _lost=nothing, log=lambda: alone, store=alone)
    ClusterBackend.watch(cluster, proxy)
    store = store_process._metrics(store_process._Process(store_settings(load(environ={}))))
    return {
        "serve": names(one.registry),
        "proxy": names(proxy.registry),
        "store": names(store),
        "controller": names(controller_process._metrics(Node())),
    }


def test_every_metric_is_documented_and_every_documented_one_is_there(exported):
    there = set().union(*exported.values())
    documented = {found for file in DOCS.glob("*.md") for found in NAME.findall(file.read_text())} - {"headgate_"}
    assert there - documented == set(), "write them into the table of metrics in docs/operations.md"
    others = {one for one in documented if one.startswith(("headgate_bridge_", "headgate_push_", "headgate_worker"))}
    assert documented - there - others == set()


def test_each_is_on_the_roles_that_the_table_says(exported):
    said = dict(TABLE.findall((DOCS / "operations.md").read_text()))
    found = {name: {role for role, there in exported.items() if name in there} for name in said}
    assert {name: set(roles.split(", ")) for name, roles in said.items()} == found


def expressions() -> list[str]:
    """Returns every query of the Grafana dashboard."""
    return [one["expr"] for panel in json.loads(GRAFANA.read_text())["panels"] for one in panel["targets"]]


def test_grafana_asks_for_metrics_that_are_there(exported):
    asked = set(re.findall(r"headgate_[a-z0-9_]+", " ".join(expressions())))
    assert {one.removesuffix("_bucket") for one in asked} - exported["serve"] - exported["proxy"] == set()
    assert len(asked) > 10


def test_grafana_groups_by_labels_that_its_metrics_have():
    known = {
        name: set(collector._labelnames)
        for collector, names_ in Metrics(process=False).registry._collector_to_names.items()
        if hasattr(collector, "_labelnames")
        for name in names_
    }
    grouped = {(m, by) for by, m in re.findall(r"by \((\w+)\) \((?:rate\()?(headgate_\w+)", " ".join(expressions()))}
    wrong = {(m, by) for m, by in grouped if by not in {*known.get(m, {by}), "instance", "le"}}
    assert wrong == set()
    assert {by for _, by in grouped} >= {"protocol", "cause", "status", "le"}
