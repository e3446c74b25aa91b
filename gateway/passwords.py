"""Passwords of users that the controller knows: argon2id hashes, compared off the event loop (RFC 9106).

A comparison costs some 20 ms of a processor and 19 MiB, on purpose. Devices connect again and again with the same
password, so what was right is remembered for a while, by a digest under a key of this process's own.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from gateway.errors import Cause, Refusal

__all__ = ["Passwords", "hash_password"]

MEMORY_KIB, PASSES, LANES = 19 * 1024, 2, 1  # OWASP's least for argon2id
THREADS = 2  # that compare
WAITING_COUNT_MAX = 256  # comparisons; more are refused, else a flood of wrong passwords would cost us gigabytes
REMEMBERED_COUNT_MAX = 65_536  # passwords that were right
PASSWORD_BYTES_MAX = 1_024

_hasher = PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=LANES)


def hash_password(password: bytes) -> str:
    """The hash that is kept. Raises ValueError for a password that is empty or too long."""
    if not 0 < len(password) <= PASSWORD_BYTES_MAX:
        raise ValueError(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")
    return _hasher.hash(password)


class Passwords:
    """Compares passwords with hashes. Belongs to the event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "passwords")
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()  # digests of (hash, password)
        self._waiting = 0

    async def verify(self, hashed: str, password: bytes) -> bool:
        """Whether a password is the one of a hash. Raises `Refusal` (OVERLOAD)."""
        if len(password) > PASSWORD_BYTES_MAX:
            return False
        digest = hmac.digest(self._key, hashed.encode() + b"\0" + password, hashlib.sha256)
        if digest in self._right:
            self._right.move_to_end(digest)
            return True
        if self._waiting >= WAITING_COUNT_MAX:
            raise Refusal(Cause.OVERLOAD, "too many are logging in", retry_after_ms=1000)
        self._waiting += 1
        try:
            right = await asyncio.get_running_loop().run_in_executor(self._pool, _is_right, hashed, password)
        finally:
            self._waiting -= 1
        if right:
            self._right[digest] = None
            if len(self._right) > REMEMBERED_COUNT_MAX:
                self._right.popitem(last=False)
        return right


def _is_right(hashed: str, password: bytes) -> bool:
    try:
        return _hasher.verify(hashed, password)
    except (VerificationError, InvalidHashError):
        return False
