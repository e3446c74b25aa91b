"""The pages, a file each: `page` makes what stands still, `body` what is refreshed.

`spark.dashboard.server` imports it. It imports `spark.dashboard.layout`, `queries` and `admin`.
"""
