"""Reach: which masters a replica or a proxy cannot reach, and which replicas answer it instead.

`silence` measures, `probe` asks a replica for an answer, `reach` joins both into a complaint (`controller.complaints`),
`reporter` tells the controllers' leader those of a proxy. Imported by `store.node`, and by the gateway for proxies;
imports `store.remoting`, `store.pipes` and the controller's messages.
"""
