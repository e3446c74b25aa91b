"""Analytics: the PySpark data source, the telemetry job and its tables."""
