"""The configuration and the figures of a running gateway's bridge."""

import json
from pathlib import Path
from typing import Any

from tests.support.process.waiting import wait_until


def figures(gateway) -> dict[str, Any]:
    (found,) = json.loads(gateway.admin("/status"))["bridges"] or [{"connected": False}]  # not begun yet
    return found


def connected(gateway):
    return wait_until(lambda: figures(gateway)["connected"], "the bridge is not connected")


def configured(directory: Path, url: str, *, to: str = "plant7/{topic}", qos: int = 2, **more: Any) -> Path:
    """Writes a configuration file with one bridge."""
    lines = ["[bridges.up]", f'url = "{url}"', "reconnect_min_s = 0.05", "reconnect_max_s = 0.5"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    lines += ["[[bridges.up.subscribe]]", 'filter = "up/#"', f"qos = {qos}", f'to = "{to}"']
    file = directory / "bridge.toml"
    file.write_text("\n".join(lines))
    return file
