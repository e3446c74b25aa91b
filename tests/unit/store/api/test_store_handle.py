"""Handles of leases: what is signed comes back, and nothing else is believed."""

import base64
import random

import pytest

from store.api.handle import HANDLE_CHARS_MAX, Grant, LeaseHandle
from store.base.errors import BadHandle

KEY = bytes(range(32))
HANDLE = LeaseHandle(
    queue=17, group="göteborg", offset=1 << 62, lease=1 << 60, leased_at=1 << 61, deliveries=3, visible_at_ms=1 << 41
)


def test_round_trip():
    text = HANDLE.encode(KEY)
    assert LeaseHandle.decode(text, KEY) == HANDLE
    assert "=" not in text


def test_every_changed_bit_is_noticed():
    text = HANDLE.encode(KEY)
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    for bit in range(len(raw) * 8):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadHandle):
            LeaseHandle.decode(base64.urlsafe_b64encode(changed).rstrip(b"=").decode(), KEY)


def test_another_key():
    with pytest.raises(BadHandle):
        LeaseHandle.decode(HANDLE.encode(bytes(32)), KEY)


def test_nothing_else_is_a_handle():
    chance = random.Random(1)
    text = HANDLE.encode(KEY)
    texts = [
        "",
        "=",
        "é",
        "A" * 60,
        "A" * HANDLE_CHARS_MAX,
        "A" * (HANDLE_CHARS_MAX + 1),
        text + "A",
        text + "=",
        "a b",
    ]
    texts += [text[:n] for n in range(len(text))]
    texts += ["".join(chance.choices("ABCabc012-_ =\n", k=chance.randrange(90))) for _ in range(300)]
    for other in texts:
        with pytest.raises(BadHandle):
            LeaseHandle.decode(other, KEY)


def test_a_spelling_that_means_the_same_is_not_taken():
    for group in ("", "a", "ab"):
        text = HANDLE._replace(group=group).encode(KEY)
        if len(text) % 4:
            letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
            other = text[:-1] + letters[letters.index(text[-1]) ^ 1]
            with pytest.raises(BadHandle):
                LeaseHandle.decode(other, KEY)


def test_a_grant_signs_for_each_of_its_messages():
    grant = Grant(queue=17, group="g", owner=1, lease=9, leased_at=77, visible_at_ms=5, key=KEY)
    handle = LeaseHandle.decode(grant.handle(4, 2), KEY)
    assert handle == (17, "g", 4, 9, 77, 2, 5)
    longer = LeaseHandle.decode(grant.until(8).handle(4, 2), KEY)
    assert longer == (17, "g", 4, 9, 77, 2, 8)
