"""Metrics: their names, their labels, and the bound on the topics."""

from prometheus_client import generate_latest

from gateway.ops.metrics import OTHER_TOPICS, TOPIC_LABELS_MAX, Metrics


def exposed(metrics: Metrics) -> str:
    return generate_latest(metrics.registry).decode()


def test_messages_are_counted_by_protocol_topic_and_status():
    metrics = Metrics(process=False)
    metrics.messages_in("mqtt", "telemetry", "stored").inc(1_000)
    metrics.messages_in("mqtt", "telemetry", "stored").inc(5)
    metrics.messages_in("mqtt", "telemetry", "overload").inc()
    metrics.sent(metrics.flow("amqp"), "telemetry", 7)
    text = exposed(metrics)
    assert 'headgate_messages_in_total{protocol="mqtt",status="stored",topic="telemetry"} 1005.0' in text
    assert 'headgate_messages_out_total{protocol="amqp",topic="telemetry"} 7.0' in text


def test_children_are_kept():
    metrics = Metrics(process=False)
    assert metrics.messages_in("mqtt", "a", "stored") is metrics.messages_in("mqtt", "a", "stored")
    assert metrics.errors("http", "too_large") is metrics.errors("http", "too_large")
    assert metrics.flow("http") is metrics.flow("http")


def test_what_flows_is_counted_by_protocol():
    metrics = Metrics(process=False)
    flow, other = metrics.flow("mqtt"), metrics.flow("coap")
    flow.bytes_in, flow.bytes_out, flow.open, flow.accepted, other.bytes_in = 10, 20, 1, 3, 5
    text = exposed(metrics)
    for sample in ("bytes_in_total", "bytes_out_total", "connections", "accepted_total"):
        assert f'headgate_{sample}{{protocol="coap"}}' in text
    assert 'headgate_bytes_in_total{protocol="mqtt"} 10.0' in text
    assert 'headgate_bytes_out_total{protocol="mqtt"} 20.0' in text
    assert 'headgate_connections{protocol="mqtt"} 1.0' in text
    assert 'headgate_accepted_total{protocol="mqtt"} 3.0' in text
    assert "# TYPE headgate_accepted_total counter" in text
    assert (metrics.open_count("mqtt"), metrics.accepted_count("mqtt")) == (1, 3)
    assert metrics.traffic("mqtt").bytes_received == 10


def test_topics_beyond_the_limit_are_counted_together():
    metrics = Metrics(process=False)
    for i in range(TOPIC_LABELS_MAX + 10):
        metrics.messages_in("mqtt", f"t{i}", "stored").inc()
        metrics.sent(metrics.flow("mqtt"), f"t{i}", 1)
    text = exposed(metrics)
    assert f'headgate_messages_in_total{{protocol="mqtt",status="stored",topic="{OTHER_TOPICS}"}} 10.0' in text
    assert text.count("headgate_messages_in_total{") == TOPIC_LABELS_MAX + 1
    assert metrics.stored_by_protocol() == {"mqtt": TOPIC_LABELS_MAX + 10}


def test_the_logs_positions_are_read_when_asked():
    metrics = Metrics(process=False)
    at = [1.0]
    metrics.watch_log(end=lambda: at[0], confirmed=lambda: at[0] - 1, pending=lambda: 3)
    at[0] = 64
    text = exposed(metrics)
    assert "headgate_log_end_bytes 64.0" in text
    assert "headgate_log_confirmed_bytes 63.0" in text
    assert "headgate_pending_bytes 3.0" in text


def test_only_what_was_stored_counts_as_stored():
    metrics = Metrics(process=False)
    metrics.messages_in("coap", "a", "stored").inc(2)
    metrics.messages_in("coap", "b", "stored").inc(3)
    metrics.messages_in("coap", "b", "quota").inc(9)
    assert metrics.stored_by_protocol() == {"coap": 5}


def test_the_process_is_among_them():
    assert "process_open_fds" in exposed(Metrics())


def test_damage_is_read_when_somebody_looks():
    metrics, found = Metrics(process=False), [0, 0]
    metrics.watch_damage(damages=lambda: found[0], scrubbed=lambda: found[1])
    found[:] = 2, 77
    assert metrics.registry.get_sample_value("headgate_log_damages") == 2
    assert metrics.registry.get_sample_value("headgate_scrub_bytes") == 77
