"""Passwords: hashes of them, and the comparison off the event loop.

A hash is argon2id's (RFC 9106), a verifier of SCRAM's (`gateway.security.scram`), or both with a space between:
a password that was sent is compared with argon2id's, for trying passwords against it costs most. Users who came from
RabbitMQ may have its hash (`gateway.security.rabbitmq_hashes`).

A comparison costs some 20 ms of a processor and 19 MiB, on purpose. Devices connect again and again with the same
password, so a right password is remembered for a while, by a digest under a key of this process's own.

Comparisons with different hashes take differently long: with a verifier of SCRAM's alone, or with a hash that others
have made at other costs. Refusals take equally long all the same, those of unknown names included: twice as
long as the slowest kind of hash does on average. The rest of that time is waited for once a password was compared,
without a thread.
"""

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import InvalidHashError, VerificationError

from gateway.security import rabbitmq_hashes, scram
from gateway.security.fair_work import FairWork

MEMORY_KIB, PASSES, LANES = 19 * 1024, 2, 1  # OWASP's least for argon2id
THREADS = 2  # that compare
WAITING_COUNT_MAX = 256  # comparisons; more are refused: a client that has to wait longer has gone
REMEMBERED_COUNT_MAX = 65_536  # passwords that were right
PASSWORD_BYTES_MAX = 1_024

ARGON2 = "$argon2id$"
HASH_MEMORY_KIB_MAX = 256 * 1024  # of a hash that was made elsewhere
HASH_PASSES_COUNT_MAX = 32

KINDS_COUNT_MAX = 64  # of hashes, by the cost of a comparison
REFUSAL_TIMES = 2.0  # the slowest kind: comparisons that take longer than the average do not show
NEWS_WEIGHT = 1 / 8  # of the last comparison in the average

T = TypeVar("T")

OURS = f"{ARGON2}v=19$m={MEMORY_KIB},t={PASSES},p={LANES}"  # the kind of hashes that are made here

_hasher = PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=LANES)


def hash_password(password: bytes) -> str:
    """Returns the stored form of a password: argon2id's hash, and SCRAM's verifier where SCRAM allows the password.

    Raises ValueError for a password that is empty or too long.
    """
    if not 0 < len(password) <= PASSWORD_BYTES_MAX:
        raise ValueError(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")
    hashed = _hasher.hash(password)
    try:
        verifier = scram.derive(password.decode(), salt=secrets.token_bytes(scram.SALT_BYTES))
    except ValueError:  # no text, or one with control characters
        return hashed
    return f"{hashed} {verifier}"


def check_hash(hashed: str) -> None:
    """Raises ValueError, whose text does not repeat it, for a text that is no supported password hash."""
    parts = hashed.split()
    if not parts:
        raise ValueError("is empty")
    for part in parts:
        if part.startswith(scram.PREFIX):
            scram.Verifier.parse(part)
        elif part.startswith(rabbitmq_hashes.PREFIX):
            rabbitmq_hashes.check(part)
        elif not part.startswith(ARGON2):
            raise ValueError(f"begins with neither {ARGON2} nor {scram.PREFIX} nor {rabbitmq_hashes.PREFIX}")
        else:
            try:
                costs = extract_parameters(part)
            except InvalidHashError:
                raise ValueError("is no hash of argon2id") from None
            if costs.memory_cost > HASH_MEMORY_KIB_MAX or costs.time_cost > HASH_PASSES_COUNT_MAX:
                raise ValueError(f"costs more than {HASH_MEMORY_KIB_MAX} KiB and {HASH_PASSES_COUNT_MAX} passes")


def is_match(hashed: str, password: bytes) -> bool:
    """Returns whether a password matches a hash. Takes some 20 ms: an event loop asks `Passwords`."""
    return len(password) <= PASSWORD_BYTES_MAX and _is_right(hashed, password)


def verifier_in(hashed: str) -> scram.Verifier | None:
    """Returns the verifier for SCRAM in a hash, None where there is none."""
    for part in hashed.split():
        if part.startswith(scram.PREFIX):
            try:
                return scram.Verifier.parse(part)
            except ValueError:
                return None
    return None


class _Compared(NamedTuple):
    right: bool
    kind: str
    took_s: float


class ComparisonCost:
    """The cost of a login attempt's password comparison."""

    __slots__ = ("kind", "took_s", "tried")

    def __init__(self) -> None:
        self.tried = False  # there was a password to compare
        self.kind = ""  # of the hash; "": none was compared with
        self.took_s = 0.0


class Refusals:
    """The duration of refusals, derived from how long comparisons take."""

    def __init__(self) -> None:
        self._average_s: dict[str, float] = {}  # by kind of hash

    def knows(self, kind: str) -> bool:
        """Returns whether a comparison of this kind has been noted."""
        return kind in self._average_s

    def note(self, kind: str, took_s: float) -> None:
        """Notes how long a comparison of a kind has taken."""
        before_s = self._average_s.get(kind)
        if before_s is not None:
            self._average_s[kind] = before_s + (took_s - before_s) * NEWS_WEIGHT
        elif len(self._average_s) < KINDS_COUNT_MAX:
            self._average_s[kind] = took_s

    @property
    def lasting_s(self) -> float:
        """Returns how long each refusal takes."""
        return REFUSAL_TIMES * max(self._average_s.values(), default=0.0)


class Passwords:
    """Compares passwords with hashes. Belongs to the event loop; `clock_s` is a clock that never goes back."""

    def __init__(
        self,
        *,
        clock_s: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock_s = clock_s
        self._sleep = sleep
        self._refusals = Refusals()
        self._work = FairWork(THREADS, WAITING_COUNT_MAX, name="passwords")
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()  # digests of (hash, password)
        self._decoy = ""  # a hash that no password has

    async def verify(
        self, hashed: str, password: bytes, *, network: str = "", effort: ComparisonCost | None = None
    ) -> bool:
        """Returns whether a password from a network matches a hash. Raises `Refusal` (OVERLOAD).

        A client that is refused has to wait as long as all others (`even_out`), once that is counted.
        """
        if len(password) > PASSWORD_BYTES_MAX:
            return False
        effort = effort or ComparisonCost()
        effort.tried = True
        digest = hmac.digest(self._key, hashed.encode() + b"\0" + password, hashlib.sha256)
        if digest in self._right:
            self._right.move_to_end(digest)
            return True
        right = await self._compare(hashed, password, network, effort)
        if right:
            self._right[digest] = None
            if len(self._right) > REMEMBERED_COUNT_MAX:
                self._right.popitem(last=False)
        return right

    async def pretend(self, password: bytes, *, network: str = "", effort: ComparisonCost | None = None) -> None:
        """Compares a password with a hash of no user, so that the time does not tell which names exist.

        Raises `Refusal` (OVERLOAD).
        """
        if len(password) <= PASSWORD_BYTES_MAX:
            effort = effort or ComparisonCost()
            effort.tried = True
            await self._compare(self._decoyed, password, network, effort)

    async def even_out(self, effort: ComparisonCost, *, network: str = "") -> None:
        """Waits until a refusal has taken as long as all others. Raises `Refusal` (OVERLOAD)."""
        if not effort.tried:
            return
        refusals = self._refusals
        if effort.kind:
            refusals.note(effort.kind, effort.took_s)
        if not refusals.knows(OURS):  # how long unknown names take
            ours = ComparisonCost()
            await self._compare(self._decoyed, b"", network, ours)
            refusals.note(OURS, ours.took_s)
            effort.took_s += ours.took_s
        left_s = refusals.lasting_s - effort.took_s
        if left_s > 0:
            await self._sleep(left_s)

    async def _compare(
        self, hashed: str | Callable[[], str], password: bytes, network: str, effort: ComparisonCost
    ) -> bool:
        compared = await self.work(lambda: self._timed(hashed, password), network=network)
        effort.kind, effort.took_s = compared.kind, compared.took_s
        return compared.right

    def _timed(self, hashed: str | Callable[[], str], password: bytes) -> _Compared:
        found = hashed if isinstance(hashed, str) else hashed()
        began_s = self._clock_s()
        right = _is_right(found, password)
        return _Compared(right, _kind(found), self._clock_s() - began_s)

    async def work(self, work: Callable[[], T], *, network: str = "") -> T:
        """Runs long work in one of the threads. Raises `Refusal` (OVERLOAD) where too many wait for it."""
        return await self._work.do(work, network=network)

    def _decoyed(self) -> str:
        if not self._decoy:
            self._decoy = _hasher.hash(secrets.token_bytes(32))
        return self._decoy


def _kind(hashed: str) -> str:
    """Returns the kind of a hash, which tells how long a comparison takes: the costs of the part `_is_right` uses."""
    parts = hashed.split()
    for part in parts:
        if part.startswith(ARGON2):
            return "$".join(part.split("$")[:4])
        if part.startswith(rabbitmq_hashes.PREFIX):
            return part[: part.rindex("$")]
    return next((part.partition(":")[0] for part in parts if part.startswith(scram.PREFIX)), "")


def _is_right(hashed: str, password: bytes) -> bool:
    parts = hashed.split()
    try:
        for part in parts:
            if part.startswith(ARGON2):
                return _hasher.verify(part, password)
            if part.startswith(rabbitmq_hashes.PREFIX):
                return rabbitmq_hashes.is_match(part, password)
    except (VerificationError, InvalidHashError):
        return False
    verifier = verifier_in(hashed)
    return verifier is not None and verifier.admits(password)
