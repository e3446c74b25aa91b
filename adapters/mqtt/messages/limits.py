"""Limits on a client's messages. Each limit is an option, and has its reason code."""

from adapters.mqtt.codec.packets import Will
from adapters.mqtt.codec.properties import Properties
from adapters.mqtt.codec.reason import ReasonCode
from adapters.mqtt.messages.options import Options
from gateway.domain.errors import ProtocolError

_CHARACTER_BYTES_MAX = 4  # of UTF-8


def fits(address: str, options: Options) -> bool:
    """Returns whether an address is within the limits on topics."""
    if address.count("/") >= options.topic_levels_max:
        return False
    short = len(address) * _CHARACTER_BYTES_MAX <= options.topic_bytes_max
    return short or len(address.encode()) <= options.topic_bytes_max


def check_message(address: str, properties: Properties, options: Options) -> None:
    """Raises `ProtocolError` (0x90, 0x97) for a message that is too much; others of its client may not be."""
    if not fits(address, options):
        limits = f"{options.topic_levels_max} levels and {options.topic_bytes_max} bytes"
        raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, f"a topic name has at most {limits}")
    if len(properties.user) > options.user_properties_max:
        raise ProtocolError(
            ReasonCode.QUOTA_EXCEEDED, f"a message has at most {options.user_properties_max} user properties"
        )


def check_will(will: Will, options: Options) -> None:
    """Raises `ProtocolError` (0x90, 0x95, 0x97) for a will that is too much."""
    check_message(will.topic, will.properties, options)
    if len(will.payload) > options.will_bytes_max:
        raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, f"a will has at most {options.will_bytes_max} bytes")
