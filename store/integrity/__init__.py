"""What a log should hold, what of it is damaged, and its repair in place (docs/decisions/0030).

Here live the ledger of damages (`ledger`), the writing of sound frames where the log has none (`mending`), the seals of
closed segments (`seals`, `sealer`), the floor that says how far the log was synced (`floor`), the look for files that
were removed (`presence`), reading around bad sectors (`sectors`), the list of messages that damage has taken (`lost`),
and the health of the views (`views`). The log imports `ledger`, `floor` and `sectors`; opening, recovery, the scrub and
the engine import the rest. The room imports the store's format, files and log, and `lost` the views; never the engine,
asyncio or a clock of the wall.
"""
