"""What a log should hold, what of it is damaged, and its repair in place (docs/decisions/0030).

Here live the ledger of damages (`ledger`), the writing of sound frames where the log has none (`mending`), and the look
for files that were removed (`presence`). The log,
recovery, the scrub and the engine import this room; it imports the store's format, segments and files, and never the
engine, the views, asyncio or a clock.
"""
