"""The gateway's values: addresses, filters, principals, access rules, errors, and conditions in SQL92.

Decisions without input or output. The whole gateway and all adapters may import this room; it imports the client's
interface of the store, and `gateway.base`.
"""
