"""A security context (RFC 8613, 3): keys, nonces, the replay window, and the sender's sequence numbers.

Keys are derived, and messages encrypted, by aiocoap; so is the replay window its own.
"""

from typing import Final, NamedTuple

import cbor2
from aiocoap import oscore as aiocoap_oscore
from cryptography.exceptions import InvalidTag

from gateway.port.oscore import ContextKeys

VERSION: Final = 1
WINDOW_COUNT: Final = 64  # sequence numbers that may come out of order
PIV_BYTES: Final = 5

_ALGORITHMS: Final = {
    one.value: one for one in aiocoap_oscore.algorithms.values() if isinstance(one, aiocoap_oscore.AeadAlgorithm)
}


class ProtectionError(Exception):
    """Raised where a message was not protected with these keys."""


class NumbersUsedUpError(Exception):
    """Raised where no sender sequence number is reserved any more."""


class RequestId(NamedTuple):
    """The kid and Partial IV of a request, which its responses are bound to."""

    kid: bytes
    piv: bytes
    fetched: bool = False  # by FETCH on the outside, so the response is a 2.05 there


class _Derived(aiocoap_oscore.SecurityContextUtils):  # type: ignore[misc]
    """Keys by aiocoap's derivation."""

    def __init__(self, keys: ContextKeys) -> None:
        self.alg_aead = _ALGORITHMS[keys.algorithm]
        self.hashfun = aiocoap_oscore.hashfunctions[aiocoap_oscore.DEFAULT_HASHFUNCTION]
        self.id_context = keys.id_context
        self.sender_id, self.recipient_id = keys.sender_id, keys.recipient_id
        self.derive_keys(keys.salt, keys.secret)


class SecurityContext:
    """The server's side of one context."""

    def __init__(self, keys: ContextKeys) -> None:
        derived = _Derived(keys)
        self.sender_id, self.recipient_id = keys.sender_id, keys.recipient_id
        self.sender_key: bytes = derived.sender_key
        self.recipient_key: bytes = derived.recipient_key
        self.common_iv: bytes = derived.common_iv
        self._algorithm = derived.alg_aead
        self._window = aiocoap_oscore.ReplayWindow(WINDOW_COUNT, lambda: None)
        self._numbers: list[range] = []  # reserved, not used yet

    # ---- the sender's numbers

    @property
    def numbers_left(self) -> int:
        """Returns how many sender sequence numbers are reserved and not used."""
        return sum([len(numbers) for numbers in self._numbers])

    def reserve(self, first: int, count: int) -> None:
        """Takes sender sequence numbers that no other process uses."""
        if count:
            self._numbers.append(range(first, first + count))

    def renounce(self) -> None:
        """Uses none of the numbers reserved so far any more, and knows of no request."""
        self._numbers.clear()
        self._window = aiocoap_oscore.ReplayWindow(WINDOW_COUNT, lambda: None)

    def _next_piv(self) -> bytes:
        if not self._numbers:
            raise NumbersUsedUpError
        numbers = self._numbers[0]
        if len(numbers) == 1:
            del self._numbers[0]
        else:
            self._numbers[0] = numbers[1:]
        number = numbers[0]
        return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")

    # ---- the replay window

    @property
    def knows_requests(self) -> bool:
        """Returns whether it is known which requests have come before (RFC 8613, 7.4)."""
        return bool(self._window.is_initialized())

    def begin_unused(self) -> None:
        """Begins with a context that was never used before."""
        self._window.initialize_empty()

    def begin_after(self, piv: bytes) -> None:
        """Begins with a request that is known to be new (RFC 8613, B.1.2): those before it count as seen."""
        self._window.initialize_from_freshlyseen(int.from_bytes(piv, "big"))

    def is_new(self, piv: bytes) -> bool:
        """Returns whether no request with this Partial IV has come."""
        return bool(self._window.is_valid(int.from_bytes(piv, "big")))

    def note(self, piv: bytes) -> None:
        """Notes that a request was received, and is genuine."""
        self._window.strike_out(int.from_bytes(piv, "big"))

    # ---- protection

    def unprotect(self, request: RequestId, ciphertext: bytes) -> bytes:
        """Returns the plaintext of a request: code, options and payload. Raises `ProtectionError`."""
        nonce = self._nonce(request.kid, request.piv)
        if len(ciphertext) <= self._algorithm.tag_bytes:
            raise ProtectionError
        aad = _aad(self._algorithm.value, request)
        try:
            plaintext: bytes = self._algorithm.decrypt(ciphertext, aad, self.recipient_key, nonce)
        except (aiocoap_oscore.ProtectionInvalid, InvalidTag):
            raise ProtectionError from None
        return plaintext

    def protect(self, request: RequestId, plaintext: bytes, *, own_number: bool) -> tuple[bytes | None, bytes]:
        """Returns the Partial IV of a response and its ciphertext; None for the first response, by the request's nonce.

        A nonce of the request's may be used once, and only where the request is known to be new (RFC 8613, 5.2). Raises
        `NumbersUsedUpError`.
        """
        piv = self._next_piv() if own_number else None
        nonce = self._nonce(request.kid, request.piv) if piv is None else self._nonce(self.sender_id, piv)
        aad = _aad(self._algorithm.value, request)
        return piv, self._algorithm.encrypt(plaintext, aad, self.sender_key, nonce)

    def _nonce(self, kid: bytes, piv: bytes) -> bytes:
        """Returns the nonce (RFC 8613, 5.2): length of the kid, kid and Partial IV, each padded, and the common IV."""
        id_bytes = len(self.common_iv) - 1 - PIV_BYTES
        padded = bytes((len(kid),)) + kid.rjust(id_bytes, b"\0") + piv.rjust(PIV_BYTES, b"\0")
        return bytes([one ^ other for one, other in zip(padded, self.common_iv, strict=True)])


def _aad(algorithm: int, request: RequestId) -> bytes:
    """Returns the additional authenticated data (RFC 8613, 5.4); no option is of class I."""
    external = cbor2.dumps([VERSION, [algorithm], request.kid, request.piv, b""])
    structure: bytes = cbor2.dumps(["Encrypt0", b"", external])
    return structure
