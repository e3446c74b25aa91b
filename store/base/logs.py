"""Structured logs: readable on a terminal, one JSON object a line otherwise.

Events are short constant texts with fields: `log.info("listening", listener="mqtt", port=1883)`. Log lines that
libraries write through the standard `logging` module take the same way out.
"""

import logging
import sys
from typing import Protocol, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

# Libraries whose "info" is our "debug".
_TALKATIVE = (
    "httpx",
    "httpcore",
    "coap",
    "aiormq",
    "aio_pika",
    "asyncio",
    "concurrent",
    "hpack",
    "amqtt",
    "transitions",
)

_OURS = frozenset({"event", "exception", "stack"})  # fields that may have several lines


class LogSettings(Protocol):
    """The section `[log]` of the configuration."""

    @property
    def level(self) -> str:
        """The least that is written: "debug", "info", "warning" or "error"."""

    @property
    def format(self) -> str:
        """Either "json", "console", or "auto": console on a terminal."""


def configure(config: LogSettings, stream: TextIO | None = None) -> None:
    """Sets up structlog and the standard `logging`, both on `stream` (standard error unless given)."""
    stream = sys.stderr if stream is None else stream
    level = logging.getLevelNamesMapping()[config.level.upper()]
    terminal = stream.isatty() if config.format == "auto" else config.format == "console"
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if terminal else "iso", utc=not terminal, key="time"),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(terminal=terminal)],
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        if isinstance(old.formatter, structlog.stdlib.ProcessorFormatter):  # ours, of an earlier call
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(level if level <= logging.DEBUG else max(level, logging.WARNING))


def get(name: str) -> structlog.stdlib.BoundLogger:
    """Returns the logger of a module: `log = logs.get(__name__)`."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(name)
    return logger


def _rendering(*, terminal: bool) -> list[Processor]:
    if terminal:
        plain = structlog.dev.plain_traceback  # the default shows local variables, passwords among them
        console = structlog.dev.ConsoleRenderer(timestamp_key="time", pad_event_to=24, exception_formatter=plain)
        return [_printable, console]
    return [structlog.processors.format_exc_info, _json]


def _printable(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escapes the control characters in texts of clients, so that they cannot control a terminal."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable() and key not in _OURS:
            event[key] = "".join([one if one.isprintable() else ascii(one)[1:-1] for one in value])
    return event


def _json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """Returns a line of JSON with the fields that every line has in front."""
    first = {key: event.pop(key) for key in ("time", "level", "logger", "event") if key in event}
    return msgspec.json.encode({**first, **event}, enc_hook=str).decode()
