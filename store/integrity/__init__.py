"""The integrity of a log: its promised content, and the damage to it (docs/decisions/0030).

Here live the ledger of damages (`ledger`), the seals of closed segments (`seals`), the floor that says how far the log
was synced (`floor`), reading around bad sectors (`sectors`), the health of the views (`views`), and counters of damage
as metrics (`figures`). `store.log` seals segments and mends them, `store.engine` lists the messages that are lost. The
rooms from `store.log` up import this one; it imports the disk and the format.
"""
