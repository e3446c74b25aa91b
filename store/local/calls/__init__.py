"""The calls of a `LocalStore`, by what they are about.

`store.local` imports this room; it imports the engine and what is recent.
"""
