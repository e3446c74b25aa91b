"""Replication of one store group: cores without input or output, driven by bytes, offsets and a clock passed in.

`store.node` and what repairs a directory import this room; it imports the log and the format.
"""
