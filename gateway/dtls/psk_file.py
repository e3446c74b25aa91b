"""The file that `auth.psk_file` names: the pre-shared keys of clients (RFC 4279), in JSON.

    {"keys": [{"identity": "dev42", "key": "0102..."}, {"identity": "gw1", "key": "a0a1...", "user": "gateway"}]}

Keys are hexadecimal. A client without `user` is let in as its identity. The file is read again when it changes.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.identity import check_user_name
from store.base import logs
from store.base.process_errors import ConfigError
from store.base.watched_files import WatchedFiles

LOOK_INTERVAL_MS: Final = 1_000
KEYS_COUNT_MAX: Final = 100_000
KEY_BYTES_MIN: Final = 8
KEY_BYTES_MAX: Final = 256  # of OpenSSL, too
IDENTITY_BYTES_MAX: Final = 128  # RFC 4279, 5.3, and OpenSSL
FILE_BYTES_MAX: Final = 64 << 20

log = logs.get(__name__)


class FileKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key of the file."""

    identity: Annotated[str, Meta(min_length=1)]
    key: Annotated[str, Meta(pattern="^([0-9a-fA-F]{2})*$")]
    user: str = ""

    def __repr__(self) -> str:
        return f"FileKey(identity={self.identity!r})"


class _KeysFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    keys: Annotated[tuple[FileKey, ...], Meta(max_length=KEYS_COUNT_MAX)] = ()


class PreSharedKey(msgspec.Struct, frozen=True):
    """A key, and the user that its holder is let in as."""

    key: bytes
    user: str

    def __repr__(self) -> str:
        return f"PreSharedKey(user={self.user!r})"


def read_keys(path: Path) -> Mapping[bytes, PreSharedKey]:
    """Returns the keys of a file by identity. Raises `ConfigError`, which shows nothing of a key, and OSError."""
    if path.stat().st_size > FILE_BYTES_MAX:
        raise ConfigError(f"auth.psk_file: {path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        keys = msgspec.json.decode(path.read_bytes(), type=_KeysFile).keys
    except msgspec.DecodeError as error:
        raise ConfigError(f"auth.psk_file: {path}: {error}") from None
    found: dict[bytes, PreSharedKey] = {}
    for number, one in enumerate(keys):
        identity, key = one.identity.encode(), bytes.fromhex(one.key)
        where = f"auth.psk_file: {path}: keys[{number}]"
        if len(identity) > IDENTITY_BYTES_MAX or b"\0" in identity:
            raise ConfigError(f"{where}.identity: must have at most {IDENTITY_BYTES_MAX} bytes, none of them zero")
        if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
            raise ConfigError(f"{where}.key: must have {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes")
        if identity in found:
            raise ConfigError(f"{where}.identity: another key has it")
        try:
            check_user_name(one.user or one.identity)
        except ValueError as error:
            raise ConfigError(f"{where}.user: {error}") from None
        found[identity] = PreSharedKey(key, one.user or one.identity)
    return found


class PreSharedKeys:
    """The keys of the file that the configuration names."""

    def __init__(self, path: Path | None, *, now_ms: Callable[[], int]) -> None:
        self._path = path
        self._now_ms = now_ms
        self._file = WatchedFiles((path,), interval_ms=LOOK_INTERVAL_MS, unread=True)
        self._keys: Mapping[bytes, PreSharedKey] = {}

    def find(self, identity: bytes) -> PreSharedKey | None:
        """Returns the key of an identity, as the file has it now."""
        if self._file.changed_by(self._now_ms()):
            self._read()
        return self._keys.get(identity)

    def _read(self) -> None:
        """Reads the file; with a mistake in it, its former contents stay in force."""
        try:
            self._keys = {} if self._path is None else read_keys(self._path)
        except (FileNotFoundError, NotADirectoryError):
            self._keys = {}
        except (ConfigError, OSError) as error:
            log.error("auth.psk_file cannot be read; the keys of before stay in force", error=str(error))
            self._file.read_again()
