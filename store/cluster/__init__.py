"""All store groups of a cluster as one `StoreClient`: the calls that are spread over groups.

Imported by: gateway.cli, gateway.process.
Imports: api, base, format, remoting, controller.api.
"""
