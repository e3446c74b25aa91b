"""The configuration: every section as one frozen value, and the node that it describes.

Imported by: cli, operating, process, runtime.
Imports: gateway.*, store.api, store.base, store.rpc.
"""
