"""Push: events delivered to the sinks of subscriptions (CloudEvents Subscriptions API), at least once and in order.

A subscription is a key; the process that owns its name (`gateway.ownership.owners`) reads the logs for it, and keeps
its cursor. `outbox` decides, without input or output, which delivery is attempted when; `delivery` is one subscription
at work, `manager` all of them, `registry` answers the requests of `gateway.port.push`. `guard` says where a sink may
be, `client` connects there and nowhere else.

Imported by: bridges, config, remote, runtime.
Imports: gateway.*, store.api, store.base, store.format.
"""
