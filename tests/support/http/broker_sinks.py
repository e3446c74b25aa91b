"""Brokers of other people as sinks of subscriptions, and clients of theirs that read the events."""

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pika
from paho.mqtt import client as paho

from tests.support.amqp.rabbitmq import RabbitMQ
from tests.support.mqtt.paho_client import PahoClient, fresh
from tests.support.mqtt.upstreams import Mosquitto
from tests.support.process.certificates import Issued
from tests.support.process.waiting import wait_until

STRUCTURED = "application/cloudevents+json"


class Read(NamedTuple):
    """An event as a client of the broker has read it: its attributes as texts, and its data."""

    attributes: Mapping[str, str]
    data: bytes
    structured: bool
    raw: Any

    @classmethod
    def of(cls, kind: str | None, attributes: Mapping[str, str], body: bytes, raw: Any) -> "Read":
        if kind is not None and not kind.startswith(STRUCTURED):
            return cls({**attributes, "datacontenttype": kind}, body, False, raw)
        document = json.loads(body)
        data = document.pop("data", None)
        return cls(document, json.dumps(data, separators=(",", ":")).encode(), True, raw)


class MqttSink:
    """mosquitto, and paho's client with a session that lasts."""

    missing = Mosquitto.missing
    protocol = "MQTT5"
    settings: ClassVar[dict[str, Any]] = {"topicname": "sink/{address}"}

    def __init__(self, directory: Path, version: int = paho.MQTTv5, certificate: Issued | None = None) -> None:
        self.broker = Mosquitto(directory, certificate)
        self.broker.start()
        self.url = f"mqtt://127.0.0.1:{self.broker.port}"
        self.tls_url = f"mqtts://127.0.0.1:{self.broker.tls_port}"
        self.came: list[Read] = []
        self.read(version)

    def read(self, version: int = paho.MQTTv5) -> None:
        """Starts a client that reads what comes from now on."""
        reader = PahoClient(self.broker.port, version, fresh("reader")[-20:])
        reader.paho.on_message = lambda _c, _u, message: self.came.append(self._read(message))
        reader.connect()
        reader.subscribe("sink/#", qos=2)
        self.reader = reader

    @staticmethod
    def _read(message: Any) -> Read:
        said = getattr(message, "properties", None)
        kind = getattr(said, "ContentType", None)
        pairs = dict(getattr(said, "UserProperty", ()))
        binary = "specversion" in pairs
        return Read.of(kind or "" if binary else kind, pairs, message.payload, message)

    def wait_until(self, holds: Callable[[], Any], what: str = "") -> Any:
        """Waits until something holds that depends on what has come."""
        return wait_until(holds, what or str([one.attributes for one in self.came[-3:]]))

    def close(self) -> None:
        """Ends it."""
        self.reader.close()
        self.broker.stop()


class AmqpSink:
    """RabbitMQ, and pika's client with a queue that is bound to everything below `sink`."""

    protocol = "AMQP091"
    settings: ClassVar[dict[str, Any]] = {"routingkey": "sink.{key}", "mandatory": True}

    def __init__(self, broker: RabbitMQ) -> None:
        self.url = f"amqp://127.0.0.1:{broker.port}"
        self.tls_url = f"amqps://127.0.0.1:{broker.tls_port}"
        self.came: list[Read] = []
        self._connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        channel = self._connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.topic", "sink.#")
        channel.basic_consume(queue, self._read, auto_ack=True)
        self._channel = channel
        self._thread = threading.Thread(target=channel.start_consuming, daemon=True)
        self._thread.start()

    def _read(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        headers = properties.headers or {}
        attributes = {name[3:]: value for name, value in headers.items() if name.startswith("ce-")}
        self.came.append(Read.of(properties.content_type or "", attributes, body, (method, properties)))

    wait_until = MqttSink.wait_until

    def close(self) -> None:
        """Ends the client."""
        self._connection.add_callback_threadsafe(self._channel.stop_consuming)
        self._thread.join(60)
        self._connection.close()
