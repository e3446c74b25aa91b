"""`check-config` refuses what a role refuses, in the same words, because it asks the role."""

import pytest
from typer.testing import CliRunner

from gateway.cli import commands as cli
from gateway.config.config import load
from gateway.process import app, workers
from gateway.process.nodes import controller_run, store_run
from gateway.process.roles import refusals, roles_of
from store.base.process_errors import ConfigError
from tests.support.process.certificates import Authority, node_files

pytestmark = pytest.mark.anyio

OPEN = "rpc.host: 0.0.0.0 can be reached from other machines; write [cluster.tls], or cluster.insecure = true"
CONTROLLERS = '[cluster]\ncontrollers = { 1 = "127.0.0.1:1", 2 = "127.0.0.1:2" }\n'


def config_of(tmp_path, text):
    file = tmp_path / "x.toml"
    file.write_text(text)
    return file, load(file, {})


def check(file, *args):
    result = CliRunner().invoke(cli.app, ["check-config", "--config", str(file), *args])
    return result.exit_code, str(result.exception or "")


@pytest.mark.parametrize("start", [app.serve, lambda config, **rest: workers.serve(config, 2, **rest)])
def test_rpc_beyond_this_machine_is_refused_before_anything_is_opened(tmp_path, start):
    file, config = config_of(tmp_path, f'[rpc]\nhost = "0.0.0.0"\n[store]\ndata_dir = "{tmp_path / "data"}"\n')
    with pytest.raises(ConfigError) as caught:
        start(config, load=lambda: config)
    assert str(caught.value) == OPEN
    assert not (tmp_path / "data").exists()
    assert check(file) == (1, f"serve: {OPEN}")


def test_a_closed_network_is_the_operators_word(tmp_path):
    for text in ("[cluster]\ninsecure = true\n", "[rpc]\nenabled = false\n"):
        more = '[rpc]\nhost = "0.0.0.0"\n' if "rpc" not in text else text + 'host = "0.0.0.0"\n'
        file, _ = config_of(tmp_path, more if "rpc" in text else text + more)
        assert check(file)[0] == 0


def test_what_a_store_and_a_controller_refuse(tmp_path):
    file, config = config_of(tmp_path, f'{CONTROLLERS}[rpc]\nhost = "0.0.0.0"\n[controller]\nid = 3\n')
    with pytest.raises(ConfigError) as caught:
        store_run(config)
    store = str(caught.value)
    with pytest.raises(ConfigError) as caught:
        controller_run(config)
    controller = str(caught.value)
    code, said = check(file)
    assert code == 1
    assert said.splitlines() == [f"controller: {controller}", f"store: {store}", f"proxy: {store}"]
    assert check(file, "--role", "store") == (1, f"store: {store}")


KEYS = '{"keys": [{"identity": "dev42", "key": "%s"}]}' % ("00" * 16)
COAPS = "[listeners.coaps]\nenabled = true\n"


@pytest.mark.parametrize("role", ["serve", "proxy"])
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (COAPS, "listeners.coaps: DTLS needs tls.cert_file or auth.psk_file; write one of them"),
        (
            COAPS + '[auth]\npsk_file = "{0}/none.json"\n',
            "auth.psk_file: {0}/none.json cannot be read (No such file or directory); "
            "write the path of a JSON file of pre-shared keys",
        ),
        (
            COAPS + '[auth]\npsk_file = "{0}/bad.json"\n',
            "auth.psk_file: {0}/bad.json: JSON is malformed: invalid character (byte 0)",
        ),
        (
            '[auth]\noscore_file = "{0}/none.json"\n',
            "auth.oscore_file: {0}/none.json cannot be read (No such file or directory); "
            "make one by `headgate coap oscore add`",
        ),
        (
            '[auth]\noscore_file = "{0}/bad.json"\n',
            "auth.oscore_file: {0}/bad.json: JSON is malformed: invalid character (byte 0)",
        ),
    ],
)
def test_keys_of_coap_that_cannot_be_used_are_refused(tmp_path, role, text, sentence):
    """They were ok for `check-config`; `serve` made its data directory first, or began without the keys."""
    (tmp_path / "bad.json").write_text("garbage")
    cluster = "" if role == "serve" else CONTROLLERS
    data = f'[store]\ndata_dir = "{tmp_path / "data"}"\n'
    file, _ = config_of(tmp_path, cluster + data + text.format(tmp_path))
    said = sentence.format(tmp_path)
    assert check(file, "--role", role) == (1, f"{role}: {said}")
    for more in [[], ["--workers", "2"]][: 1 + (role == "serve")]:
        with pytest.raises(ConfigError) as caught:
            CliRunner().invoke(cli.app, [role, "--config", str(file), *more], catch_exceptions=False)
        assert str(caught.value) == said
    assert not (tmp_path / "data").exists()


def test_keys_of_coap_that_can_be_used_are_not_refused(tmp_path):
    pytest.importorskip("OpenSSL", reason="needs the extra dtls")
    (tmp_path / "psk.json").write_text(KEYS)
    (tmp_path / "oscore.json").write_text("{}")
    auth = f'[auth]\npsk_file = "{tmp_path}/psk.json"\noscore_file = "{tmp_path}/oscore.json"\n'
    assert check(config_of(tmp_path, COAPS + auth)[0]) == (0, "")


def test_a_store_group_that_workers_cannot_have_is_refused(tmp_path):
    """The data directory was there by then."""
    file, config = config_of(tmp_path, f'[store]\ngroup = 3\ndata_dir = "{tmp_path / "data"}"\n')
    sentence = "store.group: is 3; a gateway with workers has store group 0 alone; write store.group = 0"
    assert check(file) == (0, "")
    assert check(file, "--workers", "2") == (1, f"serve: {sentence}")
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        workers.serve(config, 2, load=lambda: config)
    assert not (tmp_path / "data").exists()


def test_a_host_without_an_address_is_refused(tmp_path):
    """`serve` ended with it when it opened its first port, and `check-config` had called it ok."""
    file, _ = config_of(tmp_path, f'[store]\ndata_dir = "{tmp_path / "data"}"\n')
    code, said = check(file, "--host", "not a host")
    assert code == 1
    assert said.startswith("serve: listeners.")
    assert ".host: 'not a host' has no address (" in said
    assert len(said.splitlines()) == 1
    with pytest.raises(ConfigError, match="'not a host' has no address"):
        CliRunner().invoke(cli.app, ["serve", "--config", str(file), "--host", "not a host"], catch_exceptions=False)
    assert not (tmp_path / "data").exists()
    for text in ('[rpc]\nhost = "a b"\n', '[admin]\nhost = "a b"\n'):
        assert check(config_of(tmp_path, text)[0])[0] == 1
    of_a_store = config_of(tmp_path, CONTROLLERS + '[admin]\nhost = "a b"\n')[1]
    assert [line.split(" has")[0] for line in refusals(of_a_store, ["store", "controller"])] == [
        "store: admin.host: 'a b'",
        "controller: admin.host: 'a b'",
    ]


@pytest.mark.parametrize("role", ["serve", "store", "controller"])
@pytest.mark.parametrize("below", ["", "/a/b"])
def test_a_data_directory_that_is_a_file_is_refused(tmp_path, role, below):
    """It was ok for `check-config`, and the role then ended with "File exists"."""
    there = tmp_path / "there"
    there.write_text("")
    section = "controller" if role == "controller" else "store"
    file, settings = config_of(
        tmp_path, f'{CONTROLLERS if role != "serve" else ""}[{section}]\ndata_dir = "{there}{below}"\n'
    )
    sentence = f"{section}.data_dir: {there} is a file; write a directory, or a path where there is nothing yet"
    assert check(file, "--role", role) == (1, f"{role}: {sentence}")
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        CliRunner().invoke(cli.app, [role, "--config", str(file)], catch_exceptions=False)
    assert sentence not in str(refusals(settings, ["proxy"]))  # it opens none


@pytest.mark.parametrize(
    "text", ['host = "0.0.0.0"\n', 'host = "::"\n', 'host = "0.0.0.0"\nadvertise = "0.0.0.0:8081"\n']
)
def test_a_node_that_advertises_all_addresses_is_refused(tmp_path, text):
    """It registered 0.0.0.0, by which each other node reaches itself."""
    everywhere = "::" if "::" in text else "0.0.0.0"
    sentence = (
        f"advertise: {everywhere} is no address by which other nodes reach this one; write host:port of this machine"
    )
    cluster = f"{CONTROLLERS}insecure = true\n"
    settings = config_of(tmp_path, f"{cluster}[rpc]\n{text}")[1]
    assert refusals(settings, ["controller", "store", "proxy"]) == [f"store: rpc.{sentence}"]
    joining = f"{cluster}[controller]\nid = 7\njoin = true\n{text}"
    assert refusals(config_of(tmp_path, joining)[1], ["controller"]) == [f"controller: controller.{sentence}"]
    named = f'{cluster}[rpc]\nhost = "0.0.0.0"\nadvertise = "n1:8081"\n[controller]\nhost = "0.0.0.0"\n'
    assert refusals(config_of(tmp_path, named)[1], ["controller", "store", "proxy"]) == []


def test_a_certificate_for_another_name_is_refused(tmp_path):
    """The node started, and no other node could connect to it."""
    authority = Authority(tmp_path / "tls")
    files = node_files(authority, "n1.example")
    tls = f'[cluster.tls]\ncert_file = "{files.certificate}"\nkey_file = "{files.key}"\nca_file = "{files.authority}"\n'

    def said(name):
        text = f'{CONTROLLERS}{tls}[rpc]\nhost = "0.0.0.0"\nadvertise = "{name}:8081"\n'
        return refusals(config_of(tmp_path, text)[1], ["store", "proxy"])

    assert said("n1.example") == []
    (line,) = said("n2.example")
    assert line.startswith(f"store: cluster.tls.cert_file: other nodes refuse {files.certificate}: ")
    assert line.endswith("write a certificate of cluster.tls.ca_file that is valid now, for n2.example")
    node_files(authority, "n1.example", days=(-9, -1))
    assert len(said("n1.example")) == 2
    assert all("certificate has expired" in line for line in said("n1.example"))


def test_roles_follow_from_what_is_written(tmp_path):
    def of(text):
        return roles_of(config_of(tmp_path, text)[1])

    assert of("") == ["serve"]
    assert of(CONTROLLERS) == ["controller", "store", "proxy"]
    assert of('[cluster]\ncontrollers = { 7 = "127.0.0.1:7" }\n') == ["store", "proxy"]


def test_what_a_role_opens_is_said_and_nothing_else(tmp_path):
    """Of a controller and a store the listeners of clients were named, and the store's directory of all of them."""
    file, settings = config_of(tmp_path, CONTROLLERS + '[store]\ndata_dir = "s"\n[controller]\ndata_dir = "c"\n')

    def said(*args):
        result = CliRunner().invoke(cli.app, ["check-config", "--config", str(file), *args])
        assert result.exit_code == 0
        return result.output.splitlines()

    listening = [one for one in settings.listeners.values() if one.enabled]
    assert listening
    rpc, controller, admin = (
        "  rpc: 127.0.0.1 tcp 8081",
        "  controller: 127.0.0.1 tcp 8082",
        "  admin: 127.0.0.1 tcp 8088",
    )
    assert said("--role", "controller") == ["ok for controller: data in c", controller, admin]
    assert said("--role", "store") == ["ok for store: data in s", rpc, admin]
    of_a_proxy = said("--role", "proxy")
    assert of_a_proxy[0] == f"ok for proxy: {len(listening)} listeners, no data directory"
    assert of_a_proxy[1:3] == [rpc, admin]
    assert len(of_a_proxy) == 3 + len(listening)
    assert said() == [
        f"ok for controller, store, proxy: {len(listening)} listeners, data in s and c",
        controller,
        *of_a_proxy[1:],
    ]
    file.write_text("[rpc]\nenabled = false\n")
    assert rpc not in said()


def test_files_that_cannot_be_used_are_said(tmp_path):
    (tmp_path / "no.pem").write_text("nothing")
    tls = f'[tls]\ncert_file = "{tmp_path / "no.pem"}"\nkey_file = "{tmp_path / "no.pem"}"\n'
    (found,) = refusals(config_of(tmp_path, tls)[1], ["serve"])
    assert found.startswith("serve: tls.cert_file: ")
    assert refusals(config_of(tmp_path, "")[1], ["store"]) == [
        'store: cluster.controllers: is empty; write where the controllers are, { 1 = "10.0.0.1:8082" }'
    ]


def test_a_role_that_there_is_not(tmp_path):
    file, _ = config_of(tmp_path, "")
    assert check(file, "--role", "king")[1] == "--role: 'king' is none of serve, controller, store, proxy"
