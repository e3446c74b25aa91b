"""The integrity of a log: its promised content, and the damage to it (docs/decisions/0030).

Here live the ledger of damages (`ledger`), the seals of closed segments (`seals`), the floor that says how far the log
was synced (`floor`), reading around bad sectors (`sectors`), the health of the views (`views`), the checksums and
counts of their entries (`tables`), and counters of damage as metrics (`figures`). `store.log` seals segments and mends
them, `store.engine` lists the messages that are lost.

Imported by: engine, local, log, node, views, gateway.ops.
Imports: base, disk, format.
"""
