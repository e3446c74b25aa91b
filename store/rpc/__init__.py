"""The language of a store node and its clients: methods, arguments, frames and names of streams.

Both sides import this room, `store.remoting` and `store.serving`; it imports the client's interface and the
controllers'. `table` has a row for each call, from which both sides are made.
"""
