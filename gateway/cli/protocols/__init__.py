"""Commands of single protocols.

Imported by: cli.
Imports: cli.remote, config, domain, ops, oscore, remote, store.base.
"""
