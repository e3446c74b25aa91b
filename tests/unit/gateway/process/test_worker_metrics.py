"""Workers' metrics are summed, and do not fall when a worker goes."""

from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.ops.metrics import Metrics
from gateway.process.worker_metrics import WorkerMetrics
from gateway.process.workers import Workers


def said(stored=0, connections=0, topics=0, lost=0, passed=0):
    metrics = Metrics(process=False)
    metrics.messages_in("mqtt", "t", "stored").inc(stored)
    metrics.flow("mqtt").open = connections
    metrics.append_seconds.observe(0.004)
    metrics.topics.set(topics)
    metrics.damages_passed.set(passed)
    metrics.messages_lost.add(lambda: lost)
    return generate_latest(metrics.registry).decode()


def gathered(texts):
    own = Metrics()
    own.topics.set(7)
    return WorkerMetrics(own.registry, lambda: texts, name="store")


def page(metrics):
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode()


STORED = 'headgate_messages_in_total{protocol="mqtt",status="stored",topic="t"}'
OPEN = 'headgate_connections{protocol="mqtt"}'


def test_workers_are_summed():
    text = page(gathered({"worker-1": said(3, 2), "worker-2": said(4, 5)}))
    assert f"{STORED} 7.0" in text
    assert f"{OPEN} 7.0" in text
    assert "headgate_append_seconds_count 2.0" in text
    assert 'headgate_append_seconds_bucket{le="0.005"} 2.0' in text
    assert text.count("# TYPE headgate_messages_in_total counter") == 1


def test_what_is_of_the_store_is_said_once_by_who_has_it():
    text = page(gathered({"worker-1": said(topics=7), "worker-2": said(topics=7)}))
    assert "headgate_topics 7.0" in text
    assert 'process_cpu_seconds_total{process="store"}' in text


def test_counters_of_a_worker_that_is_gone_stay_and_its_gauges_do_not():
    texts = {"worker-1": said(3, 2, passed=1), "worker-2": said(4, 5, passed=2)}
    metrics = gathered(texts)
    metrics.gone(texts["worker-2"])
    texts["worker-2"] = ""
    assert f"{STORED} 7.0" in page(metrics)
    assert f"{OPEN} 2.0" in page(metrics)
    assert "headgate_damages_passed 3.0" in page(metrics), "which counts since the start, as a counter"
    texts["worker-2"] = said(1, 1)
    assert f"{STORED} 8.0" in page(metrics)
    assert "headgate_append_seconds_count 3.0" in page(metrics)


@pytest.mark.anyio
async def test_the_last_figures_of_a_worker_are_in_the_sums_once_while_the_store_is_told():
    worker = SimpleNamespace(metrics=said(3), status=SimpleNamespace(stored={"mqtt": 3}, proxy="p"))
    texts = {"worker-2": said(4)}
    metrics = WorkerMetrics(Metrics().registry, lambda: {**texts, "worker-1": worker.metrics}, name="store")
    workers = SimpleNamespace(_metrics=metrics, _stored={})
    sums = []

    async def delete(_key):
        sums.append((f"{STORED} 7.0" in page(metrics), worker.status, workers._stored))

    workers._base = SimpleNamespace(store=SimpleNamespace(keys=SimpleNamespace(delete=delete)))
    await Workers._worker_gone(workers, worker)
    assert sums == [(True, None, {"mqtt": 3})]


def test_without_workers_there_are_the_stores_figures():
    assert "headgate_topics 7.0" in page(gathered({}))


def test_lost_messages_are_those_that_the_store_and_the_workers_have_met():
    own = Metrics()
    own.watch_repairs(repaired=lambda: 2, lost=lambda: 5)
    texts = {"worker-1": said(lost=3), "worker-2": said(lost=4)}
    metrics = WorkerMetrics(own.registry, lambda: texts, name="store")
    assert "headgate_messages_lost_total 12.0" in page(metrics)
    assert "headgate_log_damages_repaired_total 2.0" in page(metrics)
    metrics.gone(texts.pop("worker-2"))
    assert "headgate_messages_lost_total 12.0" in page(metrics)
