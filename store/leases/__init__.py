"""Leases of queued messages, as they are decided: their holders, their order, their ends.

`leases` are those of one group in one queue, `table` all of them; `ordering` and `in_flight` are parts of the former.
`look_ahead` keeps messages located for takes to come. Cores without input or output.

Imported by: local, recent.
Imports: api, format.
"""
