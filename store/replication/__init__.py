"""Replication of one store group: cores without input or output, driven by bytes, offsets and a clock passed in.

Imported by: engine, node, rpc.
Imports: base, disk, format.
"""
