"""Fixtures for every test."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Tests marked `anyio` run on asyncio only."""
    return "asyncio"
