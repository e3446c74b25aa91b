"""The files under deploy/ fit what the program understands: commands, options, ports, configuration."""

import configparser
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from gateway.cli.commands import app
from gateway.config.config import load
from tests.support.repository.chart import CHART, DEPLOY, RENDERED, ROOT, digest

PORTS = {1883, 8883, 8083, 8084, 5683, 5684, 5672, 5671, 8080, 8443, 8081, 8082, 8088}


def check_command(words: list[str]) -> None:
    """Fails where the command line would not understand its words."""
    command: Any = get_command(app)
    words = list(words)
    while words and getattr(command, "commands", {}).get(words[0]):
        command = command.commands[words.pop(0)]
    options = {name for parameter in command.params for name in parameter.opts}
    assert command.callback is not None, words
    for word in words:
        if word.startswith("-"):
            assert word in options, f"{word} of {command.name}"


def check_config(tmp_path: Path, text: str, environ: dict[str, str]) -> Any:
    file = tmp_path / "headgate.toml"
    file.write_text(text)
    return load(file, environ)


# ---- the image


def test_the_image_is_built_from_what_there_is() -> None:
    text = (DEPLOY / "container" / "Containerfile").read_text()
    packages = set(re.findall(r"^COPY (\w+) \1$", text, re.MULTILINE))
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    assert packages == set(wheel)
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split())
    [exposed] = re.findall(r"^EXPOSE (.+)$", text, re.MULTILINE)
    assert {int(port.split("/")[0]) for port in exposed.split()} == PORTS
    [command] = re.findall(r"^CMD \[(.+)\]$", text.replace(" \\\n", " "), re.MULTILINE)
    check_command([word.strip(' "') for word in command.split(",")])


def test_the_ports_named_are_the_defaults() -> None:
    config = load(None, {})
    ports = {config.admin.port, config.rpc.port, config.controller.port}
    for one in config.listeners.values():
        ports |= {one.port}
    assert ports < PORTS | {one.port for one in config.listeners.values()}
    assert {1883, 8083, 5683, 5672, 8080, 8081, 8082, 8088} <= ports


# ---- compose


def composed() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())


def test_every_service_has_a_command_that_is_one() -> None:
    services = composed()["services"]
    assert len(services) == 9
    for service in services.values():
        check_command(service["command"])


def test_every_node_of_the_compose_file_has_a_configuration(tmp_path: Path) -> None:
    document = composed()
    text = (DEPLOY / "compose" / document["configs"]["headgate"]["file"]).read_text()
    services = document["services"]
    nodes = set()
    for name, service in services.items():
        config = check_config(tmp_path, text, service.get("environment", {}))
        if name != "groups":
            nodes.add(config.cluster.node)
        for id_, address in config.cluster.addresses.items():
            assert services[address.host]["command"] == ["controller", "--id", str(id_)]
        if service["command"] == ["store"]:
            assert config.rpc.advertise == f"{name}:8081"
            assert config.rpc.host == "0.0.0.0"
        assert set(service.get("depends_on", [])) <= services.keys()
    assert nodes == services.keys() - {"groups"}
    volumes = {volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])}
    assert volumes == document["volumes"].keys()
    published = [port.partition(":") for service in services.values() for port in service.get("ports", [])]
    ports = [(port, inside.partition("/")[2]) for port, _, inside in published]
    assert len(set(ports)) == len(ports)


# ---- systemd


@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").iterdir()), ids=lambda path: path.name)
def test_a_unit_starts_what_there_is(unit: Path) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    service = parser["Service"]
    for key in ("ExecStartPre", "ExecStart"):
        program, *words = shlex.split(service[key])
        assert program == "/opt/headgate/bin/headgate"
        check_command(words)
    config = load(None, dict([service["Environment"].split("=", 1)]))
    directory = config.proxy.state_dir if unit.name == "headgate-proxy.service" else config.store.data_dir
    assert str(directory) == f"/var/lib/{service['StateDirectory']}"
    assert service["Restart"] == "on-failure"
    assert parser["Install"]["WantedBy"] == "multi-user.target"


# ---- the chart


def rendered() -> list[Any]:
    return [one for one in yaml.safe_load_all(RENDERED.read_text()) if one]


def test_what_is_rendered_is_of_this_chart() -> None:
    assert f"# of {digest()}\n" in RENDERED.read_text(), "the chart has changed: run `make chart`, which needs helm"


def test_every_value_that_a_template_names_has_a_default() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for template in (CHART / "templates").iterdir():
        for path in re.findall(r"\.Values\.([\w.]+)", template.read_text()):
            at = values
            for name in path.split("."):
                assert name in at, f"{template.name}: {path}"
                at = at[name]
        for name in re.findall(r"\$group\.(\w+)", template.read_text()):
            assert name in values["groups"][0], f"{template.name}: {name}"


def test_the_chart_s_nodes_understand_their_commands_and_configuration(tmp_path: Path) -> None:
    documents = rendered()
    [text] = [one["data"]["headgate.toml"] for one in documents if one["kind"] == "ConfigMap"]
    services = {one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "Service"}
    for kind in ("StatefulSet", "Deployment", "Job"):
        for one in documents:
            if one["kind"] != kind:
                continue
            [container] = one["spec"]["template"]["spec"]["containers"]
            environ = {variable["name"]: variable.get("value", "pod-0") for variable in container.get("env", [])}
            config = check_config(tmp_path, text, environ)
            words = container["command"]
            if words[0] == "sh":
                words = shlex.split(words[2].removeprefix("exec ").replace("$((${HOSTNAME##*-} + 1))", "1"))
            assert words[0] == "headgate"
            check_command(words[1:])
            if kind == "StatefulSet":
                assert services[one["spec"]["serviceName"]]["clusterIP"] == "None"
            for address in config.cluster.addresses.values():
                pod, service = address.host.split(".")
                assert services[service]["ports"][0]["port"] == address.port == 8082
                assert pod.startswith(service)


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
def test_helm_renders_the_same() -> None:
    made = subprocess.run(
        ["helm", "template", "headgate", str(CHART)], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert [one for one in yaml.safe_load_all(made) if one] == rendered()
