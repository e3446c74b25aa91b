"""The keys and values of a `LocalStore`: reading ranges of one revision, and watching what changes.

`store.local` imports this room; it imports the views and what is recent.
"""
