"""The engine: the threads around the log and its views, and everything they do.

`opening` and `recovery` begin, `commit` and `receiver` write, `gate` waits for other replicas, `dispatcher` makes
views, `compaction`, `trimming` and `snapshot` keep the directory small; `repair` works on a directory that is not open.
It has no event loop.

Imported by: local, node, gateway.cli, gateway.process.
Imports: store.*.
"""
