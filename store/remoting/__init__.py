"""The way from a proxy to a store node: `RemoteStore`, and what it and `store.service` say to each other."""

from store.remoting.client import RemoteStore

__all__ = ["RemoteStore"]
