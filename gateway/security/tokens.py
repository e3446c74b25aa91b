"""Tokens: signed with a key that we have, they name their bearer and their end (RFC 7519, RFC 8725).

A key is good for one algorithm, which is said where the key is and never taken from a token. Keys in files are read
again when the files change; until a changed file can be read, its former keys stay in force.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm

from gateway.domain.errors import Cause, Refusal
from gateway.domain.identity import Claim, is_name
from gateway.security.auth_settings import JwtConfig, JwtKey
from store.base import logs
from store.base.process_errors import ConfigError
from store.base.watched_files import WatchedFiles

TOKEN_BYTES_MAX = 8 * 1024
KEYS_FILE_BYTES_MAX = 1024 * 1024
KEYS_COUNT_MAX = 256
TRIES_COUNT_MAX = 8  # of keys for one token, where it does not say by which it is signed
LOOK_INTERVAL_MS = 2_000  # between two looks whether files have changed
_TIME_MAX = 1 << 40  # s since 1970; later values are refused

# The checks of PyJWT; this module checks times, by the clock that is passed in.
_OPTIONS: Any = {
    "require": ["exp"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "enforce_minimum_key_length": True,
}

log = logs.get(__name__)


class _Key(NamedTuple):
    """A key, and its purpose."""

    id: str  # "": of tokens with any "kid"
    algorithm: str
    key: Any


class Tokens:
    """Verifies tokens as `[auth.jwt]` says. Raises `ConfigError` where there are no keys to do it with."""

    def __init__(self, config: JwtConfig) -> None:
        self._config = config
        files = (config.jwks_file, *(key.file for key in config.keys))
        self._files = WatchedFiles(files, interval_ms=LOOK_INTERVAL_MS)
        self._trouble = ""  # why they could not be read again, as it was logged
        self._keys = tuple(self._load())

    def verify(self, token: bytes, *, now_ms: int) -> Claim:
        """Returns the claim in a token. Raises `Refusal` (UNAUTHENTICATED), with the reason in general words."""
        if self._files.changed_by(now_ms):
            self._reload()
        if len(token) > TOKEN_BYTES_MAX:
            raise _refused("is too long")
        return self._claim(self._payload(token), now_ms / 1000)

    def _payload(self, token: bytes) -> dict[str, Any]:
        """Returns the claims of a token that one of our keys has signed."""
        config = self._config
        try:
            header = jwt.get_unverified_header(token)
            for key in self._candidates(header):
                try:
                    return jwt.decode(
                        token,
                        key.key,
                        algorithms=[key.algorithm],
                        options=_OPTIONS,
                        issuer=config.issuer or None,
                        audience=config.audience or None,
                    )
                except jwt.InvalidSignatureError:
                    continue
        except jwt.InvalidAudienceError:
            raise _refused("is for another audience") from None
        except jwt.InvalidIssuerError:
            raise _refused("is of an unknown issuer") from None
        except jwt.MissingRequiredClaimError as error:
            raise _refused(f"does not say {error.claim!r}") from None
        except (jwt.PyJWTError, ValueError, TypeError, KeyError, RecursionError):
            raise _refused("is none, or not one that is good here") from None
        raise _refused("is signed with a key that is not known here")

    def _candidates(self, header: dict[str, Any]) -> Sequence[_Key]:
        """Returns the keys that may have signed a token with this header."""
        algorithm, kid = header.get("alg"), header.get("kid")
        keys = [key for key in self._keys if key.algorithm == algorithm and (not kid or key.id in {"", kid})]
        return keys[:TRIES_COUNT_MAX]

    def _claim(self, payload: dict[str, Any], now_s: float) -> Claim:
        config = self._config
        begins_s, expires_s = _time(payload.get("nbf", 0)), _time(payload["exp"])
        if begins_s is None or expires_s is None:
            raise _refused("has times that are none")
        if now_s + config.leeway_s < begins_s:
            raise _refused("is not good yet")
        ends_s = expires_s + config.leeway_s
        if ends_s <= now_s:
            raise _refused("has expired")
        name = payload.get(config.username_claim)
        device = payload.get(config.device_claim) if config.device_claim else name
        if not is_name(name) or not is_name(device):
            raise _refused("does not name its bearer")
        assert isinstance(name, str)
        assert isinstance(device, str)
        return Claim(name, device, int(ends_s * 1000))

    # ---- keys

    def _reload(self) -> None:
        try:
            self._keys = tuple(self._load())
        except ConfigError as error:
            self._files.read_again()  # it may be readable later, and the same
            if str(error) != self._trouble:
                log.warning(
                    "the new keys for tokens (auth.jwt) cannot be used; the previous ones stay in force",
                    error=str(error),
                )
            self._trouble = str(error)
        else:
            self._trouble = ""
            log.info("keys for tokens (auth.jwt) are loaded", keys=len(self._keys))

    def _load(self) -> Iterator[_Key]:
        config = self._config
        count = 0
        if config.jwks_file is not None:
            for key in _read_set(config.jwks_file, frozenset(config.algorithms)):
                count += 1
                yield key
        for i, one in enumerate(config.keys):
            count += 1
            yield _read_key(one, f"auth.jwt.keys[{i}].file")
        if count > KEYS_COUNT_MAX:
            raise ConfigError(f"auth.jwt: has {count} keys; at most {KEYS_COUNT_MAX} are possible")


def _read(file: Path, where: str) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(KEYS_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{where}: {file} cannot be read ({error.strerror}); write the path of its file") from error
    if not data.strip() or len(data) > KEYS_FILE_BYTES_MAX:
        raise ConfigError(f"{where}: {file} is empty or larger than {KEYS_FILE_BYTES_MAX} bytes")
    return data


def _read_set(file: Path, algorithms: frozenset[str]) -> Iterator[_Key]:
    """Yields the keys of a JSON Web Key Set that are for signatures, and for algorithms that are allowed (RFC 7517)."""
    where = "auth.jwt.jwks_file"
    try:
        found = json.loads(_read(file, where))
        entries = found["keys"]
        if not isinstance(entries, list):
            raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f'{where}: {file} is no JSON Web Key Set, an object with "keys"') from error
    usable = 0
    for entry in entries:
        key = _of_set(entry, algorithms)
        if key is not None:
            usable += 1
            yield key
    if not usable:
        raise ConfigError(f"{where}: {file} has no key for signatures by {', '.join(sorted(algorithms))}")


def _of_set(entry: Any, algorithms: frozenset[str]) -> _Key | None:
    """Returns a key of a set, None for one that is not for us."""
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    operations = entry.get("key_ops")
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return None
    try:
        key = jwt.PyJWK(entry)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, UnsupportedAlgorithm):
        return None
    id_ = entry.get("kid", "")
    if key.algorithm_name not in algorithms or not isinstance(id_, str) or _too_short(key.algorithm_name, key.key):
        return None
    return _Key(id_, key.algorithm_name, key)


def _read_key(said: JwtKey, where: str) -> _Key:
    data = _read(said.file, where)
    if said.algorithm.startswith("HS"):
        data = data.rstrip(b"\r\n")
    algorithm = jwt.get_algorithm_by_name(said.algorithm)
    try:
        key = algorithm.prepare_key(data)
    except (jwt.PyJWTError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{where}: {said.file} has no key for {said.algorithm} in PEM") from error
    if hasattr(key, "private_bytes"):
        raise ConfigError(f"{where}: {said.file} is a private key; write the public one's file")
    if (short := algorithm.check_key_length(key)) is not None:
        raise ConfigError(f"{where}: {said.file}: {short}")
    return _Key(said.id, said.algorithm, key)


def _too_short(name: str, key: Any) -> bool:
    return jwt.get_algorithm_by_name(name).check_key_length(key) is not None


def _time(value: Any) -> float | None:
    """Returns a NumericDate (RFC 7519, 2), None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _TIME_MAX:
        return None
    return float(value)


def _refused(why: str) -> Refusal:
    return Refusal(Cause.UNAUTHENTICATED, f"the token {why}")
