"""SCRAM-SHA-256: a password is proven by both sides and sent by neither (RFC 5802, RFC 7677).

A password is kept as a verifier, written as PostgreSQL writes it:

    SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>

with the last three in base64. A reader of one cannot log in with it, but can try passwords against it; a reader that
has overheard an exchange besides can pass for its user. The state machine is scramp's: text in, text out.
"""

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from gateway.domain.errors import Cause, Refusal

if TYPE_CHECKING:
    from scramp.core import ScramServer

MECHANISM = "SCRAM-SHA-256"
PREFIX = MECHANISM + "$"
ITERATIONS = 15_000  # RFC 7677, 4: a tenth of a second of 2015; a small device needs a second or two
ITERATIONS_COUNT_MAX = 1_000_000  # of a verifier that was made elsewhere
SALT_BYTES = 16
KEY_BYTES = hashlib.sha256().digest_size
MESSAGE_BYTES_MAX = 1_024  # of a client: a name and a nonce, or a nonce and a proof

_WRITTEN = re.compile(r"SCRAM-SHA-256\$([1-9][0-9]{3,6}):([^$:]+)\$([^$:]+):([^$:]+)")


class Verifier(NamedTuple):
    """The values that verify a password, from which it cannot be read."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return "Verifier(***)"

    def __str__(self) -> str:
        salt, stored, server = (b64encode(part).decode() for part in self[1:])
        return f"{PREFIX}{self.iterations}:{salt}${stored}:{server}"

    @classmethod
    def parse(cls, text: str) -> "Verifier":
        """Parses a verifier. Raises ValueError, which does not repeat the text."""
        found = _WRITTEN.fullmatch(text)
        try:
            if found is None:
                raise ValueError
            salt, stored, server = (b64decode(part, validate=True) for part in found.groups()[1:])
        except (ValueError, binascii.Error):
            raise ValueError(f"is no verifier of the form {PREFIX}4096:salt$StoredKey:ServerKey") from None
        iterations = int(found[1])
        if not 4_096 <= iterations <= ITERATIONS_COUNT_MAX:
            raise ValueError(f"has {iterations} iterations; 4096 to {ITERATIONS_COUNT_MAX} are possible")
        if len(salt) < 12 or not len(stored) == len(server) == KEY_BYTES:
            raise ValueError("has a salt below 12 bytes, or keys that are not of 32")
        return cls(iterations, salt, stored, server)

    def admits(self, password: bytes) -> bool:
        """Returns whether a password, as it was sent, is the right one; takes some milliseconds."""
        try:
            other = derive(password.decode(), salt=self.salt, iterations=self.iterations)
        except ValueError:
            return False
        return hmac.compare_digest(other.stored_key, self.stored_key)


def derive(password: str, *, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
    """Returns the verifier of a password. Raises ValueError for one that no client could prove (RFC 4013: SASLprep)."""
    from scramp import ScramException, ScramMechanism  # noqa: PLC0415 - 6 MB, which most processes never need

    try:
        made = ScramMechanism(MECHANISM).make_auth_info(password, iteration_count=iterations, salt=salt)
    except ScramException as error:
        raise ValueError(f"a password that SCRAM does not allow: {error.args[0]}") from error
    salt, stored_key, server_key, iterations = made
    return Verifier(iterations, salt, stored_key, server_key)


def load_library() -> None:
    """Imports the library that exchanges need, which takes a tenth of a second the first time."""
    import scramp  # noqa: F401, PLC0415


class ScramExchange:
    """The server's side of one exchange: the client's two messages in turn, each answered by one of ours.

    `verifier` gives that of a name, never None: for an unknown name it gives one that no password fits.
    """

    __slots__ = ("_server", "_started", "name", "over", "verifier")

    def __init__(self, verifier: Callable[[str], Verifier], *, nonce: str | None = None) -> None:
        from scramp import ScramMechanism  # noqa: PLC0415

        self.name = ""  # of the user, not proven until it is `over`
        self.verifier: Verifier | None = None  # that it is proven with
        self.over = False
        self._started = False

        def found(name: str) -> tuple[bytes, bytes, bytes, int]:
            self.name, self.verifier = name, verifier(name)
            iterations, salt, stored_key, server_key = self.verifier
            return salt, stored_key, server_key, iterations

        self._server: ScramServer = ScramMechanism(MECHANISM).make_server(found, s_nonce=nonce)

    def step(self, data: bytes) -> bytes:
        """Answers a message of the client's. Raises `Refusal` (UNAUTHENTICATED), which says nothing of the reason."""
        from scramp import ScramException  # noqa: PLC0415

        if self.over or len(data) > MESSAGE_BYTES_MAX:
            raise _refused()
        try:
            if not self._started:
                self._started = True
                self._server.set_client_first(data.decode())
                return str(self._server.get_server_first()).encode()
            self._server.set_client_final(data.decode())
            answer = str(self._server.get_server_final()).encode()
        except (ScramException, UnicodeDecodeError):
            self.over = True
            raise _refused() from None
        self.over = True
        return answer


def _refused() -> Refusal:
    return Refusal(Cause.UNAUTHENTICATED, "wrong name or password")
