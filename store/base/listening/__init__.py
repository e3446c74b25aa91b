"""Ports of nodes that any host can reach: connections are counted by address, and admitted when they prove themselves.

`Server` stands in for `grpc.aio`'s server and listens in front of it. A connection is unauthenticated until `admit` is
called for it, by the service that took its first sound message. Until then it has one of few places for a short time,
and its buffers count in the process's `PeerBudget` (docs/decisions/0036).

Imported by: base, base.pipes, node, serving, controller.node, controller.wire, gateway.dtls, gateway.runtime,
gateway.security.
Imports: base.streams.
"""

from store.base.listening.admission import admit
from store.base.listening.peer_budget import UNAUTHENTICATED, PeerBudget
from store.base.listening.server import Server
from store.base.listening.serving import serve

__all__ = ["UNAUTHENTICATED", "PeerBudget", "Server", "admit", "serve"]
