"""The client's side: a store group over the network (`RemoteStore`, `NearStore`, `RemoteReader`).

Gateways, Spark and the rooms above import this room; it imports `store.rpc` and `store.pipes`, never the engine.
"""

from store.remoting.client import RemoteStore
from store.remoting.near import NearStore

__all__ = ["NearStore", "RemoteStore"]
