"""Access rules on the side channels: what a denied user must not learn from counts, cursors, times and names.

Here live sealed cursors (`cursors`), the grid that answers of searches are given on (`grid`), the addresses that a
message names besides its own (`named`), and wills whose right was revoked (`wills`). `gateway.access*`, `gateway.find`,
`gateway.hub` and the requests of the gateway import this room. It imports the gateway's domain (errors, messages,
addresses, `gateway.wills`) and the store's client, never a shell, a socket or an adapter.
"""
