"""Every figure: what is measured, with which load, on which servers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.bench.load.amqp.amqp_channels import AmqpChannels
from tests.bench.load.amqp.amqp_consume import AmqpConsume
from tests.bench.load.amqp.amqp_dead_letters import AmqpDeadLetters
from tests.bench.load.amqp.amqp_fanout import AmqpFanout
from tests.bench.load.amqp.amqp_latency import AmqpLatency
from tests.bench.load.amqp.amqp_open import AmqpOpen
from tests.bench.load.amqp.amqp_publish import AmqpPublish
from tests.bench.load.base import Load
from tests.bench.load.coap.coap_devices import CoapDevices
from tests.bench.load.coap.coap_half import CoapHalf
from tests.bench.load.coap.coap_post import CoapPost
from tests.bench.load.http.http_devices import HttpDevices
from tests.bench.load.http.http_half import HttpHalf
from tests.bench.load.http.http_post import HttpPost
from tests.bench.load.in_process import SparkRead, StoreAppend
from tests.bench.load.mqtt.mqtt_catch_up import MqttCatchUp
from tests.bench.load.mqtt.mqtt_connect import MqttConnect
from tests.bench.load.mqtt.mqtt_devices import MqttDevices
from tests.bench.load.mqtt.mqtt_latency import MqttLatency
from tests.bench.load.mqtt.mqtt_publish import MqttFanout, MqttPublish
from tests.bench.load.mqtt.mqtt_storm import MqttStorm
from tests.bench.load.mqtt.mqtt_subscribers import MqttSubscribers

BROKERS = ("headgate", "mosquitto", "nats", "rabbitmq", "amqtt")
AND_BARE = (*BROKERS, "bare-log")  # where a message is stored alone or with few, the disk is much of the figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure. `fresh`: every run has a server just started, for what a server does not give back.
    `rounds_max` is lower for what repeats itself enough within one run.
    `count` is the same for all servers where it decides the figure, as the depth of a queue does; else a run's time is.
    """

    name: str
    title: str
    protocol: str
    unit: str
    load: Load
    servers: Sequence[str]
    better: Literal["higher", "lower"] = "higher"
    fresh: bool = False
    rounds_max: int = 100
    count: int | None = None


FIGURES: Mapping[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure(
            name="mqtt-publish",
            title="MQTT publish, QoS 1, 4 topics",
            protocol="mqtt",
            unit="messages/s",
            load=MqttPublish(),
            servers=BROKERS,
        ),
        Figure(
            name="mqtt-publish-topics",
            title="MQTT publish, QoS 1, 5,000 topics",
            protocol="mqtt",
            unit="messages/s",
            load=MqttPublish(topics=1_250),
            servers=BROKERS,
        ),
        Figure(
            name="mqtt-publish-qos0",
            title="MQTT publish, QoS 0, 4 topics",
            protocol="mqtt",
            unit="messages/s",
            load=MqttPublish(qos=0),
            servers=BROKERS,
        ),
        Figure(
            name="mqtt-publish-qos0-topics",
            title="MQTT publish, QoS 0, 5,000 topics",
            protocol="mqtt",
            unit="messages/s",
            load=MqttPublish(qos=0, topics=1_250),
            servers=BROKERS,
        ),
        Figure(
            name="mqtt-devices-1",
            title="MQTT publish, QoS 1, 1 connection with one message under way",
            protocol="mqtt",
            unit="messages/s",
            load=MqttDevices(conns=1),
            servers=AND_BARE,
        ),
        Figure(
            name="mqtt-devices-50",
            title="MQTT publish, QoS 1, 50 connections with one message under way each",
            protocol="mqtt",
            unit="messages/s",
            load=MqttDevices(conns=50),
            servers=AND_BARE,
        ),
        Figure(
            name="mqtt-devices-500",
            title="MQTT publish, QoS 1, 500 connections with one message under way each",
            protocol="mqtt",
            unit="messages/s",
            load=MqttDevices(conns=500),
            servers=AND_BARE,
        ),
        Figure(
            name="mqtt-devices-2000",
            title="MQTT publish, QoS 1, 2,000 connections with one message under way each",
            protocol="mqtt",
            unit="messages/s",
            load=MqttDevices(conns=2000),
            servers=AND_BARE,
        ),
        Figure(
            name="mqtt-subscribers",
            title="MQTT deliveries, QoS 1, to 2,000 subscribers of a topic each, one message under way to each",
            protocol="mqtt",
            unit="deliveries/s",
            load=MqttSubscribers(),
            servers=BROKERS,
        ),
        Figure(
            name="mqtt-subscribers-paced",
            title="MQTT, 2,000 subscribers of a topic each, a message a second for each: PUBLISH to delivery, average",
            protocol="mqtt",
            unit="ms",
            load=MqttSubscribers(each_s=1.0, duration_s=10),
            servers=BROKERS,
            better="lower",
        ),
        Figure(
            name="mqtt-fanout",
            title="MQTT deliveries to 1 subscriber",
            protocol="mqtt",
            unit="deliveries/s",
            load=MqttFanout(),
            servers=BROKERS,
        ),
        Figure(
            name="mqtt-fanout-10",
            title="MQTT deliveries to 10 subscribers",
            protocol="mqtt",
            unit="deliveries/s",
            load=MqttFanout(subs=10),
            servers=BROKERS,
        ),
        Figure(
            name="mqtt-fanout-100",
            title="MQTT deliveries to 100 subscribers",
            protocol="mqtt",
            unit="deliveries/s",
            load=MqttFanout(subs=100),
            servers=BROKERS,
        ),
        Figure(
            name="mqtt-catch-up",
            title="MQTT, a million messages for a session that was offline, QoS 1",
            protocol="mqtt",
            unit="messages/s",
            load=MqttCatchUp(),
            servers=("headgate", "mosquitto", "nats", "rabbitmq"),
            count=1_000_000,
        ),
        Figure(
            name="mqtt-latency",
            title="MQTT PUBACK at 1,000 messages/s, average",
            protocol="mqtt",
            unit="ms",
            load=MqttLatency(),
            servers=AND_BARE,
            better="lower",
        ),
        Figure(
            name="mqtt-latency-2k",
            title="MQTT PUBACK at 2,000 messages/s, average",
            protocol="mqtt",
            unit="ms",
            load=MqttLatency(rate=2_000.0),
            servers=AND_BARE,
            better="lower",
        ),
        Figure(
            name="mqtt-latency-10k",
            title="MQTT PUBACK at 10,000 messages/s, average",
            protocol="mqtt",
            unit="ms",
            load=MqttLatency(rate=10_000.0),
            servers=AND_BARE,
            better="lower",
        ),
        Figure(
            name="mqtt-connect",
            title="MQTT, 5,000 connections, one after the other",
            protocol="mqtt",
            unit="connections/s",
            load=MqttConnect(),
            servers=BROKERS,
            fresh=True,
        ),
        Figure(
            name="mqtt-storm",
            title="MQTT, 5,000 connections, 500 of them at once",
            protocol="mqtt",
            unit="connections/s",
            load=MqttStorm(),
            servers=BROKERS,
            fresh=True,
        ),
        Figure(
            name="mqtt-connect-19k",
            title="MQTT, 19,000 connections, one after the other",
            protocol="mqtt",
            unit="connections/s",
            load=MqttConnect(conns=19_000),
            servers=BROKERS,
            fresh=True,
        ),
        Figure(
            name="amqp-publish",
            title="AMQP confirmed publish, persistent, durable queue",
            protocol="amqp",
            unit="messages/s",
            load=AmqpPublish(),
            servers=("headgate", "rabbitmq"),
        ),
        Figure(
            name="amqp-consume",
            title="AMQP consume, prefetch 500",
            protocol="amqp",
            unit="messages/s",
            load=AmqpConsume(),
            servers=("headgate", "rabbitmq"),
            count=100_000,
        ),
        Figure(
            name="amqp-channels",
            title="AMQP confirmed publish, 500 channels with one message under way each",
            protocol="amqp",
            unit="messages/s",
            load=AmqpChannels(),
            servers=("headgate", "rabbitmq"),
        ),
        Figure(
            name="amqp-latency",
            title="AMQP publish to delivery at 1,000 messages/s, average",
            protocol="amqp",
            unit="ms",
            load=AmqpLatency(),
            servers=("headgate", "rabbitmq"),
            better="lower",
        ),
        Figure(
            name="amqp-fanout-100",
            title="AMQP confirmed publish to a fanout of 100 durable queues, messages put into queues",
            protocol="amqp",
            unit="messages/s",
            load=AmqpFanout(),
            servers=("headgate", "rabbitmq"),
        ),
        Figure(
            name="amqp-dead-letters",
            title="AMQP messages rejected into another durable queue",
            protocol="amqp",
            unit="messages/s",
            load=AmqpDeadLetters(),
            servers=("headgate", "rabbitmq"),
            count=20_000,
        ),
        Figure(
            name="amqp-connections",
            title="AMQP, 2,000 connections, eight at a time",
            protocol="amqp",
            unit="connections/s",
            load=AmqpOpen(),
            servers=("headgate", "rabbitmq"),
            fresh=True,
        ),
        Figure(
            name="amqp-open-channels",
            title="AMQP, 10,000 channels of ten connections, opened 100 at a time",
            protocol="amqp",
            unit="channels/s",
            load=AmqpOpen(what="channels", count=10_000),
            servers=("headgate", "rabbitmq"),
            fresh=True,
        ),
        Figure(
            name="amqp-queues",
            title="AMQP, 10,000 durable queues declared, 100 at a time",
            protocol="amqp",
            unit="queues/s",
            load=AmqpOpen(what="queues", count=10_000),
            servers=("headgate", "rabbitmq"),
            fresh=True,
        ),
        Figure(
            name="coap-post",
            title="CoAP confirmable POST",
            protocol="coap",
            unit="answers/s",
            load=CoapPost(),
            servers=("headgate", "aiocoap"),
        ),
        Figure(
            name="coap-put",
            title="CoAP confirmable PUT",
            protocol="coap",
            unit="answers/s",
            load=CoapPost(method="put"),
            servers=("headgate", "aiocoap", "libcoap"),
        ),
        Figure(
            name="coap-devices",
            title="CoAP confirmable PUT, 1,000 endpoints with one request under way each",
            protocol="coap",
            unit="answers/s",
            load=CoapDevices(),
            servers=("headgate", "aiocoap", "libcoap"),
            fresh=True,  # a Message ID is remembered for minutes, and there is a limit to how many are
        ),
        Figure(
            name="coap-half",
            title="CoAP confirmable PUT, 100 endpoints, at half of the most that the server does: p99",
            protocol="coap",
            unit="ms",
            load=CoapHalf(),
            servers=("headgate", "aiocoap", "libcoap"),
            better="lower",
            fresh=True,
        ),
        Figure(
            name="http1-event",
            title="HTTP/1.1 POST, one CloudEvent",
            protocol="http",
            unit="events/s",
            load=HttpPost(version=1),
            servers=("headgate", "uvicorn", "granian", "bare-http"),
        ),
        Figure(
            name="http1-batch",
            title="HTTP/1.1 POST, 100 CloudEvents",
            protocol="http",
            unit="events/s",
            load=HttpPost(version=1, mode="batch"),
            servers=("headgate", "bare-http"),
        ),
        Figure(
            name="http1-devices",
            title="HTTP/1.1 POST, 500 connections with one CloudEvent under way each",
            protocol="http",
            unit="events/s",
            load=HttpDevices(),
            servers=("headgate", "uvicorn", "bare-http"),
        ),
        Figure(
            name="http1-half",
            title="HTTP/1.1 POST, 100 connections, at half of the most that the server does: p99",
            protocol="http",
            unit="ms",
            load=HttpHalf(version=1),
            servers=("headgate", "uvicorn", "granian", "bare-http"),
            better="lower",
        ),
        Figure(
            name="http2-event",
            title="HTTP/2 POST, one CloudEvent",
            protocol="http",
            unit="events/s",
            load=HttpPost(version=2),
            servers=("headgate", "bare-h2", "granian", "bare-http"),
        ),
        Figure(
            name="http2-batch",
            title="HTTP/2 POST, 100 CloudEvents",
            protocol="http",
            unit="events/s",
            load=HttpPost(version=2, mode="batch"),
            servers=("headgate", "bare-http"),
        ),
        Figure(
            name="http2-half",
            title="HTTP/2 POST, 100 connections, at half of the most that the server does: p99",
            protocol="http",
            unit="ms",
            load=HttpHalf(version=2),
            servers=("headgate", "bare-h2", "granian", "bare-http"),
            better="lower",
        ),
        Figure(
            name="store-append",
            title="Store: records appended and synced",
            protocol="store",
            unit="records/s",
            load=StoreAppend(),
            servers=("store",),
        ),
        Figure(
            name="spark-read",
            title="Spark: batch read of every column",
            protocol="spark",
            unit="records/s",
            load=SparkRead(),
            servers=("spark",),
            rounds_max=1,
        ),
    )
}
