"""A running gateway as its own client sees it: its HTTP port, its groups, its keys and values.

The command line imports this room; it imports the ports of the subjects, and no part of a server.
"""
