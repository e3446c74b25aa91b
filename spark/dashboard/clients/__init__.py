"""The gateway as the dashboard asks it: its admin API, and its HTTP port in the name of the logged-in user.

Imported by: dashboard, dashboard.pages.
Imports: none.
"""
