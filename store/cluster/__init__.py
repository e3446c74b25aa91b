"""All store groups of a cluster as one `StoreClient`: the calls that are spread over groups.

Gateways import this room; it imports `store.remoting`.
"""
