"""Mistakes that no single key of `[auth]` and `[tls]` shows: unreadable files, and keys that contradict each other."""

import os
from collections.abc import Iterator
from pathlib import Path

from gateway.domain.identity import check_user_name
from gateway.security.auth_settings import NAME_CHARS_MAX, AuthConfig, JwtConfig, TlsConfig
from gateway.security.passwords import check_hash
from store.base.process_errors import ConfigError


def auth_mistakes(auth: AuthConfig, tls: TlsConfig) -> Iterator[tuple[str, str]]:
    """Yields the mistakes that no single key of the two sections shows: the key, and a remedy."""
    yield from _tls_mistakes(tls)
    # Users may prove otherwise who they are.
    otherwise = auth.jwt.enabled or tls.client_certificates != "off"
    otherwise = otherwise or auth.oscore_file is not None or auth.psk_file is not None
    for name, user in auth.users.items():
        try:
            check_user_name(name)
        except ValueError as error:
            yield "auth.users", f"{name[:NAME_CHARS_MAX]!r} {error}"
            continue
        if user.password is None and user.password_hash is None and not otherwise:
            yield (
                f"auth.users.{name}.password_file",
                "is missing; write the path of a password's file, or password_hash",
            )
        if user.password is not None and user.password_hash is not None:
            yield f"auth.users.{name}", "has a password and a hash of one; write password_file or password_hash"
        if user.password_hash is not None:
            try:
                check_hash(user.password_hash.reveal())
            except ValueError as error:
                yield f"auth.users.{name}.password_hash", f"{error}; write the output of `headgate hash-password`"
    yield from _key_mistakes(auth.jwt)


def _key_mistakes(jwt: JwtConfig) -> Iterator[tuple[str, str]]:
    """Yields keys that cannot be read, or are none."""
    files = {f"auth.jwt.keys[{i}].file": key.file for i, key in enumerate(jwt.keys)}
    unreadable = [mistake for key, file in files.items() for mistake in _unreadable(key, file, "a key")]
    if jwt.jwks_file is not None:
        unreadable += _unreadable("auth.jwt.jwks_file", jwt.jwks_file, "a JSON Web Key Set")
    yield from unreadable
    if jwt.enabled and not unreadable:
        from gateway.security.tokens import Tokens  # noqa: PLC0415 - 10 MB, which only those need that take tokens

        try:
            Tokens(jwt)
        except ConfigError as error:
            key, _, mistake = str(error).partition(": ")
            yield key, mistake


def _tls_mistakes(tls: TlsConfig) -> Iterator[tuple[str, str]]:
    if (tls.cert_file is None) != (tls.key_file is None):
        missing = "key_file" if tls.key_file is None else "cert_file"
        yield f"tls.{missing}", "is missing; cert_file and key_file are written together or not at all"
    if tls.client_certificates != "off":
        if tls.cert_file is None:
            yield "tls.client_certificates", "is for TLS ports, and there are none; write cert_file and key_file too"
        if tls.client_ca_file is None:
            yield "tls.client_ca_file", "is missing; write the PEM file of who vouches for clients"
    for key in ("cert_file", "key_file", "client_ca_file", "client_crl_file"):
        file: Path | None = getattr(tls, key)
        if file is not None:
            yield from _unreadable(f"tls.{key}", file, "a PEM file")


def _unreadable(key: str, file: Path, what: str) -> Iterator[tuple[str, str]]:
    if not os.access(file, os.R_OK):
        yield key, f"{file} cannot be read; write the path of {what}"
