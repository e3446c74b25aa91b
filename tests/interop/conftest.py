"""Fixtures of several files: a gateway with access rules, and one local Spark, whose start takes long."""

import pytest

from tests.support.gateway.ruled_gateway import amqp, mqtt, served  # noqa: F401 - fixtures


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory):
    """Yields a local session, and skips the test where there is no Java."""
    from spark.errors import MissingJdk
    from spark.job.session import build_session

    try:
        session = build_session("tests", shuffle_partitions=2, local_dir=tmp_path_factory.mktemp("spark"))
    except MissingJdk as error:
        pytest.skip(str(error))
    yield session
    session.stop()
