"""Reach: which masters a replica or a proxy cannot reach, and which replicas answer it instead.

`silence` measures, `probe` asks a replica for an answer, `reachability` joins both into a complaint
(`controller.complaints`), `reporter` tells the controllers' leader those of a proxy.

Imported by: node, gateway.process.
Imports: api, base, remoting, rpc, controller.api, controller.complaints.
"""
