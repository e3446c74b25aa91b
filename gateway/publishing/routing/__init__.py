"""Routing: from an address to its topic, its queue and the named queues that want it, and the settings of topics.

Imported by: config, groups, process, publishing, queues, runtime.
Imports: domain, port, controller.api, store.api, store.base, store.format.
"""
