"""A controller's memory, its peers, and its right to vote (docs/decisions/0033).

`operator_texts` holds the texts for operators, `census` asks the other controllers who they are, `memory_check`
decides with their answers, `members` keeps the members, and `recovery` makes a cluster of the one controller that is
left.

Imported by: node, gateway.cli.
Imports: api, disk, elections, metadata, raft, wire, store.base.
"""
