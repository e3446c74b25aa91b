"""Durable sessions: their records, their wills, and what is left of those whose process ended.

The runtime imports this room; it imports publishing, delivery and ownership.
"""
