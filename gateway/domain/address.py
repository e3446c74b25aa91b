"""Addresses: the hierarchical names that messages are published to.

An address is one or more levels joined by `/`, as an MQTT topic name is. A level may be empty. No level holds a
wildcard or U+0000. AMQP 0-9-1 joins its words by `.`; `from_routing_key` and `to_routing_key` are each other's
inverse over all texts.
"""

import re
from hashlib import blake2b
from urllib.parse import quote

from gateway.domain.errors import Cause, Refusal

ADDRESS_BYTES_MAX = 65_535  # MQTT 5.0, 1.5.4: the longest UTF-8 string
LEVELS_COUNT_MAX = 264  # of an address: a routing key of AMQP has up to 256 words, its exchange and virtual host 4 more

_FORBIDDEN = re.compile("[+#\0]")
_CODES = {"/": "2F", "+": "2B", "#": "23", "\0": "00", ".": "2E"}
_PLAIN = {code: plain for plain, code in _CODES.items()}
# "%2F" stands for "/", "%252F" for the text "%2F", and so on: one "25" more or less is one step of escaping.
_INTO_LEVEL = re.compile("[/+#\0]|%((?:25)*)(2F|2B|23|00)")
_OUT_OF_LEVEL = re.compile("%((?:25)*)(2F|2B|23|00)")
_INTO_ADDRESS = re.compile("[+#]|%((?:25)*)(2B|23)")
_INTO_WORD = re.compile(r"\.|%((?:25)*)(2E)")
_OUT_OF_WORD = re.compile("%((?:25)*)(2E)")


def check_address(address: str) -> str:
    """Returns the address; raises `Refusal` (MALFORMED) when nothing may be published to it."""
    if not address:
        raise Refusal(Cause.MALFORMED, "the address is empty")
    if len(address) > ADDRESS_BYTES_MAX or len(address.encode("utf-8", "surrogatepass")) > ADDRESS_BYTES_MAX:
        raise Refusal(Cause.MALFORMED, f"the address is longer than {ADDRESS_BYTES_MAX} bytes")
    if address.count("/") >= LEVELS_COUNT_MAX:
        raise Refusal(Cause.MALFORMED, f"the address has more than {LEVELS_COUNT_MAX} levels")
    if (found := _FORBIDDEN.search(address)) is not None:
        raise Refusal(Cause.MALFORMED, f"the address holds {found[0]!r}, which no address may")
    return address


def hash64(text: str) -> int:
    """Returns a 64-bit hash that is the same in every process; 0 is kept for "none"."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1


address_hash = hash64


def level_of(address: str, level: int) -> str:
    """Returns one level of an address, counted from 0; "" when it is missing or empty."""
    if level < 0:
        return ""
    levels = address.split("/", level + 1)
    return levels[level] if level < len(levels) else ""


def _escape(match: re.Match[str]) -> str:
    plain = match[0]
    return f"%{_CODES[plain]}" if plain in _CODES else f"%25{match[1]}{match[2]}"


def _unescape(match: re.Match[str]) -> str:
    return f"%{match[1][2:]}{match[2]}" if match[1] else _PLAIN[match[2]]


def address_of_subject(subject: str) -> str:
    """Returns the address that an event's subject names: `+` is `%2B`, `#` is `%23`, and such text is escaped."""
    return _INTO_ADDRESS.sub(_escape, subject)


def escape_level(text: str) -> str:
    """Returns any text as one level of an address: `/` is `%2F`, `+` is `%2B`, `#` is `%23`, U+0000 is `%00`.

    A text that looks escaped already is escaped once more, so that no two texts share a level.
    """
    return text if text.isalnum() else _INTO_LEVEL.sub(_escape, text)


def unescape_level(level: str) -> str:
    """Returns the text of a level: the inverse of `escape_level`."""
    return level if level.isalnum() else _OUT_OF_LEVEL.sub(_unescape, level)


def key_address(namespace: str, key: str) -> str:
    """Returns the address of a key in access rules."""
    return f"$kv/{namespace}/{key}"


def group_address(name: str) -> str:
    """Returns the address of a group in access rules: "subscribe" reads by it, "manage" resets and deletes it."""
    return f"$group/{name}"


def subscription_address(owner: str, id_: str) -> str:
    """Returns the address of a subscription with a sink in access rules: "subscribe" sees it, "manage" changes it.

    Those of clients without a name are below `$subscription/-/`.
    """
    return f"$subscription/{quote(owner, safe='') or '-'}/{id_}"


def from_routing_key(key: str) -> str:
    """Returns the address of an AMQP routing key.

    `a.b` is `a/b`. Characters that a level may not hold are percent-escaped: `/` inside a word is `%2F`, `+` is `%2B`,
    `#` is `%23`, U+0000 is `%00`; and `%2E` inside a word is the level's `.`.
    """
    words = key.split(".")
    for i, word in enumerate(words):
        if not word.isalnum():
            words[i] = _OUT_OF_WORD.sub(_unescape, _INTO_LEVEL.sub(_escape, word))
    return "/".join(words)


def to_routing_key(address: str) -> str:
    """Returns the AMQP routing key of an address: the inverse of `from_routing_key`."""
    levels = address.split("/")
    for i, level in enumerate(levels):
        if not level.isalnum():
            levels[i] = _OUT_OF_LEVEL.sub(_unescape, _INTO_WORD.sub(_escape, level))
    return ".".join(levels)
