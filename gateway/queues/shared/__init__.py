"""Shared subscriptions: their members, their queues, their settings, and the fair shares of several proxies.

Imported by: config, queues, runtime.
Imports: domain, ownership, port, publishing, queues.model, queues.topology, controller.api, store.api, store.base.
"""
