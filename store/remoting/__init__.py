"""The way from a proxy to a store node: `RemoteStore`, and what it and `store.service` say to each other."""

from store.remoting.client import RemoteStore
from store.remoting.near import NearStore

__all__ = ["NearStore", "RemoteStore"]
