"""Timers: records that are appended when they are due, and a ticker that survives a changed wall clock.

The rooms from `store.recent` up import this one; it imports the views.
"""
