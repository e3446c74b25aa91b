"""The wire format of MQTT 3.1, 3.1.1 and 5.0: bytes to packets and back, without any state.

Imported by: mqtt, mqtt.connecting, mqtt.messages, mqtt.receiving, mqtt.session, mqtt.upstream.
Imports: gateway.domain.
"""

from adapters.mqtt.codec.decoder import PacketSpan, decode, read_fixed_header
from adapters.mqtt.codec.encoder import encode
from adapters.mqtt.codec.properties import Properties
from adapters.mqtt.codec.reason import ReasonCode

__all__ = ["PacketSpan", "Properties", "ReasonCode", "decode", "encode", "read_fixed_header"]
