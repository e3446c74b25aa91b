"""The configuration: where values come from, and what is said of those that are wrong."""

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from gateway.base.config_reader import Secret
from gateway.config.config import Config, TopicRoute, adapter_factories, is_loopback, load
from gateway.config.listing import listing
from gateway.port.adapter import Listener
from gateway.security.auth_settings import UserConfig
from store.base.process_errors import ConfigError


class Options(msgspec.Struct, frozen=True, kw_only=True):
    clients_max: int = 5
    levels: tuple[str, ...] = ()


FACTORIES = {
    "mqtt": SimpleNamespace(
        listeners=(
            Listener(
                name="mqtt", port=1883, tls_port=8883, transport="tcp", alpn=("mqtt",), summary="MQTT 3.1.1 and 5"
            ),
            Listener(name="mqtt-ws", port=8083, transport="tcp"),
        ),
        options=Options,
    ),
    "coap": SimpleNamespace(listeners=(Listener(name="coap", port=5683, transport="udp"),), options=Options),
}


def configured(text: str = "", /, environ=None, overrides=None, *, tmp_path: Path | None = None) -> Config:
    path = None
    if text:
        assert tmp_path is not None
        path = tmp_path / "headgate.toml"
        path.write_text(text)
    return load(path, environ or {}, overrides, factories=FACTORIES)


def mistakes(*args, **kwargs) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        configured(*args, **kwargs)
    return str(caught.value).splitlines()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_defaults_need_no_file():
    config = configured()
    assert config.store.data_dir == Path("headgate-data")
    assert config.gateway.max_message_bytes == 16 * 1024 * 1024
    assert config.auth.anonymous == "loopback"
    assert config.topics.default_queues == 8
    assert (config.admin.host, config.admin.port, config.rpc.port) == ("127.0.0.1", 8088, 8081)


def test_every_listener_of_every_adapter_is_there_with_its_adapters_defaults():
    config = configured()
    assert set(config.listeners) == {"mqtt", "mqtt-ws", "coap"}
    mqtt = config.listeners["mqtt"]
    assert (mqtt.host, mqtt.port, mqtt.adapter, mqtt.transport) == ("127.0.0.1", 1883, "mqtt", "tcp")
    assert (mqtt.alpn, mqtt.summary, mqtt.enabled, mqtt.plain) == (("mqtt",), "MQTT 3.1.1 and 5", True, True)
    assert config.adapters["coap"] == Options()


def entry(name: str, loaded: object, value: str) -> SimpleNamespace:
    """Returns an entry point of an installed package."""
    return SimpleNamespace(name=name, value=value, load=lambda: loaded)


def installed(monkeypatch, *entries: SimpleNamespace) -> str:
    """Returns what is said of these entry points."""
    monkeypatch.setattr("gateway.config.config.importlib.metadata.entry_points", lambda group: entries)
    with pytest.raises(ConfigError) as caught:
        adapter_factories()
    return str(caught.value)


def test_two_packages_with_an_adapter_of_one_name_are_refused(monkeypatch):
    factory = SimpleNamespace(listeners=(), options=Options, connect=None)
    said = installed(monkeypatch, entry("line", factory, "one:FACTORY"), entry("line", factory, "two:FACTORY"))
    assert said == ("the adapter 'line' (two:FACTORY) has the name of another one (one:FACTORY); remove one package")


def test_an_entry_point_that_names_no_factory_is_refused(monkeypatch):
    said = installed(monkeypatch, entry("line", SimpleNamespace(listeners=()), "line:FACTORY"))
    assert said == (
        "the adapter 'line' (line:FACTORY) has no options, connect (gateway.port.adapter.AdapterFactory);"
        " mend or remove its package"
    )


def test_a_factory_with_a_listener_for_datagrams_has_to_make_their_adapters(monkeypatch):
    udp = Listener(name="line", port=7007, transport="udp")
    factory = SimpleNamespace(listeners=(udp,), options=Options, connect=None)
    said = installed(monkeypatch, entry("line", factory, "line:FACTORY"))
    assert said.startswith("the adapter 'line' (line:FACTORY) has no bind (gateway.port.adapter.AdapterFactory)")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ImportError("No module named 'line'"), "No module named 'line'"),
        (SyntaxError("invalid syntax"), "SyntaxError: invalid syntax"),
        (RuntimeError("no licence"), "RuntimeError: no licence"),
    ],
)
def test_a_package_that_cannot_be_loaded_is_named_whatever_it_raises(monkeypatch, error, why):
    def load() -> None:
        raise error

    said = installed(monkeypatch, SimpleNamespace(name="line", value="line:FACTORY", load=load))
    assert said == f"the adapter 'line' (line:FACTORY) cannot be loaded: {why}; install or remove its package"


def test_two_adapters_with_a_listener_of_one_name_are_refused():
    """The second one took the place of the first without a word."""
    line = SimpleNamespace(listeners=(Listener(name="mqtt", port=7007, transport="tcp"),), options=Options)
    with pytest.raises(ConfigError) as caught:
        load(None, {}, factories={**FACTORIES, "line": line})
    assert str(caught.value) == (
        "listeners.mqtt: the adapters 'mqtt' and 'line' have a listener of this name; remove one package"
    )


def test_a_tls_port_opens_only_with_a_certificate(tmp_path):
    assert configured().listeners["mqtt"].tls_port is None
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("-")
    config = configured(overrides={"tls": {"cert_file": "cert.pem", "key_file": "key.pem"}})
    assert config.listeners["mqtt"].tls_port == 8883
    assert config.listeners["mqtt-ws"].tls_port is None
    assert config.tls.enabled


def test_the_port_offset_moves_every_port_but_zero():
    config = configured(overrides={"port_offset": 1000, "listeners": {"coap": {"port": 0}}})
    assert config.listeners["mqtt"].port == 2883
    assert config.listeners["coap"].port == 0
    assert (config.admin.port, config.rpc.port) == (9088, 9081)


def test_the_file_the_environment_and_the_command_line_are_laid_over_each_other(tmp_path):
    text = '[store]\ndata_dir = "a"\nsegment_size_bytes = 1000000\n[gateway]\nconnections_max = 1\n'
    environ = {"HEADGATE__STORE__DATA_DIR": "b", "HEADGATE__GATEWAY__CONNECTIONS_MAX": "2", "OTHER": "x"}
    config = configured(text, environ, {"store": {"data_dir": "c"}}, tmp_path=tmp_path)
    assert config.store.data_dir == Path("c")
    assert config.store.segment_size_bytes == 1_000_000
    assert config.gateway.connections_max == 2


def test_headgate_toml_of_the_working_directory_is_read(tmp_path):
    (tmp_path / "headgate.toml").write_text("[topics]\ndefault_queues = 3\n")
    assert configured().topics.default_queues == 3


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("HEADGATE__TOPICS__AUTO_CREATE", "false", lambda c: c.topics.auto_create is False),
        ("HEADGATE__GATEWAY__SHUTDOWN_GRACE_S", "2.5", lambda c: c.gateway.shutdown_grace_s == 2.5),
        ("HEADGATE__LISTENERS__MQTT_WS__PORT", "9001", lambda c: c.listeners["mqtt-ws"].port == 9001),
        ("HEADGATE__ADAPTERS__COAP__CLIENTS_MAX", "7", lambda c: c.adapters["coap"].clients_max == 7),
        ("HEADGATE__ADAPTERS__COAP__LEVELS", "a, b", lambda c: c.adapters["coap"].levels == ("a", "b")),
        ("HEADGATE__ADAPTERS__COAP__LEVELS", '["a"]', lambda c: c.adapters["coap"].levels == ("a",)),
        (
            "HEADGATE__ROUTES",
            '[{"pattern": "plant/#", "topic": "p"}]',
            lambda c: c.routes == (TopicRoute(pattern="plant/#", topic="p"),),
        ),
    ],
)
def test_the_environment_is_converted_to_the_fields_type(name, value, found):
    assert found(configured(environ={name: value}))


def test_a_secret_comes_from_a_file_or_the_environment_and_is_never_shown(tmp_path):
    (tmp_path / "alice").write_text("s3cret \n")
    text = '[auth.users.alice]\npassword_file = "alice"\ntrusted_gateway = true\n'
    config = configured(text, {"HEADGATE__AUTH__USERS__BOB__PASSWORD": "hunter2"}, tmp_path=tmp_path)
    assert config.auth.users == {
        "alice": UserConfig(password=Secret("s3cret "), trusted_gateway=True),
        "bob": UserConfig(password=Secret("hunter2")),
    }
    assert config.auth.users["alice"].password.reveal() == "s3cret "
    assert "s3cret" not in repr(config)
    assert "hunter2" not in repr(config)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[store]\ndata_dri = 'x'", "store.data_dri: there is no such key; did you mean store.data_dir?"),
        ("[sotre]\ndata_dir = 'x'", "sotre: there is no such key; did you mean store?"),
        ("[listeners.mqt]\nport = 1", "listeners.mqt: there is no such key; did you mean listeners.mqtt?"),
        ("[listeners.mqtt]\nprot = 1", "listeners.mqtt.prot: there is no such key; did you mean listeners.mqtt.port?"),
        ("[listeners.mqtt]\nalpn = []", "listeners.mqtt.alpn: follows from the adapter; remove it"),
        ("[adapters.xyzzy]\n", "adapters.xyzzy: there is no such key; adapters has coap, mqtt"),
        (
            "[adapters.mqtt]\nclient_max = 1",
            "adapters.mqtt.client_max: there is no such key; did you mean adapters.mqtt.clients_max?",
        ),
        (
            "[gateway]\nconnections_max = 'ten'",
            "gateway.connections_max: expected `int`, not 'ten' (open connections, over all listeners; default 50000)",
        ),
        (
            "[gateway]\nconnections_max = 0",
            "gateway.connections_max: expected `int` >= 1, not 0 (open connections, over all listeners; default 50000)",
        ),
        (
            "[auth]\nanonymous = 'noone'",
            "auth.anonymous: expected one of 'loopback', 'everyone', 'nobody', not 'noone' "
            '(from where clients without a name are let in; default "loopback")',
        ),
        (
            "[topics]\nindex = ['foo']",
            "topics.index: expected a list of 'key', 'address', not ['foo'] "
            "(indexes of messages, where a topic's own configuration does not say)",
        ),
        ("log = 3", "log: is a table; write [log] with its keys below, not 3"),
        ("listeners = 3", "listeners: is a table of tables; write [listeners.NAME], not 3"),
        ("[routes]\na = 1", "routes: is an array of tables; write [[routes]] for each, not {'a': 1}"),
        ("[auth]\nusers = 1", "auth.users: is a table of tables; write [auth.users.NAME], not 1"),
        (
            "[[routes]]\npattern = 'a/#/b'\ntopic = 't'",
            "routes[0].pattern: 'a/#/b': '#' stands only at the end; write an address filter",
        ),
        (
            "[auth.users.eve]\npassword = 'x'",
            "auth.users.eve.password: a secret is not written here; write password_file = the path of a file",
        ),
        (
            "[auth.users.eve]\npassword_file = 'none'",
            "auth.users.eve.password_file: none cannot be read (No such file or directory); "
            "write the path of a readable file",
        ),
        (
            "[auth.users.eve]\n",
            "auth.users.eve.password_file: is missing; write the path of a password's file, or password_hash",
        ),
        ('[auth.users."e\\nve"]\n', "auth.users: 'e\\nve' has a control character; write a name without"),
        ('[auth.users.""]\n', "auth.users: '' has 0 bytes; write a name of 1 to 255"),
        (f"[auth.users.{'e' * 256}]\n", f"auth.users: '{'e' * 64}' has 256 bytes; write a name of 1 to 255"),
        (
            "[auth.users.eve]\npassword_hash = 'secret'\n",
            "auth.users.eve.password_hash: begins with neither $argon2id$ nor SCRAM-SHA-256$ nor $rabbitmq-; "
            "write the output of `headgate hash-password`",
        ),
        (
            "[tls]\nclient_certificates = 'required'\nclient_ca_file = 'headgate.toml'",
            "tls.client_certificates: is for TLS ports, and there are none; write cert_file and key_file too",
        ),
        (
            "[auth.jwt]\njwks_file = 'headgate.toml'",
            'auth.jwt.jwks_file: headgate.toml is no JSON Web Key Set, an object with "keys"',
        ),
        (
            "[auth.jwt]\njwks_file = 'none'",
            "auth.jwt.jwks_file: none cannot be read; write the path of a JSON Web Key Set",
        ),
        (
            "[tls]\ncert_file = 'headgate.toml'",
            "tls.key_file: is missing; cert_file and key_file are written together or not at all",
        ),
        ("[listeners.mqtt]\nport = 8088", "listeners.mqtt.port: 8088 is admin.port too; write another port"),
    ],
)
def test_a_mistake_names_its_key_and_what_to_write(tmp_path, text, line):
    assert mistakes(text, tmp_path=tmp_path) == [line]


@pytest.mark.parametrize(
    ("variable", "line"),
    [
        ("HEADGATE__SOTRE__DATA_DIR", "sotre: there is no such key; did you mean store?"),
        ("HEADGATE__STORE__DATA_DRI", "store.data_dri: there is no such key; did you mean store.data_dir?"),
        ("HEADGATE__ADAPTERS__XYZZY", "adapters.xyzzy: there is no such key; adapters has coap, mqtt"),
    ],
)
def test_an_unknown_variable_of_the_environment_is_named(variable, line):
    assert mistakes(environ={variable: "x"}) == [f"{line} ({variable} of the environment)"]


def test_tables_without_entries_are_listed():
    lines = [line.partition("  #")[0] for line in listing(configured())]
    assert "cluster.controllers = {}" in lines
    assert "topics.configure = []" in lines


def test_all_mistakes_are_told_together(tmp_path):
    found = mistakes("[store]\nx = 1\n[gateway]\ny = 1\n[listeners.mqtt]\nz = 1\n", tmp_path=tmp_path)
    assert [line.split(":")[0] for line in found] == ["store.x", "gateway.y", "listeners.mqtt.z"]


def test_a_port_beyond_the_last_is_refused():
    assert mistakes(overrides={"port_offset": 60_000, "listeners": {"mqtt": {"port": 6000}}})[0] == (
        "admin.port: is 68088 with port_offset 60000; write a smaller port_offset"
    )


def test_a_file_that_is_not_there_or_not_toml_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read \(No such file or directory\)"):
        load(Path("gone.toml"), {}, factories=FACTORIES)
    assert "headgate.toml: is not TOML" in mistakes("[store", tmp_path=tmp_path)[0]


def test_listeners_of_different_transports_share_a_port():
    config = configured(overrides={"listeners": {"coap": {"port": 1883}}})
    assert config.listeners["coap"].port == config.listeners["mqtt"].port


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("db", False)],
)
def test_is_loopback(host, expected):
    assert is_loopback(host) is expected


def test_rules_of_telemetry_are_checked_with_the_rest(tmp_path):
    file = tmp_path / "headgate.toml"
    file.write_text(
        '[[devices]]\nfilter = "plant/#"\nlevel = 1\n'
        '[[decode]]\nfilter = "plant/+/raw"\nformat = "cbor"\nmetrics = { temp = "a.b" }\nignore = ["x"]\n'
    )
    found = load(file, {}, factories=FACTORIES)
    assert [(rule.filter, rule.level) for rule in found.devices] == [("plant/#", 1)]
    assert [(rule.format, rule.metrics, rule.ignore) for rule in found.decode] == [("cbor", {"temp": "a.b"}, ("x",))]
    file.write_text('[[devices]]\nsource = "template"\n[[decode]]\nformat = "cbr"\n')
    with pytest.raises(ConfigError) as raised:
        load(file, {}, factories=FACTORIES)
    assert "devices[0]: template ''" in str(raised.value)
    assert "decode[0].format: expected one of" in str(raised.value)


def test_the_hint_of_a_listeners_port_gives_no_default_that_is_not_its_own(tmp_path):
    """It said "default 0" of every listener."""
    file = tmp_path / "x.toml"
    file.write_text("[listeners.mqtt]\nport = 99999\n[rpc]\nport = 99999\n")
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    mqtt, rpc = sorted(str(caught.value).splitlines()[-2:], key=lambda line: "rpc" in line)
    assert mqtt.endswith("not 99999 (0 takes any free port)")
    assert rpc.endswith("default 8081)")
