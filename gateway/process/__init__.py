"""Processes by role: each checks its configuration, opens its parts, runs, and closes them in order.

Imported by: cli, operating.
Imports: gateway.*, controller.api, controller.disk, controller.elections, controller.node, controller.remote, store.*.
"""
