"""Guards: conditions on which rows of a frame are stored, decided by the master in the order of its log.

A guard is a row of the key-value queue. It names its subject (128 bits), and covers some rows in front of it and
itself. Two kinds:

    fence   the name's owner writes, and says by which epoch it owns. Stored unless a later owner has raised the fence.
    once    the name is a key that a request was given. Stored unless the key is there already.

`rows` is how they are written down and how a frame is left without some of them, `table` decides. `store.engine.commit`
asks the table in the place where it compares producers' sequences; gateways make the rows.

Imported by: engine, gateway.domain, gateway.publishing.
Imports: api, format.
"""
