"""Logging as a test found it: what commands set up in the process of the tests is undone."""

import contextlib
import logging
from collections.abc import Iterator

import structlog


@contextlib.contextmanager
def logging_restored() -> Iterator[None]:
    """Undoes `store.base.logs.configure` at the end: its handler writes to a stream that ends with the test."""
    root = logging.getLogger()
    handlers, level = set(root.handlers), root.level
    try:
        yield
    finally:
        if structlog.is_configured():
            from store.base.logs import _TALKATIVE

            for handler in root.handlers[:]:
                if handler not in handlers and isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter):
                    root.removeHandler(handler)
            root.setLevel(level)
            for name in _TALKATIVE:
                logging.getLogger(name).setLevel(logging.NOTSET)
            structlog.reset_defaults()
