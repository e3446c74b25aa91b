"""The commit log: frames back to back in segments, one offset space.

`log` and `segment` are the files, `tail` the newest frames in memory, `run` some frames reduced to the parts that the
views need. `scrub`, `sealer` and `mending` look for damage and repair it; `producers` recognises repeated frames,
`retention` decides which records are kept.

Imported by: engine, local, node, recent, views, gateway.process.
Imports: base, disk, format, integrity.
"""
