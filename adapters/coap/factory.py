"""The factory that the entry point `coap` names."""

from typing import Any

from adapters.coap.endpoint import CoapEndpoint
from adapters.coap.settings import CoapOptions
from gateway.port.adapter import Adapter, ConnectionInfo, DatagramAdapter, Listener, Random

__all__ = ["FACTORY", "CoapFactory"]


class CoapFactory:
    """Makes the state machine of a socket (`gateway.port.adapter.AdapterFactory`)."""

    listeners = (
        Listener(
            name="coap", port=5683, transport="udp", summary="CoAP: GET, Observe, POST, PUT, DELETE of /t/{address}"
        ),
    )
    options = CoapOptions

    def connect(self, info: ConnectionInfo, options: Any, *, random: Random) -> Adapter:
        """CoAP over TCP (RFC 8323) is not spoken here: raises NotImplementedError."""
        raise NotImplementedError("CoAP has no stream listener")

    def bind(self, options: CoapOptions, *, random: Random) -> DatagramAdapter:
        """The state machine of a new socket."""
        return CoapEndpoint(options, random=random)


FACTORY = CoapFactory()
