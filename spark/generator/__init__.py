"""Telemetry of devices with labelled faults, or of a CSV file, and how well the job has found the faults.

The command line sends the messages of `fleet` and `replay`, at the pace of `pacing`; nothing here needs Spark or a JDK.

Imported by: gateway.cli.
Imports: decode, publishing, spark, tables, telemetry.
"""
