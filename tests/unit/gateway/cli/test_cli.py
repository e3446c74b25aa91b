"""The command line: what it calls, what it prints, and with which code it ends."""

import io
import json
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from gateway.cli import commands as cli
from gateway.cli.remote import kv as cli_kv
from gateway.cli.remote import messages as cli_remote
from gateway.config import config
from gateway.ops.banner import announce
from gateway.ops.status import Listening, Status, TopicStatus
from gateway.port.adapter import Listener
from gateway.remote.http import RemoteGateway, RemoteRefused, ServerSentEvent, Unreachable, read_events, read_lines
from store.base.errors import DataDirLocked
from store.base.process_errors import ConfigError, HeadgateError


class Options(msgspec.Struct, frozen=True, kw_only=True):
    pass


FACTORIES = {"mqtt": SimpleNamespace(listeners=(Listener(name="mqtt", port=1883, transport="tcp"),), options=Options)}


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "adapter_factories", lambda: FACTORIES)


def run(*args: str, stdin: str | None = None):
    return CliRunner().invoke(cli.app, list(args), input=stdin)


def main(monkeypatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["headgate", *args])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.fixture
def gateway(monkeypatch):
    """Returns a gateway in place of the network: the requests that it received, and the answers that it gives by
    path.
    """
    asked: list[httpx.Request] = []
    answers: dict[str, httpx.Response] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return answers.get(request.url.path, httpx.Response(204))

    def make(url, **kwargs):
        return RemoteGateway(url, transport=httpx.MockTransport(answer), **kwargs)

    for commands in (cli_remote, cli_kv):
        monkeypatch.setattr(commands, "RemoteGateway", make)
    return SimpleNamespace(asked=asked, answers=answers)


def test_help_names_the_commands():
    text = run("--help").output
    for command in ("serve", "check-config", "pub", "sub", "topics", "spark", "version"):
        assert command in text


def test_version():
    assert run("version").output.strip().count(".") == 2


def test_serve_with_workers_is_another_program(monkeypatch):
    served = []
    monkeypatch.setattr(
        "gateway.process.workers.serve", lambda settings, count, load, on_ready: served.append(count) or 0
    )
    monkeypatch.setattr("store.base.logs.configure", lambda _: None)
    assert run("serve", "--workers", "3").exit_code == 0
    assert served == [3]
    assert run("serve", "--workers", "0").exit_code == 2


def test_a_worker_that_nobody_has_told_what_to_do_says_so(monkeypatch, capsys):
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert main(monkeypatch, "worker") == 1
    assert "headgate serve --workers" in capsys.readouterr().err


def test_serve_hands_over_the_configuration_and_its_exit_code(monkeypatch):
    served = []
    monkeypatch.setattr(
        "gateway.process.app.serve", lambda settings, load, on_ready: served.extend([settings, load()]) or 7
    )
    monkeypatch.setattr("store.base.logs.configure", lambda _: None)
    result = run("serve", "--data-dir", "d", "--port-offset", "100", "--host", "0.0.0.0")
    assert result.exit_code == 7
    settings, again = served
    assert again == settings, "read again, with the options of the command line"
    assert str(settings.store.data_dir) == "d"
    assert (settings.listeners["mqtt"].host, settings.listeners["mqtt"].port) == ("0.0.0.0", 1983)
    assert settings.admin.host == "127.0.0.1"


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("error", "line"),
    [
        (HeadgateError("mqtt cannot listen"), "headgate: mqtt cannot listen"),
        (DataDirLocked("d is open"), "headgate: d is open"),
        (PermissionError(13, "Permission denied", "d"), "headgate: d: Permission denied"),
    ],
)
def test_a_server_that_cannot_start_is_one_line_and_code_1(monkeypatch, capsys, error, line, wrapped):
    def fail(_settings, load, on_ready):
        raise ExceptionGroup("unhandled errors in a TaskGroup", [error]) if wrapped else error

    monkeypatch.setattr("gateway.process.app.serve", fail)
    monkeypatch.setattr("store.base.logs.configure", lambda _: None)
    assert main(monkeypatch, "serve") == 1
    assert capsys.readouterr().err.splitlines() == [line]


def test_an_error_nobody_expected_keeps_its_traceback(monkeypatch):
    def fail(_settings, load, on_ready):
        raise ExceptionGroup("unhandled", [ValueError("a bug")])

    monkeypatch.setattr("gateway.process.app.serve", fail)
    monkeypatch.setattr("store.base.logs.configure", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["headgate", "serve"])
    with pytest.raises(ExceptionGroup):
        cli.main()


def test_check_config_prints_what_would_listen():
    result = run("check-config", "--port-offset", "1")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "ok for serve: 1 listeners, data in headgate-data",
        "  rpc: 127.0.0.1 tcp 8082",
        "  admin: 127.0.0.1 tcp 8089",
        "  mqtt: 127.0.0.1 tcp 1884",
    ]


def test_check_config_lists_every_key(tmp_path):
    (tmp_path / "pw").write_text("hunter2")
    (tmp_path / "headgate.toml").write_text(
        "[[routes]]\npattern = 'a/#'\ntopic = 't'\n[auth.users.bob]\npassword_file = 'pw'\n"
    )
    lines = run("check-config", "--keys").output.splitlines()
    assert "gateway.connections_max = 50000  # open connections, over all listeners" in lines
    assert "listeners.mqtt.port = 1883  # 0 takes any free port" in lines
    assert "listeners.mqtt.tls_port = (not set)" in lines
    assert 'store.data_dir = "headgate-data"  # the directory that holds everything; made when missing' in lines
    assert 'routes[0].topic = "t"  # letters, digits and $ _ . - (up to 127)' in lines
    assert "auth.users.bob.password = ***  # named by password_file" in lines
    assert not [line for line in lines if "hunter2" in line or line.startswith("listeners.mqtt.summary")]


def test_a_wrong_configuration_is_one_line_a_mistake_and_code_2(tmp_path, monkeypatch, capsys):
    (tmp_path / "x.toml").write_text("[store]\ndata_dri = 'x'\n[log]\nlevle = 'x'\n")
    assert main(monkeypatch, "check-config", "--config", "x.toml") == 2
    assert capsys.readouterr().err.splitlines() == [
        "headgate: store.data_dri: there is no such key; did you mean store.data_dir?",
        "headgate: log.levle: there is no such key; did you mean log.level?",
    ]


def test_nothing_answers_is_one_line_and_code_3(monkeypatch, capsys):
    assert main(monkeypatch, "pub", "a", "b", "--port", "1") == 3
    assert capsys.readouterr().err == "headgate: nothing answers at http://127.0.0.1:1; is the gateway running there?\n"


def test_no_controller_answers_is_one_line_and_code_3(monkeypatch, capsys):
    monkeypatch.setattr("gateway.operating.asking.ANSWER_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    assert main(monkeypatch, "cluster", "status", "--controllers", nobody) == 3
    said = f"headgate: no controller answers: {nobody} refuses connections: nothing listens there\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("address", ["c1", ":", "c1:99999", "[::1", "c1:8082,c2"])
def test_what_is_no_address_of_a_controller_is_one_line_and_code_2(address, monkeypatch, capsys):
    assert main(monkeypatch, "cluster", "status", "--controllers", address) == 2
    wrong = address.rpartition(",")[2]
    assert capsys.readouterr().err == f"headgate: --controllers: {wrong!r} is not host:port; write host:port,...\n"


def test_a_stream_that_is_none_of_events_is_said():
    answer = httpx.Response(200, json=[])
    gateway = RemoteGateway("http://gateway", transport=httpx.MockTransport(lambda _: answer))
    with gateway, pytest.raises(RemoteRefused, match="http://gateway does not answer as a gateway does"):
        list(gateway.subscribe("a/#"))


def test_wrong_usage_is_code_2(monkeypatch, capsys):
    assert main(monkeypatch, "pub", "a", "b", "--qos", "3") == 2
    assert "--qos" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("pub", "a", "b"), ("topics",), ("topics", "/"), ("amqp", "connections")])
def test_a_port_beyond_the_largest_is_refused(gateway, words):
    result = run(*words, "--port-offset", "60000")
    assert isinstance(result.exception, ConfigError)
    assert "option port-offset cannot be 60000: port 808" in str(result.exception)
    assert gateway.asked == []


def test_pub_posts_the_body(gateway):
    result = run(
        "pub", "a b/ä", "hi", "--qos", "2", "--retain", "-t", "text/plain", "--count", "2", "--port-offset", "3"
    )
    assert result.exit_code == 0
    assert len(gateway.asked) == 2
    request = gateway.asked[0]
    assert request.url.raw_path == b"/topics/a%20b/%C3%A4?qos=2&retain=true"
    assert (request.url.port, request.content, request.headers["content-type"]) == (8083, b"hi", "text/plain")


def test_pub_reads_standard_input(gateway):
    assert run("pub", "a", "-", stdin="from a pipe").exit_code == 0
    assert gateway.asked[0].content == b"from a pipe"


def test_pub_refused_is_one_line_and_code_1(gateway, monkeypatch, capsys):
    problem = {"title": "Too large", "detail": "a body is at most 1048576 bytes", "status": 413}
    gateway.answers["/topics/a"] = httpx.Response(
        413, headers={"content-type": "application/problem+json"}, content=json.dumps(problem).encode()
    )
    assert main(monkeypatch, "pub", "a", "x") == 1
    assert capsys.readouterr().err == ("headgate: 413 Request Entity Too Large: a body is at most 1048576 bytes\n")


EVENTS = [
    ("1-0", {"subject": "a/1", "datacontenttype": "application/json", "data": {"v": 1}}),
    ("1-1", {"subject": "a/2", "datacontenttype": "text/plain", "data": "two\nlines"}),
    ("2-0", {"subject": "a/3", "data_base64": "/wA="}),
    ("2-1", {"subject": "a/4", "data": "json"}),
    ("3-0", {"subject": "a/5"}),
]


@pytest.mark.slow
def test_sub_prints_what_comes_and_stops_at_count(gateway):
    stream = b"".join(b"id: %b\ndata: %b\n\n" % (at.encode(), json.dumps(event).encode()) for at, event in EVENTS)
    stream = b": hello\n\n" + stream + b"data: not an event\n\n"
    gateway.answers["/subscribe"] = httpx.Response(200, content=stream, headers={"content-type": "text/event-stream"})
    result = run("sub", "a/#", "--count", "2", "--from", "7-1")
    assert (result.exit_code, result.output) == (0, '{"v": 1}\ntwo\nlines\n')
    request = gateway.asked[0]
    assert request.url.params["filter"] == "a/#"
    assert request.headers["last-event-id"] == "7-1"
    assert run("sub", "a/#", "-n", "6").stdout_bytes == b'{"v": 1}\ntwo\nlines\n\xff\x00\n"json"\n\nnot an event\n'
    assert run("sub", "a/#", "-v", "-n", "1").output == '1-0\ta/1\t{"v": 1}\n'
    assert json.loads(run("sub", "a/#", "--json", "-n", "1").output) == EVENTS[0][1]


def streaming(data: bytes, failure: BaseException | None) -> httpx.Response:
    """Returns a stream of events that ends: by itself, or by a failure."""

    def chunks():
        yield data
        if failure is not None:
            raise failure

    return httpx.Response(200, content=chunks(), headers={"content-type": "text/event-stream"})


ONE_EVENT = b'event: put\ndata: {"key":"a","revision":1}\n\n'

BODIES = [b'{"n":1.0,  "big":12345678901234567890123,"n":2}', b'"\\u00e9"', '"\u2028\x85"'.encode(), b'{\n  "a": 1\n}']


def test_sub_prints_json_as_it_was_published(gateway):
    events = [b'{"subject":"a","data":%b}' % body for body in BODIES]
    stream = b"".join(b"data: %b\n\n" % event.replace(b"\n", b"\ndata: ") for event in events)
    gateway.answers["/subscribe"] = httpx.Response(200, content=stream, headers={"content-type": "text/event-stream"})
    assert run("sub", "a", "-n", "4").stdout_bytes == b"\n".join(BODIES) + b"\n"
    assert run("sub", "a", "--json", "-n", "4").stdout_bytes.splitlines() == [
        event.replace(b"\n", b" ") for event in events
    ]


@pytest.mark.parametrize("command", [("sub", "a/#"), ("kv", "watch")])
@pytest.mark.parametrize("failure", [None, httpx.RemoteProtocolError("incomplete"), httpx.ReadError("")])
def test_a_stream_that_the_server_ends_is_a_failure(monkeypatch, capfdbinary, gateway, command, failure):
    gateway.answers["/subscribe"] = gateway.answers["/kv"] = streaming(ONE_EVENT, failure)
    assert main(monkeypatch, *command) == 3
    said = capfdbinary.readouterr()
    assert said.out.count(b"\n") == 1
    assert said.err.startswith(b"headgate: ")
    assert said.err.count(b"\n") == 1
    if failure is None:
        assert said.err.endswith(b" has ended the stream of events\n")


@pytest.mark.parametrize("command", [("sub", "a/#"), ("kv", "watch")])
def test_a_stream_that_the_user_ends_is_done(gateway, command):
    gateway.answers["/subscribe"] = gateway.answers["/kv"] = streaming(ONE_EVENT, KeyboardInterrupt())
    result = run(*command)
    assert (result.exit_code, result.output.count("\n")) == (0, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_end_by_cr_or_lf_or_both_however_they_are_cut(size):
    text = "a\nb\r\nc\rd\u2028e\x85f\r\r\n\ng\r".encode()
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    assert list(read_lines(chunks)) == ["a", "b", "c", "d\u2028e\x85f", "", ""]


def test_topics_lists_records(gateway):
    status = Status(version="1", ready=True, topics=(TopicStatus(name="telemetry", queues=8, records=1234),))
    gateway.answers["/status"] = httpx.Response(200, content=msgspec.json.encode(status))
    assert run("topics").output == "telemetry\t8\t1234\n"
    assert gateway.asked[0].url.port == 8088


def test_topics_lists_addresses(gateway):
    gateway.answers["/topics"] = httpx.Response(200, json=["a/b", "a/c"])
    assert run("topics", "a/").output == "a/b\na/c\n"
    assert gateway.asked[0].url.params["prefix"] == "a/"


def test_topics_lists_all_pages_of_addresses(gateway):
    gateway.answers["/topics"] = httpx.Response(200, json=["a/b"], headers={"link": '</more>; rel="next"'})
    gateway.answers["/more"] = httpx.Response(200, json=["a/c"])
    assert run("topics", "/").output == "a/b\na/c\n"


@pytest.mark.parametrize("content", [b"<html>", b"{}", b"[1"])
def test_an_answer_of_something_else_is_said_so(gateway, content):
    gateway.answers["/status"] = httpx.Response(200, content=content)
    result = run("topics")
    assert isinstance(result.exception, RemoteRefused)
    assert "is not a gateway's admin port" in str(result.exception)


def test_retry_after_is_told():
    def busy(_):
        return httpx.Response(503, headers={"retry-after": "2"})

    with (
        RemoteGateway("http://x", transport=httpx.MockTransport(busy)) as remote,
        pytest.raises(RemoteRefused, match=r"503 Service Unavailable \(try again in 2 s\)"),
    ):
        remote.publish("a", b"")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (httpx.ReadTimeout(""), "http://x has not answered in time"),
        (httpx.RemoteProtocolError("illegal line"), "http://x has ended its answer too early, or speaks no HTTP"),
        (httpx.ReadError(""), "the connection to http://x failed: it has ended"),
    ],
)
def test_what_goes_wrong_with_a_connection_is_said_without_the_words_of_the_library(error, said):
    def failing(_):
        raise error

    transport = httpx.MockTransport(failing)
    with RemoteGateway("http://x", transport=transport) as remote, pytest.raises(Unreachable) as caught:
        remote.publish("a", b"")
    assert str(caught.value) == said


def test_a_url_that_is_none_is_said_so():
    with pytest.raises(Unreachable):
        RemoteGateway("http://[::1").publish("a", b"")


def test_events_without_an_end_are_dropped_and_unknown_fields_passed_over():
    lines = ["retry: 5", "id: 9", "data", "", "event: e", "", "data:x", "", "data: lost"]
    assert list(read_events(lines)) == [ServerSentEvent("9", "message", ""), ServerSentEvent("9", "message", "x")]


def test_the_banner_is_a_table_on_a_terminal():
    stream = io.StringIO()
    rows = [
        Listening(name="mqtt", host="127.0.0.1", port=1883, summary="MQTT 3.1.1 and 5"),
        Listening(name="coap", host="::1", port=5683, transport="udp"),
        Listening(name="mqtt", host="127.0.0.1", port=8883, secure=True),
    ]
    announce(rows, data_dir="d", console=Console(file=stream, force_terminal=True, width=100, color_system=None))
    text = stream.getvalue()
    assert "127.0.0.1:1883" in text
    assert "[::1]:5683" in text
    assert "tcp + TLS" in text
    assert "MQTT 3.1.1 and 5" in text


def test_the_banner_is_log_lines_elsewhere(capsys):
    stream = io.StringIO()
    announce([Listening(name="mqtt", host="h", port=1)], data_dir="d", console=Console(file=stream))
    assert stream.getvalue() == ""
    assert "listening" in capsys.readouterr().out


def test_an_argument_that_is_not_utf_8_is_a_sentence(monkeypatch, capsys, gateway):
    assert main(monkeypatch, "pub", "a\udcff", "x") == 2
    assert capsys.readouterr().err == "headgate: an argument is not UTF-8\n"


def test_controllers_that_name_nobody_are_a_sentence(monkeypatch, capsys):
    assert main(monkeypatch, "cluster", "status", "--controllers", " ,") == 2
    assert capsys.readouterr().err == "headgate: --controllers: names none; write host:port,...\n"
