"""Commands of single protocols.

Imported by: cli.
Imports: config, oscore, store.base.
"""
