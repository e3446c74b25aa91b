"""Parts of pages: the frame around them, figures, tables, charts and states in words.

`spark.dashboard.pages` and `spark.dashboard.server` import it. It imports Dash, and no table and no gateway.
"""
