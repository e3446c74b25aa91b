"""The phases of a connection, and which of them follow which."""

from enum import Enum


class Phase(Enum):
    """The phases of a connection."""

    AWAITING_CONNECT = "awaiting CONNECT"
    AUTHENTICATING = "authenticating"
    CHALLENGED = "awaiting AUTH"
    OPENING = "opening the session"
    CONNECTED = "connected"
    CLOSED = "closed"


# Every phase also leads to CLOSED, and AUTHENTICATING, where there is more to prove, to CHALLENGED and back.
NEXT: dict[Phase, Phase] = {
    Phase.AWAITING_CONNECT: Phase.AUTHENTICATING,
    Phase.AUTHENTICATING: Phase.OPENING,
    Phase.CHALLENGED: Phase.AUTHENTICATING,
    Phase.OPENING: Phase.CONNECTED,
}
GATES = (Phase.AUTHENTICATING, Phase.OPENING)  # the client waits for its CONNACK, and we for the gateway
UNPROVEN = (Phase.AWAITING_CONNECT, Phase.CHALLENGED)  # it is the client's turn, and it has not long for it
