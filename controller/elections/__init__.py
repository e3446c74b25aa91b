"""The knowledge that the controllers' leader has from heartbeats, and its rules for electing masters.

`registry` keeps the heartbeats, `elections` and `admission` are the policy, `announcements` logs their decisions,
`serving` and `health` report a group's state. No input or output.

Imported by: incarnations, node, remote, wire, gateway.operating, gateway.ops, gateway.process, store.node.
Imports: api, complaints, metadata.
"""
