"""All loads, told apart by their tag."""

from typing import TypeAlias

from tests.bench.load.amqp.amqp_channels import AmqpChannels
from tests.bench.load.amqp.amqp_consume import AmqpConsume
from tests.bench.load.amqp.amqp_dead_letters import AmqpDeadLetters
from tests.bench.load.amqp.amqp_fanout import AmqpFanout
from tests.bench.load.amqp.amqp_latency import AmqpLatency
from tests.bench.load.amqp.amqp_open import AmqpOpen
from tests.bench.load.amqp.amqp_publish import AmqpPublish
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

AnyLoad: TypeAlias = (
    AmqpChannels
    | AmqpConsume
    | AmqpDeadLetters
    | AmqpFanout
    | AmqpLatency
    | AmqpOpen
    | AmqpPublish
    | CoapDevices
    | CoapHalf
    | CoapPost
    | HttpDevices
    | HttpHalf
    | HttpPost
    | MqttCatchUp
    | MqttConnect
    | MqttDevices
    | MqttFanout
    | MqttLatency
    | MqttPublish
    | MqttStorm
    | MqttSubscribers
    | SparkRead
    | StoreAppend
)
