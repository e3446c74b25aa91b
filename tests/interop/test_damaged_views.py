"""Bits that flip in the views below a gateway that runs: what they hit is not served, and soon it is there again."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.process.waiting import wait_until
from tests.support.store.flips import flip_all

pytestmark = pytest.mark.slow

VALUE = b"a value that nobody else has"
KEY = "site-one/setting"


ALONE: tuple[str, ...] = ()
WITH_WORKERS = ("--workers", "1")


@pytest.fixture
def damaged(new_gateway: Callable[..., Any], arguments: tuple[str, ...]) -> tuple[Any, Path]:
    """Returns a gateway with two keys that are in its views, and the file of the views."""
    gateway = new_gateway(*arguments).start()
    for key, value in ((KEY, VALUE), ("site-two/setting", b"fine")):
        assert httpx.put(f"{gateway.url}/kv/{key}", content=value, trust_env=False).status_code in {200, 201}
    views = gateway.data_dir / "views" / "data.mdb"
    wait_until(lambda: VALUE in views.read_bytes() and b"site-two/setting" in views.read_bytes())
    return gateway, views


def read(gateway: Any, key: str) -> tuple[int, bytes] | None:
    """Returns the answer to a read of a key; None where there is none, as the gateway begins anew."""
    with suppress(httpx.TransportError):
        answer = httpx.get(f"{gateway.url}/kv/{key}", trust_env=False, timeout=60)
        return answer.status_code, answer.content
    return None


@pytest.mark.parametrize(
    ("what", "within", "arguments"), [(VALUE, 7, ALONE), (KEY.encode(), 3, ALONE), (VALUE, 7, WITH_WORKERS)]
)
def test_what_a_flipped_bit_hits_is_not_served_before_the_views_are_made_anew(
    damaged: tuple[Any, Path], what: bytes, within: int
) -> None:
    gateway, views = damaged
    flip_all(views, what, within=within, bit=1)
    wait_until(lambda: "a view is damaged" in gateway.log.read_text() or not read(gateway, KEY))
    seen = set()

    def whole() -> bool:
        seen.add(answer := read(gateway, KEY))
        return answer == (200, VALUE)

    wait_until(whole, timeout_s=180)
    assert {answer for answer in seen if answer is not None and answer[0] != 503} == {(200, VALUE)}
    assert read(gateway, "site-two/setting") == (200, b"fine")
    assert "the gateway begins anew" in gateway.log.read_text()
    assert gateway.process.poll() is None
    assert json.loads(gateway.admin("/status"))["damaged_views"] == []


@pytest.mark.parametrize("arguments", [ALONE, WITH_WORKERS])
def test_a_store_that_damaged_views_have_stopped_goes_on_by_itself(damaged: tuple[Any, Path]) -> None:
    gateway, views = damaged
    wait_until(lambda: read(gateway, KEY) == (200, VALUE))
    flip_all(views, KEY.encode(), within=3, bit=1)
    only_new = {"If-None-Match": "*"}
    with suppress(httpx.TransportError):  # or the gateway has met the damage by itself, and ends already
        answer = httpx.put(f"{gateway.url}/kv/{KEY}", content=b"another", headers=only_new, trust_env=False)
        assert answer.status_code >= 500 or answer.status_code == 412
    wait_until(lambda: read(gateway, KEY) == (200, VALUE), timeout_s=180)
    answer = httpx.put(f"{gateway.url}/kv/{KEY}", content=b"another", headers=only_new, trust_env=False)
    assert answer.status_code == 412
