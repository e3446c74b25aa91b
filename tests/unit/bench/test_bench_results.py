"""The summary of benchmark runs; the whole of the benchmark still works on the gateway of today."""

import msgspec
import pytest

from tests.bench import __main__ as program
from tests.bench import report
from tests.bench.catalogue import SERVERS, other
from tests.bench.figures import FIGURES
from tests.bench.gateway import mqtt_path
from tests.bench.load.base import Measured
from tests.bench.result import Result, against, load_all, summarise

pytestmark = pytest.mark.slow


def server(*values, better="higher"):
    runs = [Measured(value=value, elapsed_s=1.0, done=10) for value in values]
    return summarise(version="1", keeps="nothing", runs=runs, errors=[])


def test_the_median_counts():
    found = server(3.0, 100.0, 5.0).value
    assert (found.median, found.min, found.max, found.runs) == (5.0, 3.0, 100.0, [3.0, 100.0, 5.0])


def test_headgate_is_held_against_the_others_by_what_is_better():
    servers = {"headgate": server(200.0), "peer": server(100.0), "failed": server()}
    assert against(servers, "higher") == {"peer": 2.0}
    assert against(servers, "lower") == {"peer": 0.5}


def test_every_figure_names_servers_that_are_known():
    for figure in FIGURES.values():
        assert set(figure.servers) <= set(SERVERS)
        assert all(figure.protocol in SERVERS[name].keeps for name in figure.servers)


def test_a_server_from_the_command_line_needs_a_port():
    with pytest.raises(ValueError, match="port"):
        other("mine=broker", "mqtt")


def test_the_report_replaces_what_is_between_the_markers():
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    assert report.with_section(page, "new\n") == f"before\n{report.BEGIN}\n\nnew\n\n{report.END}\nafter\n"
    with pytest.raises(ValueError, match="markers"):
        report.with_section("a page without", "new")


def test_a_figure_from_start_to_end(tmp_path):
    words = ["mqtt-publish", "--servers", "headgate", "--rounds", "1", "--count", "2000", "--results", str(tmp_path)]
    assert program.main(words) == 0
    (result,) = load_all(tmp_path)
    assert isinstance(result, Result)
    assert result.servers["headgate"].failed == [0]
    assert result.servers["headgate"].value.median > 0
    assert "| headgate " in report.section([result])
    assert msgspec.json.decode((tmp_path / "mqtt-publish.json").read_bytes())["load"]["window"] == 200


def test_a_server_that_does_not_start_is_reported(tmp_path):
    words = ["mqtt-publish", "--servers", "aiocoap", "--also", "broken=false {port}", "--results", str(tmp_path)]
    assert program.main([*words, "--rounds", "1", "--count", "2000"]) == 0
    (result,) = load_all(tmp_path)
    assert result.servers["broken"].value is None
    assert "does not answer" in result.servers["broken"].errors[0]


def test_a_program_of_its_own_gets_its_own_options(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["tests.bench"])
    assert program.main(["filters", "--filters", "100", "--rounds", "1"]) == 0
    (found,) = msgspec.json.decode(capsys.readouterr().out)
    assert found["filters"] == 100


def test_a_server_nobody_knows_is_wrong_usage(tmp_path):
    assert program.main(["mqtt-publish", "--servers", "mosquito", "--results", str(tmp_path)]) == 2


def test_the_profile_times_every_step(tmp_path):
    spent = mqtt_path.measure(8, tmp_path, turns=3, gatherings=1)
    assert set(spent) == set(mqtt_path.STEPS)
    assert all(one.wall_ns > 0 for one in spent.values())
