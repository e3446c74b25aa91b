"""Parts of pages: the frame around them, figures, tables, charts and states in words.

It knows Dash, and no gateway.

Imported by: dashboard, dashboard.pages.
Imports: dashboard.queries.
"""
