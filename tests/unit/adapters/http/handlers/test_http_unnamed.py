"""Clients without a name: by which Host they may call their own machine, and whom they speak for."""

from base64 import b64encode

import pytest

from adapters.http import HttpOptions
from tests.support.http.http_driver import PASSWORDS, Gateway, Http2Client, parse_responses

EVIL = "evil.example:8080"


def ask(
    method: str, host: str, *headers: str, options: HttpOptions | None = None, peer: str = "127.0.0.1", path: str = "/a"
) -> int:
    """Returns the status of one request over HTTP/1.1."""
    gateway = Gateway(options, peer=peer)
    gateway.feed(b"POST /topics/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
    lines = [f"{method} /topics{path} HTTP/1.1", f"host: {host}", *headers, "content-length: 0"]
    (answer,) = parse_responses(gateway.feed("\r\n".join(lines).encode() + b"\r\n\r\n"))
    if answer.status == 403:
        assert answer.json["attribute"] == "host"
    return answer.status


def basic(name: str) -> str:
    return f"authorization: Basic {b64encode(name.encode() + b':' + PASSWORDS[name]).decode()}"


# ---- DNS rebinding


def test_a_name_that_was_made_to_lead_here_does_not() -> None:
    assert ask("POST", EVIL, f"origin: http://{EVIL}") == 403
    assert ask("POST", EVIL) == 403


@pytest.mark.parametrize(
    "header",
    [
        f"origin: http://{EVIL}",
        "sec-fetch-site: same-origin",
        "sec-fetch-mode: cors",
        f"referer: http://{EVIL}/x",
        "accept-language: de",
    ],
)
def test_a_browser_may_not_read_by_it_either(header: str) -> None:
    assert ask("GET", EVIL, header) == 403
    assert ask("GET", "localhost:8080", header) == 200


def test_tools_that_are_no_browsers_read_by_any_name() -> None:
    assert ask("GET", "build-host") == 200


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8080", "127.0.0.1:8080", "[::1]:8080", "[::1]", "192.0.2.2"])
def test_names_of_this_machine(host: str) -> None:
    assert ask("POST", host, f"origin: http://{host}") == 201


@pytest.mark.parametrize("host", ["localhost.evil.example", "127.0.0.1.evil.example"])
def test_names_that_look_like_it(host: str) -> None:
    assert ask("POST", host) == 403


@pytest.mark.parametrize("host", ["evil.example:127.0.0.1", "a[::1]"])
def test_hosts_that_look_like_it_and_are_none(host: str) -> None:
    assert ask("POST", host) == 400


def test_names_that_the_configuration_knows() -> None:
    options = HttpOptions(allowed_hosts=("Box.example",))
    assert ask("POST", "box.example:8080", options=options) == 201
    assert ask("POST", EVIL, options=options) == 403


def test_an_origin_that_is_allowed_needs_a_right_host_too() -> None:
    options = HttpOptions(cors_origins=("*",))
    assert ask("POST", EVIL, f"origin: http://{EVIL}", options=options) == 403
    assert ask("POST", "localhost", f"origin: http://{EVIL}", options=options) == 201


def test_a_password_of_ones_own_is_enough_and_the_one_of_guests_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PASSWORDS, "guest", b"guest")
    assert ask("POST", EVIL, basic("alice")) == 201
    assert ask("POST", EVIL, basic("guest")) == 403
    assert ask("POST", "localhost", basic("guest")) == 201


def test_other_machines_are_not_asked() -> None:
    assert ask("POST", EVIL, peer="192.0.2.1") == 201


def test_it_holds_for_http_2() -> None:
    for allowed, status in (((), 403), (("gateway.example",), 201)):
        client = Http2Client(Gateway(HttpOptions(allowed_hosts=allowed), peer="127.0.0.1"))
        assert client.ask("POST", "/topics/a", body=b"").status == status


# ---- the device


@pytest.mark.parametrize(
    ("level", "address", "device"),
    [
        (2, "telemetry/site1/dev42/temp", "dev42"),
        (2, "telemetry/dev42", "192.0.2.1"),
        (1, "telemetry/dev42", "dev42"),
        (-1, "telemetry/site1/dev42/temp", "192.0.2.1"),
    ],
)
def test_whom_a_client_without_a_name_speaks_for(level: int, address: str, device: str) -> None:
    gateway = Gateway(HttpOptions(device_level=level))
    client = Http2Client(gateway)
    headers = (("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t"))
    client.ask("POST", f"/topics/{address}", body=b"1")
    client.ask("POST", "/events", *headers, ("ce-subject", address), ("ce-deviceid", "forged"), body=b"1")
    assert [message.device for message in gateway.messages] == [device, device]
