"""Topic names that ask for a later delivery: `$delayed/{seconds}/{topic}`."""

from adapters.mqtt.codec.reason import ReasonCode
from gateway.domain.errors import ProtocolError

PREFIX = "$delayed/"
DELAY_MAX_S = 10**9  # some thirty years


def delayed(topic: str) -> tuple[int, str]:
    """Returns the delay in seconds and the address that a topic name beginning with `PREFIX` stands for.

    Raises `ProtocolError` (0x90) when it does not say both.
    """
    _, seconds, address = (*topic.split("/", 2), "", "")[:3]
    if not address or not seconds.isascii() or not seconds.isdigit() or len(seconds) > 10:
        raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, "not of the form $delayed/{seconds}/{topic}")
    if int(seconds) > DELAY_MAX_S:
        raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, f"a delay of more than {DELAY_MAX_S} s")
    return int(seconds), address
