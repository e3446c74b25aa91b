"""Ownership of names among several proxies: owners, their keys, their presence, and outage leases.

The rooms above import this one; it imports the port, and the clients of store and controllers.
"""
