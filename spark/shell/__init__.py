"""Sessions for people: the log and the tables as views, and SQL from the command line.

    from spark.shell import open_session
    session = open_session("127.0.0.1:8081", tables="headgate-data/telemetry")
    session.sql("select device, count(*) from log where topic = 'telemetry' group by device").show()

It is for the command line and for notebooks.

Imported by: gateway.cli.
Imports: job, source, spark, tables.
"""

from spark.job.session import register
from spark.shell.views import location_of, open_session, refresh

__all__ = ["location_of", "open_session", "refresh", "register"]
