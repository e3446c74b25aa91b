"""Handlers of requests: publishing, subscribing, searches, keys and values, groups, and who may ask.

`routes` is the table of them.

Imported by: http.
Imports: cloudevents, http.openapi, http.wire, gateway.domain, gateway.port, store.api, store.base, store.format.
"""
