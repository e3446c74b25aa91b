"""Durable sessions: their records, their wills, and the remains of those whose process ended.

Imported by: process, runtime.
Imports: base, delivery, domain, ownership, port, publishing, store.api, store.base.
"""
