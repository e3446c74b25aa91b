"""The protocols of brokers that sinks are spoken to in: MQTT 5.0, MQTT 3.1.1 and AMQP 0-9-1.

`MQTT5` and `MQTT3` are as the CloudEvents Subscriptions API has them (3.2.2.2). Its `AMQP` is AMQP 1.0, another
protocol, so that 0-9-1 has a name of ours, `AMQP091`, and its settings are ours, too.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from gateway.bridges.shared.addresses import template_mistakes
from gateway.bridges.shared.amqp_settings import SHORT_BYTES_MAX
from gateway.domain.cesql import FilterError
from gateway.port.bridge import BrokerFactory, PublisherFactory
from gateway.port.push import SubscriptionSpec
from gateway.push.context import PushContext
from gateway.push.sender import EventSender, SinkKind
from gateway.push.spec import SubscriptionRecord

TOPIC_CHARS_MAX: Final = 2_048
CLIENT_ID_CHARS_MAX: Final = 256
PROPERTIES_MAX: Final = 32  # user properties of its own in each message
PROPERTY_BYTES_MAX: Final = 8_192  # their names and values
EXPIRY_S_MAX: Final = 0xFFFF_FFFF
_OF_EVENTS: Final = re.compile(
    "specversion|id|source|type|subject|time|dataschema|datacontenttype|data|headgate.*"
)  # user properties that are the event's, or the gateway's, to say
_NOT_IN_TOPIC: Final = re.compile("[+#\0]")


def sink_kinds(factories: Iterable[object], gateway: str) -> dict[str, SinkKind]:
    """Returns the protocols that a process's adapters speak to brokers, by `protocol`; `gateway` is our own id."""
    kinds: dict[str, SinkKind] = {}
    for factory in factories:
        if isinstance(factory, PublisherFactory):
            kinds["MQTT5"] = MqttKind(factory, "5.0", gateway)
            kinds["MQTT3"] = MqttKind(factory, "3.1.1", gateway)
        if isinstance(factory, BrokerFactory):
            kinds["AMQP091"] = AmqpKind(factory, gateway)
    return kinds


class MqttKind:
    """See `gateway.push.sender.SinkKind`."""

    def __init__(self, factory: PublisherFactory, version: str, gateway: str) -> None:
        self._factory = factory
        self._version = version
        self._gateway = gateway
        self.ports: Mapping[str, int] = {name: factory.schemes[name].port for name in ("mqtts", "mqtt")}
        more = {"expiry", "userproperties"} if version == "5.0" else set()
        self.settings = frozenset({"topicname", "qos", "retain", "clientid", *more})

    def check(self, spec: SubscriptionSpec) -> None:
        """See `SinkKind`."""
        settings, path = spec.protocolsettings, "protocolsettings"
        url = urlsplit(spec.sink)
        if url.path.strip("/") or url.query:
            raise FilterError("sink", "has a path; protocolsettings.topicname says the topic")
        topic = settings.topicname
        if not topic or len(topic) > TOPIC_CHARS_MAX or _NOT_IN_TOPIC.search(topic) or not topic.isprintable():
            raise FilterError(f"{path}.topicname", f"is not a topic of 1 to {TOPIC_CHARS_MAX} characters")
        _check_template(f"{path}.topicname", topic, "address")
        if settings.clientid is not None and not 0 < len(settings.clientid) <= CLIENT_ID_CHARS_MAX:
            raise FilterError(f"{path}.clientid", f"is not a text of 1 to {CLIENT_ID_CHARS_MAX} characters")
        if settings.expiry is not None and not 0 < settings.expiry <= EXPIRY_S_MAX:
            raise FilterError(f"{path}.expiry", f"is not a number of seconds from 1 to {EXPIRY_S_MAX}")
        if self._version != "5.0" and settings.mode == "binary":
            raise FilterError(f"{path}.mode", "is structured over MQTT 3.1.1, which has no place for attributes")
        _check_properties(f"{path}.userproperties", settings.userproperties)

    def sender(self, record: SubscriptionRecord, context: PushContext) -> EventSender:
        """See `SinkKind`."""
        from gateway.bridges.sinks.mqtt_sender import MqttSender  # noqa: PLC0415 - for those that have such a sink

        return MqttSender(record, context, self._factory, version=self._version, gateway=self._gateway)


class AmqpKind:
    """See `gateway.push.sender.SinkKind`."""

    settings: Final = frozenset({"exchange", "routingkey", "mandatory"})

    def __init__(self, factory: BrokerFactory, gateway: str) -> None:
        self._factory = factory
        self._gateway = gateway
        self.ports: Mapping[str, int] = {name: factory.broker_schemes[name].port for name in ("amqps", "amqp")}

    def check(self, spec: SubscriptionSpec) -> None:
        """See `SinkKind`."""
        settings, path = spec.protocolsettings, "protocolsettings"
        url = urlsplit(spec.sink)
        if "/" in url.path.removeprefix("/") or url.query:
            raise FilterError("sink", "has more than a virtual host; write amqps://host/vhost, with %2F for a slash")
        for name in ("exchange", "routingkey"):
            text = getattr(settings, name)
            if len(text.encode()) > SHORT_BYTES_MAX or "\0" in text:
                raise FilterError(f"{path}.{name}", f"is not a text of up to {SHORT_BYTES_MAX} bytes")
        _check_template(f"{path}.routingkey", settings.routingkey, "key", "address")

    def sender(self, record: SubscriptionRecord, context: PushContext) -> EventSender:
        """See `SinkKind`."""
        from gateway.bridges.sinks.amqp_sender import AmqpSender  # noqa: PLC0415 - aio-pika, for those that have such a sink

        scheme = self._factory.broker_schemes[urlsplit(record.spec.sink).scheme]
        return AmqpSender(record, context, self._factory.event_codec(self._gateway), scheme)


def _check_template(path: str, template: str, *known: str) -> None:
    for key, mistake in template_mistakes(path, template, known):
        raise FilterError(key, mistake)


def _check_properties(path: str, properties: Mapping[str, str]) -> None:
    size = sum(len(name.encode()) + len(value.encode()) for name, value in properties.items())
    if len(properties) > PROPERTIES_MAX or size > PROPERTY_BYTES_MAX:
        raise FilterError(path, f"has more than {PROPERTIES_MAX} properties, or {PROPERTY_BYTES_MAX} bytes")
    for name, value in properties.items():
        if not name or not name.isprintable() or not value.isprintable():
            raise FilterError(path, f"{name[:64]!r} is empty, or not printable, or its value is not")
        if _OF_EVENTS.fullmatch(name) is not None:
            raise FilterError(path, f"{name[:64]!r} is for the event to say")
