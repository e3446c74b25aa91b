"""A question to a replica that any of them answers, in whatever role: whether it can be reached."""

from typing import Any

from store.base.errors import StoreError, StoreUnreachable
from store.remoting.node_streams import NodeStreams
from store.rpc import arguments

PROBE_S = 1.0  # for a connection and one answer


async def answers(address: str, group: int, *, cluster: str = "", credentials: Any = None) -> bool:
    """Returns whether a replica of a group answers at `address`; a refusal is an answer."""
    hello = arguments.Hello(group, True, cluster)
    try:
        streams = await NodeStreams.open(address, hello, credentials=credentials, timeout_s=PROBE_S)
    except StoreUnreachable:
        return False
    except StoreError:
        return True
    await streams.close()
    return True
