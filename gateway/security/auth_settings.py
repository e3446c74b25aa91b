"""The settings of authentication: `[auth]`, and `[tls]`, where clients may have certificates."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from gateway.base.config_reader import Hash, Secret

NAME_CHARS_MAX = 64  # shown of a name that is too long

Whence: TypeAlias = Literal["loopback", "everyone", "nobody"]

# Algorithms that may sign a token (RFC 7518, 3.1; RFC 8037). "none" is not among them, and never will be.
Algorithm: TypeAlias = Literal["ES256", "ES384", "ES512", "EdDSA", "RS256", "RS384", "RS512", "PS256", "HS256"]


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[tls]`: the certificate of every TLS port; none of them opens without one. And those of clients."""

    cert_file: Annotated[Path | None, Meta(description="PEM: the certificate and those that vouch for it")] = None
    key_file: Annotated[Path | None, Meta(description="PEM: its private key")] = None
    client_certificates: Annotated[
        Literal["off", "optional", "required"], Meta(description="whether clients show certificates on TLS ports")
    ] = "off"
    client_ca_file: Annotated[Path | None, Meta(description="PEM: the authorities that vouch for clients")] = None
    client_crl_file: Annotated[
        Path | None, Meta(description="PEM: revoked certificates, a list of each CA; read again when it changes")
    ] = None
    client_identity: Annotated[
        Literal["cn", "dns", "uri", "email"],
        Meta(description="the name of a client: its subject's common name, or its one alternative name of a kind"),
    ] = "cn"
    client_user_agrees: Annotated[
        bool, Meta(description="whether a user name, where a client gives one, has to be its certificate's")
    ] = True

    @property
    def enabled(self) -> bool:
        """Returns whether there is a certificate."""
        return self.cert_file is not None


class UserConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[auth.users.NAME]`: a user who may connect, with a password, a certificate or a token in this name."""

    password: Annotated[Secret | None, Meta(description="named by password_file")] = None
    password_hash: Annotated[Hash | None, Meta(description="in its place, its hash by `headgate hash-password`")] = None
    trusted_gateway: Annotated[bool, Meta(description="may speak for other devices")] = False


class JwtKey(msgspec.Struct, frozen=True, kw_only=True):
    """`[[auth.jwt.keys]]`: a key that tokens are signed with, for one algorithm."""

    file: Annotated[Path, Meta(description="PEM: a public key; for HS256 a secret, as it is")]
    algorithm: Annotated[Algorithm, Meta(description="the only one that it is used for")]
    id: Annotated[str, Meta(description='the "kid" of its tokens; empty: any')] = ""


class JwtConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[auth.jwt]`: tokens that admit the user they name, in a password's place or as `Bearer` (RFC 7519)."""

    jwks_file: Annotated[Path | None, Meta(description="a JSON Web Key Set; read again when it changes")] = None
    algorithms: Annotated[
        tuple[Algorithm, ...], Meta(description="algorithms of the keys in jwks_file; other keys are left out")
    ] = ("ES256", "EdDSA", "RS256")
    keys: Annotated[tuple[JwtKey, ...], Meta(description="keys in files of their own: [[auth.jwt.keys]]")] = ()
    issuer: Annotated[tuple[str, ...], Meta(description='"iss" has to be among these; none: any')] = ()
    audience: Annotated[
        tuple[str, ...], Meta(description='"aud" has to have one of these; none: a token with "aud" is refused')
    ] = ()
    leeway_s: Annotated[int, Meta(ge=0, le=600, description="seconds by which clocks may differ")] = 10
    username_claim: Annotated[str, Meta(min_length=1, description="the claim that names who it is")] = "sub"
    device_claim: Annotated[str, Meta(description="the claim that names the device; empty: the user name does")] = ""
    username_agrees: Annotated[
        bool, Meta(description="whether a user name that is given with a token has to be the token's")
    ] = False

    @property
    def enabled(self) -> bool:
        """Returns whether there is a key."""
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
    oscore_file: Annotated[
        Path | None, Meta(description="JSON: OSCORE's security contexts of CoAP clients; read again when it changes")
    ] = None
    psk_file: Annotated[
        Path | None, Meta(description="JSON: pre-shared keys of DTLS clients; read again when it changes")
    ] = None
    users: Mapping[str, UserConfig] = msgspec.field(default_factory=dict)
    jwt: JwtConfig = JwtConfig()
