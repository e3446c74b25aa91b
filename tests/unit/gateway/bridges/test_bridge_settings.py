"""`[bridges.NAME]`: what is refused before anything is started."""

import pytest

from gateway.config.config import load
from gateway.config.listing import listing
from store.base.process_errors import ConfigError

SUBSCRIBE = [{"filter": "a/#"}]


def mistakes(**bridges):
    try:
        load(None, {}, {"bridges": bridges})
    except ConfigError as error:
        return str(error).splitlines()
    return []


def bridge(**changes):
    return {"url": "mqtt://broker.example", "subscribe": SUBSCRIBE, **changes}


def test_a_bridge_as_it_should_be(tmp_path):
    file = tmp_path / "password"
    file.write_text("secret\n")
    one = bridge(username="u", password_file=str(file), url="wss://broker.example/mqtt", tls={"ca_file": str(file)})
    assert mistakes(one=one, two=bridge(client_id="another")) == []
    config = load(None, {}, {"bridges": {"one": one}})
    assert config.bridges["one"].password.reveal() == "secret"
    lines = "\n".join(listing(config))
    assert "secret" not in lines.replace(str(tmp_path), "")
    assert 'bridges.one.subscribe[0].filter = "a/#"' in lines


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"url": "http://broker"}, "bridges.up.url"),
        ({"url": "broker:1883"}, "bridges.up.url"),
        ({"url": "mqtt://"}, "bridges.up.url"),
        ({"url": "mqtt://broker:0"}, "bridges.up.url"),
        ({"url": "mqtt://broker:99999"}, "bridges.up.url"),
        ({"url": "mqtt://[::1"}, "bridges.up.url"),
        ({"url": "mqtt://broker/path"}, "bridges.up.url"),
        ({"url": "mqtt://u:p@broker"}, "bridges.up.url"),
        ({"subscribe": []}, "bridges.up.subscribe"),
        ({"subscribe": [{"filter": "a"}, {"filter": "a"}]}, "bridges.up.subscribe"),
        ({"subscribe": [{"filter": "a/#/b"}]}, "bridges.up.subscribe[0].filter"),
        ({"subscribe": [{"filter": "a", "to": "{1}"}]}, "bridges.up.subscribe[0].to"),
        ({"subscribe": [{"filter": "a", "qos": 3}]}, "bridges.up.subscribe[0].qos"),
        ({"subscribe": [{"filter": "a", "topic": "b"}]}, "bridges.up.subscribe[0].topic"),
        ({"subscribe": [{"qos": 1}]}, "bridges.up.subscribe[0].filter"),
        ({"reconnect_max_s": 0.5}, "bridges.up.reconnect_max_s"),
        ({"version": "3.1"}, "bridges.up.version"),
        ({"password": "secret"}, "bridges.up.password"),
        ({"tls": {"ca_file": "/nowhere/ca.pem"}, "url": "mqtts://broker"}, "bridges.up.tls.ca_file"),
        ({"tls": {"ca_file": "/etc/passwd"}}, "bridges.up.tls"),
        ({"tls": {"cert_file": "/etc/passwd"}, "url": "mqtts://broker"}, "bridges.up.tls.key_file"),
        ({"outbound": True}, "bridges.up.outbound"),
    ],
)
def test_what_is_wrong_is_named(changes, key):
    (line,) = mistakes(up=bridge(**changes))
    assert line.startswith(f"{key}: ")


def test_a_password_without_a_name(tmp_path):
    file = tmp_path / "password"
    file.write_text("secret")
    (line,) = mistakes(up=bridge(password_file=str(file)))
    assert line.startswith("bridges.up.username: ")


def test_two_bridges_would_throw_each_other_out():
    (line,) = mistakes(one=bridge(client_id="same"), two=bridge(client_id="same"))
    assert line.startswith("bridges.two.client_id: is that of bridges.one")


def test_a_name_is_a_label():
    (line,) = mistakes(**{"a b": bridge()})
    assert line.startswith("bridges.a b: is no name")
