"""CoAP over TCP and TLS (RFC 8323): frames, signaling messages, and the connection that carries them.

Requests are done by the endpoint of CoAP over UDP, each as a Confirmable message of its own Message ID; the parts that
UDP alone needs (duplicates, retransmission, empty acknowledgements) are removed from its answers.

Imported by: coap, coap.websocket.
Imports: coap.codec, coap.endpoint, coap.messages, gateway.port.
"""

from adapters.coap.stream.connection import FREE_BYTES, IDLE_FRAMES_MAX, CoapConnection, StreamsContext

__all__ = ["FREE_BYTES", "IDLE_FRAMES_MAX", "CoapConnection", "StreamsContext"]
