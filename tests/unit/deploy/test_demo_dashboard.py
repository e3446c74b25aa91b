"""The demonstration tells the dashboard's link once it listens, and goes on without it."""

import pytest

from deploy.demo import dashboard as demo
from deploy.demo.plan import Target


class Process:
    running = True

    def __init__(self, log):
        self.log = log

    def last_words(self):
        return "the port is taken"


def test_the_link_is_told_once_when_it_listens(tmp_path):
    log = tmp_path / "dashboard.log"
    log.write_text("")
    found = demo.Dashboard(Process(log))
    assert (found.news(), found.link()) == ("", "")
    log.write_text("dashboard: http://127.0.0.1:8050/\n")
    assert found.link() == "http://127.0.0.1:8050/"
    assert found.news() == "dashboard: http://127.0.0.1:8050/"
    assert found.news() == ""


def test_a_dashboard_that_ends_is_told_once_and_ends_nothing_else(tmp_path):
    process = Process(tmp_path / "dashboard.log")
    process.running = False
    found = demo.Dashboard(process)
    assert found.news() == "the dashboard is left out: the port is taken"
    assert found.news() == ""


def test_without_the_extra_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "NEEDS", ("no_such_module_anywhere",))
    monkeypatch.setattr(demo, "launch", lambda *_, **__: pytest.fail("started"))
    assert demo.Dashboard.start(Target(), tmp_path, tmp_path) is None
