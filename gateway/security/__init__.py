"""Authentication, access and limits: passwords, tokens, certificates, rights, and the rates of clients.

Imported by: gateway.*.
Imports: base, domain, ops, port, sockets, controller.api, store.api, store.base.
"""
