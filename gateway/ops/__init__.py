"""A gateway's own figures: metrics, flow by protocol, the status document, the banner.

Imported by: gateway.*.
Imports: domain, controller.api, controller.elections, controller.remote, store.api, store.base, store.integrity,
store.rpc.
"""
