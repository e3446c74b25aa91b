"""CONNECT: the client's wishes, the terms that it gets, and the CONNACK that states them (MQTT 5.0, 3.1 and 3.2)."""

import msgspec
from msgspec.structs import replace

from adapters.mqtt.codec.decoder import PacketSpan, check_topic_name, read_fixed_header
from adapters.mqtt.codec.packets import Connack, Connect, Will
from adapters.mqtt.codec.primitives import VARINT_MAX, clean_text
from adapters.mqtt.codec.properties import Properties
from adapters.mqtt.codec.reason import RETURN_CODES, ReasonCode
from adapters.mqtt.connecting.connection_context import ConnectionContext
from adapters.mqtt.messages.limits import check_will
from adapters.mqtt.messages.messages import Template, own_client_id, with_sparkplug
from adapters.mqtt.messages.options import Options
from adapters.mqtt.messages.sparkplug import sparkplug_of
from gateway.domain.bridge_path import introduced, introduction
from gateway.domain.errors import ProtocolError, Refusal
from gateway.port import sessions as port
from gateway.port.adapter import Authenticate, Random
from store.api.message import Message

NEVER_EXPIRES_S = 0xFFFF_FFFF  # 3.1.2.11.2
_ASSIGNED_BITS = 128
_REFERRING = frozenset({ReasonCode.USE_ANOTHER_SERVER, ReasonCode.SERVER_MOVED})
_CLIENT_ID = "${client_id}"


def whole(data: bytes, options: Options) -> tuple[PacketSpan | None, int]:
    """Returns the first packet of the input, None until it is whole, and how many bytes that takes.

    Raises `ProtocolError` (0x81, 0x95).
    """
    frame = read_fixed_header(data)
    if frame is None:
        return None, len(data) + 1
    if frame.end > options.connect_bytes_max:
        raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, f"a packet of {frame.end} bytes before CONNACK")
    return (frame if frame.end <= len(data) else None), frame.end


class ConnectTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms that client and gateway have agreed on."""

    version: int
    client_id: str
    assigned: bool  # the client left the choice of its identifier to us
    clean: bool
    expiry_s: int | None  # how long the session outlives the connection; None: forever
    expiry_lowered: bool
    keep_alive_s: int  # 0: none
    keep_alive_ours: bool
    inflight_max: int  # QoS 1 and 2 deliveries that may be unacknowledged
    packet_bytes_max: int  # the largest packet the client takes
    aliases_max: int  # topic aliases it is sent
    will: Will | None
    method: str | None = None  # of an authentication in several steps
    response_information: str | None = None  # the prefix of topics for its responses (3.2.2.3.15)
    gateway: str = ""  # our id, for a bridge of another gateway; "": the client is none


def will_of(terms: ConnectTerms, context: ConnectionContext) -> port.Will | None:
    """Returns the will, if there is one (3.1.2.5). It may wait for its client to come back (3.1.3.2.2)."""
    will = terms.will
    if will is None:
        return None
    client_id = own_client_id(terms.client_id, context.device)
    message = _message_of(will, device=context.device, principal=context.principal, client_id=client_id)
    if context.options.sparkplug and (said := sparkplug_of(will.topic)) is not None:
        message = with_sparkplug(message, said, client_id=terms.client_id if context.anonymous else None)
    return port.Will(
        message=replace(message, expires_at_ms=None),
        delay_ms=(will.properties.will_delay_s or 0) * 1_000,
        lives_ms=message.expires_at_ms,
    )


def _message_of(will: Will, *, device: str, principal: str | None, client_id: str | None) -> Message:
    return Template.of(will.properties, client_id).message(
        will.topic, will.payload, qos=will.qos, retain=will.retain, device=device, principal=principal, now_ms=0
    )


def _check_will(will: Will) -> None:
    """Raises `ProtocolError` (0x90, 0x99) for a will that could not be published when its time has come."""
    response_topic = will.properties.response_topic
    if response_topic is not None:
        check_topic_name(response_topic)
    try:
        _message_of(will, device="", principal=None, client_id=None)
    except Refusal as error:
        raise ProtocolError(ReasonCode.PAYLOAD_FORMAT_INVALID, error.detail) from None


def granted_expiry(asked_s: int | None, options: Options) -> int | None:
    """Returns how long a session may outlive its connection, given the time asked for; None: forever."""
    most = options.session_expiry_max_s
    if asked_s is None or asked_s == NEVER_EXPIRES_S:
        return most
    return asked_s if most is None else min(asked_s, most)


def agree(connect: Connect, options: Options, random: Random, gateway: str = "") -> ConnectTerms:
    """Returns the terms of a connection; `gateway` is our id.

    Raises `ProtocolError` (0x85, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9D) when there can be none.
    """
    if options.server_moved:
        raise ProtocolError(ReasonCode.SERVER_MOVED, "this gateway has moved")
    properties = connect.properties
    method = properties.authentication_method
    if method is not None and method not in options.authentication_methods:
        raise ProtocolError(ReasonCode.BAD_AUTHENTICATION_METHOD, method)
    if connect.will is not None:
        check_will(connect.will, options)
        _check_will(connect.will)
    assigned = not connect.client_id
    if assigned and (connect.version == 3 or (connect.version == 4 and not connect.clean)):
        raise ProtocolError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "a session needs a client identifier")
    if len(connect.client_id.encode()) > options.client_id_bytes_max:
        raise ProtocolError(
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            f"a client identifier has at most {options.client_id_bytes_max} bytes",
        )
    asked_s = properties.session_expiry_s or 0
    if connect.version < 5 and not connect.clean:  # such a session of 3.1.1 has no end of its own
        asked_s = NEVER_EXPIRES_S
    expiry_s = granted_expiry(asked_s, options)
    keep_alive_s, longest_s = connect.keep_alive_s, options.keep_alive_max_s
    keep_alive_ours = connect.version == 5 and bool(longest_s) and not 0 < keep_alive_s <= longest_s
    client_id = connect.client_id or f"auto-{random.getrandbits(_ASSIGNED_BITS):032x}"
    return ConnectTerms(
        version=connect.version,
        client_id=client_id,
        assigned=assigned,
        clean=connect.clean,
        expiry_s=expiry_s,
        expiry_lowered=expiry_s != (None if asked_s == NEVER_EXPIRES_S else asked_s),
        keep_alive_s=longest_s if keep_alive_ours else keep_alive_s,
        keep_alive_ours=keep_alive_ours,
        inflight_max=min(properties.receive_maximum or 65_535, options.inflight_max),
        packet_bytes_max=properties.maximum_packet_bytes or VARINT_MAX + 5,
        aliases_max=min(properties.topic_alias_maximum or 0, options.topic_alias_outbound_max),
        will=connect.will,
        method=method,
        response_information=_response_information(client_id, options)
        if properties.request_response_information
        else None,
        gateway=gateway if properties.user and introduced(properties.user) else "",
    )


def _response_information(client_id: str, options: Options) -> str | None:
    """Returns the topic prefix for a client's responses; None: none is set, or its identifier cannot be a level."""
    prefix = options.response_topic_prefix
    if not prefix or (_CLIENT_ID in prefix and not {"/", "+", "#"}.isdisjoint(client_id)):
        return None
    return prefix.replace(_CLIENT_ID, client_id)


def authentication(connect: Connect, terms: ConnectTerms) -> Authenticate:
    """Returns the question who this is. A client of 5.0 may send a password without a user name (3.1.2.9)."""
    if connect.username is None and connect.password is None:
        return Authenticate(mechanism="anonymous", client_id=terms.client_id)
    return Authenticate(
        mechanism="password",
        username=connect.username or "",
        password=connect.password or b"",
        client_id=terms.client_id,
    )


def welcome(terms: ConnectTerms, options: Options, *, session_present: bool, final: bytes = b"") -> Connack:
    """Returns the CONNACK of an accepted connection: the terms that differ from its request or from MQTT's defaults.

    `final` is the last word of its authentication method, which is named as often as it is spoken (MQTT-4.12.0-5).
    """
    if terms.version < 5:
        return Connack(session_present=session_present and terms.version == 4)
    expiry_s = NEVER_EXPIRES_S if terms.expiry_s is None else terms.expiry_s
    return Connack(
        session_present=session_present,
        properties=Properties(
            session_expiry_s=expiry_s if terms.expiry_lowered else None,
            receive_maximum=options.receive_maximum if options.receive_maximum < 65_535 else None,
            maximum_packet_bytes=options.max_packet_bytes,
            assigned_client_id=terms.client_id if terms.assigned else None,
            topic_alias_maximum=options.topic_alias_maximum or None,
            server_keep_alive_s=terms.keep_alive_s if terms.keep_alive_ours else None,
            response_information=terms.response_information,
            authentication_method=terms.method,
            authentication_data=final or None,
            # A property that is absent means available: QoS 2, retain, wildcards, subscription identifiers (3.2.2.3).
            shared_subscription_available=None if options.shared_subscriptions else 0,
            user=introduction(terms.gateway),
        ),
    )


def explanation(code: int, detail: str, options: Options) -> Properties:
    """Returns the properties of a CONNACK or a DISCONNECT: why, and where else to go (4.11)."""
    return Properties(
        reason=clean_text(detail),
        server_reference=(options.server_reference or None) if code in _REFERRING else None,
    )


def leaving(options: Options, *, connected: bool, dismissed: bool) -> tuple[ReasonCode, str]:
    """Returns code and reason for clients when the gateway stops, or dismisses them: CONNACK has not all the codes."""
    if dismissed:
        code = ReasonCode.ADMINISTRATIVE_ACTION if connected else ReasonCode.NOT_AUTHORIZED
        return code, "the user has been removed, or changed"
    why = "the gateway is going down"
    if options.server_reference:
        return (ReasonCode.SERVER_MOVED if options.server_moved else ReasonCode.USE_ANOTHER_SERVER), why
    return (ReasonCode.SERVER_SHUTTING_DOWN if connected else ReasonCode.SERVER_UNAVAILABLE), why


def refusal(version: int, code: int, detail: str, options: Options) -> Connack | None:
    """Returns the CONNACK of a connection that is not let in; None: 3.1.1 has no word for the reason (3.1.4)."""
    if version == 5:
        return Connack(code=code, properties=explanation(code, detail, options))
    return_code = RETURN_CODES.get(ReasonCode(code))
    return None if return_code is None else Connack(code=return_code)
