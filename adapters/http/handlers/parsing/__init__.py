"""Parts of a request that several handlers parse: its query and JSON body, and its conditions.

Imported by: http.handlers.
Imports: cloudevents, http.wire, gateway.port, store.api.
"""
