"""A bit that flips in the views below a gateway that runs: what it hit is not served, and a restart has it again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.process.waiting import wait_until
from tests.support.store.flips import flip_all

pytestmark = pytest.mark.slow

VALUE = b"a value that nobody else has"


def flip_views(path: Path) -> None:
    flip_all(path, VALUE, within=7, bit=1)


def test_a_flipped_byte_of_a_value_is_not_served_over_http(new_gateway: Callable[..., Any]) -> None:
    gateway = new_gateway().start()
    views = gateway.data_dir / "views" / "data.mdb"
    with httpx.Client(base_url=gateway.url, trust_env=False) as client:
        assert client.put("/kv/a/key", content=VALUE).status_code in {200, 201}
        assert client.put("/kv/a/other", content=b"fine").status_code in {200, 201}
        wait_until(lambda: VALUE in views.read_bytes())
        flip_views(views)
        answer = client.get("/kv/a/key")
        while answer.status_code == 200 and answer.content == VALUE:  # memory lets go of it in a moment
            answer = client.get("/kv/a/key")
        assert (answer.status_code, answer.content == VALUE) == (503, False)
        assert client.get("/kv/a/other").content == b"fine"
        status = json.loads(gateway.admin("/status"))
        assert [one["view"] for one in status["damaged_views"]] == ["kv"]
        assert "views" in "".join(status["warnings"])
    gateway.stop()
    gateway.start()
    answer = httpx.get(f"{gateway.url}/kv/a/key", trust_env=False)
    assert (answer.status_code, answer.content) == (200, VALUE)
