"""A store node: one replica of a store group, which follows or is the master, as the controllers say.

The command line runs it (`run`); the room imports all of the store, and the controllers as others see them.
"""
