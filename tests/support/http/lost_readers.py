"""Readers of addresses whose log has lost one message: what a single node answers them, and proxies have to."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
from paho.mqtt.packettypes import PacketTypes

from tests.support.mqtt.paho_client import PahoClient, properties

TOPIC, ADDRESS = "plant", "plant/site/dev1"
COUNT = 20
HURT = 7
LATER = b"later"


def body(n: int) -> bytes:
    return b"body %04d" % n


def session(port: int, name: str) -> PahoClient:
    """Returns a connected client with a durable session."""
    client = PahoClient(port, client_id=name)
    return client.connect(clean_start=False, properties=properties(PacketTypes.CONNECT, SessionExpiryInterval=3600))


def fill(http: httpx.Client) -> None:
    """Publishes the messages."""
    for n in range(COUNT):
        assert http.post(f"/topics/{ADDRESS}", content=body(n)).status_code == 201


def read_around(http: httpx.Client, queue: int) -> None:
    """Reads as members of a group and as an event stream, which meet the lost message, and publishes one more."""
    member = http.post("/groups/g/members", json={"topic": TOPIC, "start": "earliest"}).json()["member"]
    path, asked = f"/groups/g/members/{member}", dict[str, Any]()
    seen = []
    while (answer := http.get(f"{path}/messages", params={"max": 3, **asked})).status_code == 200:
        seen += [one["offset"] for one in answer.json()["messages"]]
        asked = {"after": answer.json()["after"]}
    assert (answer.status_code, seen) == (500, list(range(HURT)))
    assert f"offsets {HURT} to {HURT} of queue {queue}" in answer.json()["detail"]
    assert f"go on at offset {HURT + 1}" in answer.json()["detail"]
    reset = {"to": "offset", "offsets": {str(queue): HURT + 1}}
    assert http.post("/groups/g/reset", json=reset).status_code in {200, 204}
    behind = http.get(f"{path}/messages", params={"max": 100}).json()["messages"]
    assert [one["offset"] for one in behind] == list(range(HURT + 1, COUNT))
    assert http.post(f"/topics/{ADDRESS}", content=LATER).status_code == 201
    begin = {"last-event-id": "0.0"}
    with http.stream("GET", "/subscribe", params={"filter": f"{TOPIC}/#"}, headers=begin) as stream:
        kinds = [line for line in _until_later(stream.iter_lines()) if line.startswith("event: ")]
    assert kinds == ["event: message"] * HURT + ["event: lost"] + ["event: message"] * (COUNT - HURT)


def catch_up(port: int, name: str) -> list[Any]:
    """Takes all messages of a session, and returns the bodies of those about losses."""
    back = session(port, name)
    told = [back.get() for _ in range(COUNT + 1)]
    back.close()
    bodies = [one.payload for one in told if one.topic == ADDRESS]
    assert bodies == [body(n) for n in range(COUNT) if n != HURT] + [LATER]
    return [one.payload for one in told if one.topic == "$SYS/session/lost"]


def _until_later(lines: Iterator[str]) -> Iterator[str]:
    """Yields the lines of an event stream, up to the message that was published last."""
    for line in lines:
        yield line
        if line.startswith("data: ") and base64.b64encode(LATER).decode() in line:
            return
