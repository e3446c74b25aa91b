"""Analytics: the PySpark data source, the telemetry job and its tables.

It reads through the store's client, and imports neither the gateway nor an adapter. Rooms, from the top: `dashboard`,
`shell`, `job`, `source` and `tables`, `publishing`, `telemetry` and `decode`.
"""
