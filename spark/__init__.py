"""Analytics: the PySpark data source, the telemetry job and its tables.

It reads through the store's client, and knows neither the gateway nor an adapter. Rooms, from the top: `dashboard`,
`shell`, `job`, `findings`, `source` and `tables`, `publishing`, `telemetry` and `decode`, `parsing` and `errors`.

Imported by: gateway, pyspark_headgate.
Imports: store.
"""
