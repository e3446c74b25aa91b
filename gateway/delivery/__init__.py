"""The way from the logs to subscribers: lanes, catching up, and searches for messages and last values.

Imported by: bridges, push, runtime, sessions.
Imports: base, domain, ops, port, store.api, store.base, store.format.
"""
