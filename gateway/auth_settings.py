"""What an operator says of who may connect: `[auth]`, and `[tls]`, where clients may have certificates."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from gateway.config_reader import Hash, Secret
from gateway.errors import ConfigError
from gateway.identity import check_user_name
from gateway.passwords import check_hash

__all__ = ["Algorithm", "AuthConfig", "JwtConfig", "JwtKey", "TlsConfig", "UserConfig", "auth_mistakes"]

NAME_CHARS_MAX = 64  # shown of a name that is too long

Whence: TypeAlias = Literal["loopback", "everyone", "nobody"]

# What a token may be signed with (RFC 7518, 3.1; RFC 8037). "none" is not among them, and never will be.
Algorithm: TypeAlias = Literal["ES256", "ES384", "ES512", "EdDSA", "RS256", "RS384", "RS512", "PS256", "HS256"]


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[tls]`: the certificate of every TLS port; none of them opens without one. And those of clients."""

    cert_file: Annotated[Path | None, Meta(description="PEM: the certificate and those that vouch for it")] = None
    key_file: Annotated[Path | None, Meta(description="PEM: its private key")] = None
    client_certificates: Annotated[
        Literal["off", "optional", "required"], Meta(description="whether clients show certificates on TLS ports")
    ] = "off"
    client_ca_file: Annotated[Path | None, Meta(description="PEM: who vouches for clients; nobody else does")] = None
    client_crl_file: Annotated[
        Path | None, Meta(description="PEM: revoked certificates, a list of each CA; read again when it changes")
    ] = None
    client_identity: Annotated[
        Literal["cn", "dns", "uri", "email"],
        Meta(description="what names a client: its subject's common name, or its one alternative name of a kind"),
    ] = "cn"
    client_user_agrees: Annotated[
        bool, Meta(description="whether a user name, where a client gives one, has to be its certificate's")
    ] = True

    @property
    def enabled(self) -> bool:
        """Whether there is a certificate."""
        return self.cert_file is not None


class UserConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[auth.users.NAME]`: somebody who may connect, with a password, a certificate or a token in this name."""

    password: Annotated[Secret | None, Meta(description="named by password_file")] = None
    password_hash: Annotated[
        Hash | None, Meta(description="in its place, what `headgate hash-password` makes of it")
    ] = None
    trusted_gateway: Annotated[bool, Meta(description="may speak for other devices")] = False


class JwtKey(msgspec.Struct, frozen=True, kw_only=True):
    """`[[auth.jwt.keys]]`: a key that tokens are signed with, for one algorithm."""

    file: Annotated[Path, Meta(description="PEM: a public key; for HS256 a secret, as it is")]
    algorithm: Annotated[Algorithm, Meta(description="the only one that it is used for")]
    id: Annotated[str, Meta(description='the "kid" of its tokens; empty: any')] = ""


class JwtConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[auth.jwt]`: tokens that admit whom they name, in a password's place or as `Bearer` (RFC 7519)."""

    jwks_file: Annotated[Path | None, Meta(description="a JSON Web Key Set; read again when it changes")] = None
    algorithms: Annotated[
        tuple[Algorithm, ...], Meta(description="what keys of jwks_file are used for; others of it are left out")
    ] = ("ES256", "EdDSA", "RS256")
    keys: Annotated[tuple[JwtKey, ...], Meta(description="keys in files of their own: [[auth.jwt.keys]]")] = ()
    issuer: Annotated[tuple[str, ...], Meta(description='"iss" has to be one of these; none: any')] = ()
    audience: Annotated[
        tuple[str, ...], Meta(description='"aud" has to have one of these; none: a token for somebody is refused')
    ] = ()
    leeway_s: Annotated[int, Meta(ge=0, le=600, description="seconds by which clocks may differ")] = 10
    username_claim: Annotated[str, Meta(min_length=1, description="the claim that names who it is")] = "sub"
    device_claim: Annotated[str, Meta(description="the claim that names the device; empty: the user name does")] = ""
    username_agrees: Annotated[
        bool, Meta(description="whether a user name that is given with a token has to be the token's")
    ] = False

    @property
    def enabled(self) -> bool:
        """Whether there is a key."""
        return self.jwks_file is not None or bool(self.keys)


class AuthConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[auth]`: who may connect."""

    anonymous: Annotated[Whence, Meta(description="from where clients without a name are let in")] = "loopback"
    guest: Annotated[Whence, Meta(description="from where guest/guest is let in, as AMQP expects")] = "loopback"
    failures_max: Annotated[
        int, Meta(ge=0, description="wrong credentials of an address in a minute; it waits for the next then; 0: any")
    ] = 0
    sessions_bound: Annotated[
        bool, Meta(description="whether an MQTT session may be taken up by no other user than who began it")
    ] = True
    users: Mapping[str, UserConfig] = msgspec.field(default_factory=dict)
    jwt: JwtConfig = JwtConfig()


def auth_mistakes(auth: AuthConfig, tls: TlsConfig) -> Iterator[tuple[str, str]]:
    """What no single key of the two sections shows: the key, and what to write."""
    yield from _tls_mistakes(tls)
    otherwise = auth.jwt.enabled or tls.client_certificates != "off"  # users may prove otherwise who they are
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
                yield f"auth.users.{name}.password_hash", f"{error}; write what `headgate hash-password` prints"
    yield from _key_mistakes(auth.jwt)


def _key_mistakes(jwt: JwtConfig) -> Iterator[tuple[str, str]]:
    """Keys that cannot be read, or are none."""
    files = {f"auth.jwt.keys[{i}].file": key.file for i, key in enumerate(jwt.keys)}
    unreadable = [mistake for key, file in files.items() for mistake in _unreadable(key, file, "a key")]
    if jwt.jwks_file is not None:
        unreadable += _unreadable("auth.jwt.jwks_file", jwt.jwks_file, "a JSON Web Key Set")
    yield from unreadable
    if jwt.enabled and not unreadable:
        from gateway.tokens import Tokens  # noqa: PLC0415 - 10 MB, which only those need that take tokens

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
