"""What is published on its way to the logs of the store groups: each message once, in all of the groups or in none.

`outgoing` hands frames to the groups and answers publishers, `away` knows the groups that take nothing for now,
`fences` shuts the logs to what a session's former owner still sends, `once` is the key by which a request is stored
once.

`gateway.ingest`, which makes the frames, and `gateway.sessions` import from here; adapters import `once`, which is
part of their port. Imports the domain, the store's client and `store.guards`.
"""
