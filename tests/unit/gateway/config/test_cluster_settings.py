"""The settings of a node that is one of several."""

from pathlib import Path

import pytest

from gateway.config.cluster_settings import ClusterConfig, NodeAddress, NodesTls, cluster_mistakes
from gateway.config.config import load
from store.base.process_errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("10.0.0.1:8082", "10.0.0.1", 8082), ("store-1.example:1", "store-1.example", 1), ("[::1]:65535", "::1", 65535)],
)
def test_an_address_is_read_and_written(text: str, host: str, port: int) -> None:
    address = NodeAddress.parse(text)
    assert address == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":1",
        "host:0",
        "host:65536",
        "a b:1",
        "::1:80",
        "host:1x",
        "h:1\n",
        "ctl-2..example.com:8082",
        f"{'n' * 64}.example:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not host:port"):
        NodeAddress.parse(text)


def test_controllers_are_known_by_number() -> None:
    cluster = ClusterConfig(controllers={"1": "a:1", "20": "b:2"})
    assert cluster.addresses == {1: ("a", 1), 20: ("b", 2)}
    assert not list(cluster_mistakes(cluster))


def test_every_mistake_is_named() -> None:
    cluster = ClusterConfig(controllers={"one": "a:1", "0": "a:1", "3": "nowhere"}, tls=NodesTls(ca_file=Path("/none")))
    assert [key for key, _ in cluster_mistakes(cluster)] == [
        "cluster.controllers.one",
        "cluster.controllers.0",
        "cluster.controllers.3",
        "cluster.tls.cert_file",
        "cluster.tls.key_file",
        "cluster.tls.ca_file",
    ]


def test_the_file_s_mistakes_are_refused_and_the_port_offset_moves_the_controller(tmp_path: Path) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text('[cluster]\ncontrollers = { 1 = "nowhere" }\n[rpc]\nadvertise = "x"\n')
    with pytest.raises(ConfigError) as refused:
        load(file, {})
    assert "cluster.controllers.1" in str(refused.value)
    assert "rpc.advertise" in str(refused.value)
    file.write_text('port_offset = 1000\n[cluster]\nnode = "n1"\n')
    config = load(file, {})
    assert config.controller.port == 9082
    assert config.cluster.node_name == "n1"
