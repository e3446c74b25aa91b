"""Logs: one JSON object a line, or readable text; the standard `logging` goes the same way."""

import io
import json
import logging

import pytest
import structlog

from gateway.config.config import LogConfig
from store.base import logs
from tests.support.process.logging_state import logging_restored


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_stream_that_is_no_terminal_gets_json():
    stream = io.StringIO()
    logs.configure(LogConfig(), stream)
    logs.get("gateway.process.app").info("listening", listener="mqtt", port=1883)
    (line,) = lines(stream)
    assert list(line)[:4] == ["time", "level", "logger", "event"]
    assert (line["level"], line["logger"], line["event"]) == ("info", "gateway.process.app", "listening")
    assert (line["listener"], line["port"]) == ("mqtt", 1883)


def test_the_standard_logging_takes_the_same_way():
    stream = io.StringIO()
    logs.configure(LogConfig(), stream)
    logging.getLogger("some.library").warning("odd %s", "thing")
    (line,) = lines(stream)
    assert (line["level"], line["logger"], line["event"]) == ("warning", "some.library", "odd thing")


def test_an_exception_is_one_line_of_json():
    stream = io.StringIO()
    logs.configure(LogConfig(), stream)
    try:
        raise ValueError("no")
    except ValueError as error:
        logs.get("a").error("failed", exc_info=error)
    (line,) = lines(stream)
    assert "ValueError: no" in line["exception"]


def test_values_that_json_has_not_are_written_as_text():
    stream = io.StringIO()
    logs.configure(LogConfig(), stream)
    logs.get("a").info("odd", value=object)
    assert lines(stream)[0]["value"] == "<class 'object'>"


def test_levels_are_kept_and_talkative_libraries_are_quieter():
    stream = io.StringIO()
    logs.configure(LogConfig(level="info"), stream)
    logs.get("a").debug("no")
    logging.getLogger("httpx").info("no")
    logging.getLogger("httpx").warning("yes")
    assert [line["event"] for line in lines(stream)] == ["yes"]


def test_a_second_set_up_replaces_the_first():
    first, second = io.StringIO(), io.StringIO()
    logs.configure(LogConfig(), first)
    logs.configure(LogConfig(), second)
    logs.get("a").info("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_a_set_up_ends_with_the_test_that_made_it():
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with logging_restored():
        logs.configure(LogConfig(level="debug"), stream)
        assert root.handlers != handlers
    assert (root.handlers, root.level) == (handlers, level)
    assert logging.getLogger("httpx").level == logging.NOTSET
    assert not structlog.is_configured()


def test_console_is_for_people():
    stream = io.StringIO()
    logs.configure(LogConfig(format="console"), stream)
    logs.get("gateway.process.app").info("listening", port=1883)
    assert "listening" in stream.getvalue()
    assert "1883" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


@pytest.mark.parametrize("shape", ["console", "json"])
def test_a_traceback_shows_no_values(shape):
    stream = io.StringIO()
    logs.configure(LogConfig(format=shape), stream)
    password = "open-" + "sesame"
    try:
        int(len(password) / 0)
    except ZeroDivisionError:
        logs.get("test").exception("failed")
    assert "ZeroDivisionError" in stream.getvalue()
    assert "open-sesame" not in stream.getvalue()


def test_what_clients_have_chosen_tells_a_terminal_nothing():
    stream = io.StringIO()
    logs.configure(LogConfig(format="console"), stream)
    logs.get("a").info("denied", client="\x1b]0;title\x07", address="d/\x9b31m", user="plain")
    said = stream.getvalue()
    assert r"\x1b]0;title\x07" in said
    assert r"d/\x9b31m" in said
    assert "plain" in said
    assert "\x1b]" not in said
    assert "\x9b" not in said
