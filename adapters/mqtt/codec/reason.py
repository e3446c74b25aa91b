"""Reason codes of MQTT 5.0 (2.4), and the mapping of the gateway's causes of refusal on each packet."""

from enum import IntEnum

from gateway.domain.errors import Cause


class ReasonCode(IntEnum):
    """MQTT 5.0, 2.4. From 0x80 on it is a failure. 0 also means "normal disconnection" and "granted QoS 0"."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


SUBACK_FAILURE = 0x80  # the one failure a SUBACK of 3.1.1 knows (3.9.3)

# Why a connection is not let in. UNAUTHENTICATED is 0x87 instead when no credentials were offered.
CONNACK_CODES: dict[Cause, ReasonCode] = {
    Cause.UNAUTHENTICATED: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    Cause.FORBIDDEN: ReasonCode.NOT_AUTHORIZED,
    Cause.MALFORMED: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    Cause.TOO_LARGE: ReasonCode.PACKET_TOO_LARGE,
    Cause.NOT_FOUND: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    Cause.CONFLICT: ReasonCode.SERVER_BUSY,
    Cause.PRECONDITION: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    Cause.QUOTA: ReasonCode.QUOTA_EXCEEDED,
    Cause.RATE: ReasonCode.CONNECTION_RATE_EXCEEDED,
    Cause.OVERLOAD: ReasonCode.SERVER_BUSY,
    Cause.UNAVAILABLE: ReasonCode.SERVER_UNAVAILABLE,
    Cause.DAMAGED: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    Cause.UNKNOWN: ReasonCode.SERVER_UNAVAILABLE,
}

# CONNACK return codes of 3.1.1 (3.2.2.3); a code that is missing here closes the connection without a CONNACK.
RETURN_CODES: dict[ReasonCode, int] = {
    ReasonCode.SUCCESS: 0,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.SERVER_UNAVAILABLE: 3,
    ReasonCode.SERVER_BUSY: 3,
    ReasonCode.QUOTA_EXCEEDED: 3,
    ReasonCode.CONNECTION_RATE_EXCEEDED: 3,
    ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR: 3,
    ReasonCode.USE_ANOTHER_SERVER: 3,
    ReasonCode.SERVER_MOVED: 3,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
}
# The reason code of each return code: the first above, where several share it.
CODES_OF_RETURN: dict[int, ReasonCode] = {number: code for code, number in reversed(RETURN_CODES.items())}

# The code of a PUBACK or PUBREC for one message that was not stored.
PUBACK_CODES: dict[Cause, ReasonCode] = {
    Cause.UNAUTHENTICATED: ReasonCode.NOT_AUTHORIZED,
    Cause.FORBIDDEN: ReasonCode.NOT_AUTHORIZED,
    Cause.MALFORMED: ReasonCode.TOPIC_NAME_INVALID,  # the gateway looks at nothing else of a message
    # Its packet was no larger than we said we take: to be disconnected for it, the client would send it forever.
    Cause.TOO_LARGE: ReasonCode.QUOTA_EXCEEDED,
    Cause.NOT_FOUND: ReasonCode.TOPIC_NAME_INVALID,
    Cause.CONFLICT: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    Cause.PRECONDITION: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    Cause.QUOTA: ReasonCode.QUOTA_EXCEEDED,
    Cause.RATE: ReasonCode.QUOTA_EXCEEDED,
    Cause.OVERLOAD: ReasonCode.QUOTA_EXCEEDED,
    Cause.DAMAGED: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
}

# The code of a DISCONNECT where there is no PUBACK: for QoS 0, and for causes that get none. A PUBACK, whatever its
# code, ends the client's duty to send the message again, and it is just that duty which carries it over an outage.
DISCONNECTING: dict[Cause, ReasonCode] = {
    Cause.TOO_LARGE: ReasonCode.PACKET_TOO_LARGE,
    Cause.UNAVAILABLE: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    Cause.UNKNOWN: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
}

# Ends that a client of 3.1.1 cannot tell from a lost connection: it sends the same message again.
SENT_AGAIN: frozenset[int] = frozenset(
    {
        ReasonCode.PACKET_TOO_LARGE,
        ReasonCode.TOPIC_NAME_INVALID,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.QUOTA_EXCEEDED,
    }
)

# The code of a SUBACK of 5.0 for a subscription that the gateway refused.
SUBACK_CODES: dict[Cause, ReasonCode] = {
    **dict.fromkeys(Cause, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
    Cause.UNAUTHENTICATED: ReasonCode.NOT_AUTHORIZED,
    Cause.FORBIDDEN: ReasonCode.NOT_AUTHORIZED,
    Cause.MALFORMED: ReasonCode.TOPIC_FILTER_INVALID,
    Cause.QUOTA: ReasonCode.QUOTA_EXCEEDED,
    Cause.OVERLOAD: ReasonCode.QUOTA_EXCEEDED,
    Cause.DAMAGED: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
}

assert PUBACK_CODES.keys() | DISCONNECTING.keys() == set(Cause) == CONNACK_CODES.keys()
