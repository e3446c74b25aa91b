"""The file that `auth.oscore_file` names: the security contexts of clients, in JSON.

    {"contexts": [{"user": "dev42", "client_id": "01", "server_id": "", "secret": "0102...", "salt": "9e7c..."}]}

All but `user` are hexadecimal. `salt`, `context` (the ID Context) and `algorithm` (a number of COSE) may be left out.
The file is read again when it changes.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.identity import check_user_name
from gateway.port.oscore import ContextKeys
from store.base import logs
from store.base.process_errors import ConfigError
from store.base.watched_files import WatchedFiles

LOOK_INTERVAL_MS: Final = 1_000
CONTEXTS_COUNT_MAX: Final = 100_000
SECRET_BYTES_MIN: Final = 16
FILE_BYTES_MAX: Final = 64 << 20
NONCE_BYTES: Final = {10: 13, 11: 13, 12: 7, 13: 7, 30: 13, 31: 13, 32: 7, 33: 7, 1: 12, 2: 12, 3: 12, 24: 12}
"""The AEAD algorithms that a context may have, by their numbers in COSE, and the length of their nonces."""

Hex = Annotated[str, Meta(pattern="^([0-9a-fA-F]{2})*$", max_length=512)]

log = logs.get(__name__)


class FileContext(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One context of the file."""

    user: str
    client_id: Hex
    server_id: Hex
    secret: Hex
    salt: Hex = ""
    context: Hex | None = None
    algorithm: int = 10  # AES-CCM-16-64-128

    def __repr__(self) -> str:
        return f"FileContext(user={self.user!r}, client_id={self.client_id!r})"

    @property
    def kid(self) -> tuple[bytes, bytes | None]:
        """The kid and kid context that its messages carry."""
        return bytes.fromhex(self.client_id), None if self.context is None else bytes.fromhex(self.context)

    def keys(self) -> ContextKeys:
        """Returns the context's keys as the server uses them."""
        recipient_id, id_context = self.kid
        return ContextKeys(
            secret=bytes.fromhex(self.secret),
            salt=bytes.fromhex(self.salt),
            sender_id=bytes.fromhex(self.server_id),
            recipient_id=recipient_id,
            id_context=id_context,
            algorithm=self.algorithm,
        )

    def name(self) -> str:
        """Returns a name that no other keys have, and these always: its holder has used up its numbers."""
        keys = self.keys()
        parts = keys.secret, keys.salt, keys.sender_id, keys.recipient_id, keys.id_context, bytes((keys.algorithm,))
        return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()[:32]


class ContextsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file's content."""

    contexts: Annotated[tuple[FileContext, ...], Meta(max_length=CONTEXTS_COUNT_MAX)] = ()


def read_contexts(path: Path) -> Sequence[FileContext]:
    """Returns the contexts of a file. Raises `ConfigError`, which shows nothing of a secret, and OSError."""
    if path.stat().st_size > FILE_BYTES_MAX:
        raise ConfigError(f"auth.oscore_file: {path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        contexts = msgspec.json.decode(path.read_bytes(), type=ContextsFile).contexts
    except msgspec.DecodeError as error:
        raise ConfigError(f"auth.oscore_file: {path}: {error}") from None
    kids = set()
    for number, one in enumerate(contexts):
        try:
            check_context(one)
            if one.kid in kids:
                raise ValueError("client_id: another context has it, with the same context")
        except ValueError as error:
            raise ConfigError(f"auth.oscore_file: {path}: contexts[{number}].{error}") from None
        kids.add(one.kid)
    return contexts


def check_context(one: FileContext) -> None:
    """Raises ValueError, its text beginning with the field, for an invalid context (RFC 8613, 3.2 and 3.3)."""
    try:
        check_user_name(one.user)
    except ValueError as error:
        raise ValueError(f"user: {error}") from None
    nonce_bytes = NONCE_BYTES.get(one.algorithm)
    if nonce_bytes is None:
        raise ValueError(f"algorithm: must be one of {sorted(NONCE_BYTES)}, numbers of COSE")
    if len(one.secret) < 2 * SECRET_BYTES_MIN:
        raise ValueError(f"secret: must have at least {SECRET_BYTES_MIN} bytes")
    for field in ("client_id", "server_id"):
        if len(getattr(one, field)) > 2 * (nonce_bytes - 6):
            raise ValueError(f"{field}: must have at most {nonce_bytes - 6} bytes with this algorithm")
    if one.client_id.lower() == one.server_id.lower():
        raise ValueError("server_id: must not be the client's")
    if one.context is not None and len(one.context) > 2 * 255:
        raise ValueError("context: must have at most 255 bytes")


def write_contexts(path: Path, contexts: Sequence[FileContext]) -> None:
    """Puts contexts into a file, durably and in one step: one of the same owner and mode, else for its owner alone.

    Raises OSError with the file's name; the file is then as it was.
    """
    data = msgspec.json.format(msgspec.json.encode(ContextsFile(contexts=tuple(contexts))), indent=2) + b"\n"
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if path.exists():
                known = path.stat()
                if (known.st_uid, known.st_gid) != (os.geteuid(), os.fstat(fd).st_gid):
                    os.fchown(fd, known.st_uid, known.st_gid)
                os.fchmod(fd, stat.S_IMODE(known.st_mode))
            os.fsync(fd)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        error.filename = str(path)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Provisioned:
    """The contexts of the file that the configuration names, by kid and kid context."""

    def __init__(self, path: Path | None, *, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._by_kid: dict[tuple[bytes, bytes | None], FileContext] = {}
        self.reload(path)

    def reload(self, path: Path | None) -> None:
        """Reads this file from now on."""
        self._path = path
        self._file = WatchedFiles((path,), interval_ms=LOOK_INTERVAL_MS, unread=True)

    def find(self, kid: bytes, id_context: bytes | None) -> FileContext | None:
        """Returns the context of a client, as the file has it now."""
        if self._file.changed_by(self._now_ms()):
            self._read()
        return self._by_kid.get((kid, id_context))

    def _read(self) -> None:
        """Reads the file; with a mistake in it, its former contents stay in force."""
        try:
            contexts = () if self._path is None else read_contexts(self._path)
        except (FileNotFoundError, NotADirectoryError):
            contexts = ()
        except (ConfigError, OSError) as error:
            log.error("auth.oscore_file cannot be read; the contexts of before stay in force", error=str(error))
            self._file.read_again()
            return
        self._by_kid = {one.kid: one for one in contexts}
