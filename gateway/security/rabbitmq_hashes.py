"""RabbitMQ's hashes of passwords, which users have who came from there: a salt, and the digest of it and the password.

    $rabbitmq-sha256$BASE64    BASE64 is of salt (4 bytes) | SHA-256(salt | password), as `password_hash` of RabbitMQ
    $rabbitmq-sha512$BASE64    the same with SHA-512

One digest is quick to try: where such hashes may be stolen, their users should get other passwords soon.
"""

import base64
import hashlib
import hmac
from typing import Final

PREFIX: Final = "$rabbitmq-"
SALT_BYTES: Final = 4
_SIZES: Final = {"sha256": 32, "sha512": 64}


def rabbitmq_hash(algorithm: str, encoded: str) -> str:
    """Returns a hash of RabbitMQ as it is stored here; `algorithm` as RabbitMQ calls it. Raises ValueError."""
    name = algorithm.removeprefix("rabbit_password_hashing_")
    if name not in _SIZES:
        raise ValueError(f"its password is hashed by {algorithm}; rabbit_password_hashing_sha256 and _sha512 are taken")
    hashed = f"{PREFIX}{name}${encoded}"
    check(hashed)
    return hashed


def check(hashed: str) -> None:
    """Raises ValueError, whose text does not repeat it, for a text that is no such hash."""
    _parsed(hashed)


def is_match(hashed: str, password: bytes) -> bool:
    """Returns whether a password matches; an empty one never does."""
    try:
        algorithm, salt, digest = _parsed(hashed)
    except ValueError:
        return False
    found = hashlib.new(algorithm, salt + password).digest()
    return bool(password) and hmac.compare_digest(found, digest)


def _parsed(hashed: str) -> tuple[str, bytes, bytes]:
    algorithm, dollar, encoded = hashed.removeprefix(PREFIX).partition("$")
    size = _SIZES.get(algorithm)
    if not hashed.startswith(PREFIX) or not dollar or size is None:
        raise ValueError("is no hash of RabbitMQ")
    try:
        raw = base64.b64decode(encoded, validate=True)
    except ValueError:
        raise ValueError("is no hash of RabbitMQ: it is not base64") from None
    if len(raw) != SALT_BYTES + size:
        raise ValueError(f"is no hash of RabbitMQ: it has {len(raw)} bytes, not {SALT_BYTES + size}")
    return algorithm, raw[:SALT_BYTES], raw[SALT_BYTES:]
