"""Commands that speak to a running gateway: messages and topics, consumer groups, keys and values.

Imported by: cli, cli.protocols.
Imports: base, domain, remote, store.api, store.base.
"""
