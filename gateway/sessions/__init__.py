"""Durable sessions: their records, their wills, and what is left of those whose process ended.

Imported by: runtime.
Imports: base, delivery, domain, ownership, port, publishing, store.api, store.base.
"""
