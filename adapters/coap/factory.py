"""The factory that the entry point `coap` names."""

from adapters.coap.endpoint.endpoint import CoapEndpoint
from adapters.coap.endpoint.timed import TimedSecuredSocket, TimedSocket
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.messages.times import SocketTime
from adapters.coap.secured.socket import SecuredSocket
from adapters.coap.stream import CoapConnection, StreamsContext
from gateway.port.adapter import Adapter, ConnectionInfo, Listener, Random
from gateway.port.datagram import DatagramAdapter, SecuredDatagramAdapter


class CoapFactory:
    """Makes the state machines of sockets and connections (`gateway.port.adapter.AdapterFactory`)."""

    listeners = (
        Listener(
            name="coap", port=5683, transport="udp", summary="CoAP: GET, Observe, POST, PUT, DELETE of /t/{address}"
        ),
        Listener(
            name="coap-tcp",
            port=5683,
            transport="tcp",
            tls_port=5684,
            alpn=("coap",),
            summary="CoAP over TCP (RFC 8323), the same",
        ),
        Listener(
            name="coaps", port=5684, transport="udp", dtls=True, enabled=False, summary="CoAP over DTLS 1.2, the same"
        ),
    )
    options = CoapOptions

    def __init__(self) -> None:
        self._streams: StreamsContext | None = None  # of the options used last, which are one object

    def connect(self, info: ConnectionInfo, options: CoapOptions, *, random: Random) -> Adapter:
        """Returns the state machine of a new connection."""
        if self._streams is None or self._streams.settings is not options:
            self._streams = StreamsContext(options)
        connection = CoapConnection(info, self._streams, random=random)
        if info.websocket:
            from adapters.coap.websocket import in_websocket  # noqa: PLC0415 - `websockets`, for those that have one

            return in_websocket(connection, info, self._streams)
        return connection

    def bind(self, options: CoapOptions, *, random: Random) -> DatagramAdapter:
        """Returns the state machine of a new socket."""
        time = SocketTime()
        if options.oscore:
            from adapters.coap.oscore.socket import OscoreSocket  # noqa: PLC0415 - cryptography that few need

            return TimedSocket(OscoreSocket(options, time, random=random), time)
        return TimedSocket(CoapEndpoint(options, random=random, time=time), time)

    def bind_secured(self, options: CoapOptions, *, random: Random) -> SecuredDatagramAdapter:
        """Returns the state machine of a new socket with DTLS."""
        time = SocketTime()
        return TimedSecuredSocket(SecuredSocket(options, time, random=random), time)


FACTORY = CoapFactory()
