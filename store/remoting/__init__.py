"""The client's side: a store group over the network (`RemoteStore`, `NearStore`, `RemoteReader`).

It never needs the engine.

Imported by: cluster, reach, spark.job, spark.source.
Imports: api, base, format, rpc, controller.api.
"""

from store.remoting.client import RemoteStore
from store.remoting.near import NearStore

__all__ = ["NearStore", "RemoteStore"]
