"""The start of a gRPC server: the options that are the same for every node, its services, and its port."""

import errno
from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc

from store.base.streams import FIXED_WINDOW

KEEPALIVE_MIN_MS: Final = 5_000  # clients may ping this often to find a dead connection


async def serve(
    new_server: Callable[..., Any],
    address: str,
    services: Mapping[str, Mapping[str, Any]],
    *,
    credentials: Any,
    received_bytes_max: int,
    sent_bytes_max: int,
    calls_count_max: int,
) -> tuple[Any, int]:
    """Starts a server on `address`, host and port, and returns it with its port; port 0 takes a free one.

    `new_server` makes it, as `grpc.aio.server` would; `services` are handlers by service and method. `credentials` are
    `store.rpc.credentials`'; without them everybody may connect. Raises `OSError` when the address cannot be bound.
    """
    server = new_server(
        options=(
            ("grpc.so_reuseport", 0),  # a second server on the port is a mistake, not a load balancer
            ("grpc.max_receive_message_length", received_bytes_max),
            ("grpc.max_send_message_length", sent_bytes_max),
            ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MIN_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            *FIXED_WINDOW,
        ),
        maximum_concurrent_rpcs=calls_count_max,
    )
    for name, handlers in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    try:
        port = (
            server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
        )
    except RuntimeError as error:
        raise OSError(errno.EADDRINUSE, "it is in use, or not an address of this machine") from error
    await server.start()
    return server, int(port)
