"""Commands of single protocols.

Imported by: cli.
Imports: cli.remote, config, ops, oscore, remote, store.base.
"""
