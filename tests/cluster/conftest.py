"""Fixtures of several files of this folder."""

from tests.support.cluster.two_proxies import running  # noqa: F401 - a fixture
