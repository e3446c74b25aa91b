"""Signatures of requests to sinks, after the Standard Webhooks specification, 1.0: HMAC-SHA256 of id, time and body.

    webhook-id: {id}                    the same for each attempt to deliver an event
    webhook-timestamp: {seconds}        since 1970, of the attempt
    webhook-signature: v1,{Base64}      over `{id}.{seconds}.{body}`

A secret is `whsec_` and 24 to 64 bytes in Base64.
"""

import hmac
from base64 import b64decode, b64encode
from typing import Final

from gateway.domain.cesql import FilterError

PREFIX: Final = "whsec_"
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64


def read_secret(text: str) -> bytes:
    """Returns the key that a secret stands for. Raises `FilterError`, which does not repeat it."""
    try:
        key = b64decode(text.removeprefix(PREFIX), validate=True)
    except ValueError:
        key = b""
    if not text.startswith(PREFIX) or not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        what = f"is not {PREFIX} and {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes in Base64"
        raise FilterError("protocolsettings.signingsecret", what)
    return key


def signed(key: bytes, id_: str, now_s: int, body: bytes) -> list[tuple[bytes, bytes]]:
    """Returns the headers that sign a request."""
    mac = hmac.digest(key, b"%b.%d.%b" % (id_.encode(), now_s, body), "sha256")
    return [
        (b"webhook-id", id_.encode()),
        (b"webhook-timestamp", b"%d" % now_s),
        (b"webhook-signature", b"v1," + b64encode(mac)),
    ]
