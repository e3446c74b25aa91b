"""The keys and values of a `LocalStore`: reading ranges of one revision, and watching what changes.

Imported by: local.
Imports: store.*.
"""
