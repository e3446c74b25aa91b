"""Commands that ask the controllers of a cluster, and those for users and access rules.

Imported by: cli.
Imports: config, domain, operating, process, security, controller.api, store.base, store.cluster.
"""
