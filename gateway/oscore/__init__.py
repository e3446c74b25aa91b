"""OSCORE's security contexts (RFC 8613): the file that provisions them, their owners and their sequence numbers.

`gateway.runtime` answers the adapter's requests with it, and `gateway.cli` changes the file.

Imported by: cli, process, runtime.
Imports: base, domain, ownership, port, store.api, store.base.
"""
