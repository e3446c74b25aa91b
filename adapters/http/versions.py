"""The choice of HTTP's version by a connection's first bytes, and by the versions that a request offers."""

from typing import Final

from adapters.http.wire.abuse import SmallFrames
from adapters.http.wire.event_socket import COAP_PATH, MQTT_PATH, EventSocket
from adapters.http.wire.h1 import Http1
from adapters.http.wire.http2.guard import PREFACE
from adapters.http.wire.http2.transport import Http2
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.transport import Upgrade
from gateway.port.adapter import ConnectionInfo, HandOver

_LISTENERS: Final = {MQTT_PATH: "mqtt-ws", COAP_PATH: "coap-tcp"}  # their adapters take them
SWITCHING: Final = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: h2c\r\n\r\n"


def choose(opening: bytes, alpn: str | None, options: HttpOptions, small: SmallFrames) -> Http1 | Http2 | None:
    """Returns HTTP/2 by ALPN or by its preface, else HTTP/1.1; None while the first bytes could be either."""
    if alpn is None and len(opening) < len(PREFACE) and PREFACE.startswith(opening):
        return None
    if alpn == "h2" or (alpn is None and opening.startswith(PREFACE)):
        http2 = Http2(options, small)
        http2.open()
        return http2
    return Http1(options)


def handed_over(event: Upgrade, options: HttpOptions, info: ConnectionInfo) -> HandOver | None:
    """Returns the effect by which MQTT or CoAP goes on where a request asks for it; None: it does not, or must not."""
    listener = _listener(event)
    allowed = options.websocket_mqtt if listener == _LISTENERS[MQTT_PATH] else options.websocket_coap
    if listener is None or not allowed or listener not in info.others:
        return None
    request = event.request
    lines = b"".join([b"%b: %b\r\n" % header for header in request.headers])
    data = b"GET %b HTTP/1.1\r\n%b\r\n%b" % (request.target, lines, event.rest)
    return HandOver(listener=listener, data=data, websocket=True)


def _listener(event: Upgrade) -> str | None:
    """Returns the listener whose protocol a request asks for; None for one of HTTP itself."""
    return None if event.settings is not None else _LISTENERS.get(event.request.target.partition(b"?")[0])


def upgraded(
    event: Upgrade, options: HttpOptions, small: SmallFrames, *, secure: bool, now_ms: int
) -> tuple[Http2 | EventSocket, bytes] | None:
    """Returns the transport that goes on, and the bytes before its own output; None where there cannot be one."""
    if _listener(event) is not None:
        return None  # it is not spoken here
    if event.settings is None:
        return EventSocket(event.request, options, small, now_ms=now_ms), b""
    http2 = Http2(options, small)
    if secure or not http2.upgrade(event.request, event.settings, now_ms=now_ms):
        return None
    return http2, SWITCHING
