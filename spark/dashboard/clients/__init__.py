"""The gateway as the dashboard asks it: its admin API, and its HTTP port in the name of who is logged in.

Imported by: dashboard, dashboard.pages.
Imports: none.
"""
