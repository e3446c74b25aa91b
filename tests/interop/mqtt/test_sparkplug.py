"""Sparkplug B with a client that nobody here wrote: births, deaths and data as HTTP sees them."""

import httpx
from paho.mqtt import client as paho

from tests.support.mqtt.paho_client import PahoClient, fresh


def last(gateway, address):
    return httpx.get(f"{gateway.url}/topics/{address}", headers={"accept": "*/*"})


def test_an_edge_node_is_born_speaks_and_dies(shared_gateway):
    group = fresh("group")
    watcher = PahoClient(shared_gateway.port("mqtt")).connect()
    watcher.subscribe(f"spBv1.0/{group}/#", qos=1)
    node = PahoClient(shared_gateway.port("mqtt"), paho.MQTTv311, "edge-client")
    node.paho.will_set(f"spBv1.0/{group}/NDEATH/edge1", b"bdSeq", qos=1)
    node.connect()
    node.publish(f"spBv1.0/{group}/NBIRTH/edge1", b"born", 0)
    node.publish(f"spBv1.0/{group}/DBIRTH/edge1/dev1", b"born too", 0)
    node.publish(f"spBv1.0/{group}/DDATA/edge1/dev1", b"21", 0)
    assert watcher.bodies(3) == [b"born", b"born too", b"21"]
    node.drop()
    assert watcher.get().topic == f"spBv1.0/{group}/NDEATH/edge1"
    for kind, rest, body in (
        ("NBIRTH", "edge1", b"born"),
        ("DBIRTH", "edge1/dev1", b"born too"),
        ("NDEATH", "edge1", b"bdSeq"),
    ):
        found = last(shared_gateway, f"spBv1.0/{group}/{kind}/{rest}")
        assert found.content == body
        assert found.headers["content-type"] == "application/x-protobuf"
        assert found.headers["ce-type"] == f"sparkplug.{kind}"
    births = last(shared_gateway, f"spBv1.0/{group}/NBIRTH/%23")
    assert births.status_code == 200
    assert "NBIRTH/edge1" in births.text
    assert "DBIRTH" not in births.text
    watcher.close()
