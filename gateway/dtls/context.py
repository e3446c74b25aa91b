"""OpenSSL's side of DTLS 1.2: the versions, ciphers, certificates and pre-shared keys of a listener.

pyOpenSSL has no call for pre-shared keys of a server. OpenSSL's own, which cryptography's bindings have, is used for
that alone (docs/decisions/0054).
"""

import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

from cryptography import x509
from cryptography.x509.oid import ExtensionOID, NameOID
from OpenSSL import SSL
from OpenSSL._util import ffi, lib

from gateway.dtls.psk_file import KEY_BYTES_MAX, PreSharedKey
from gateway.security.auth_settings import TlsConfig
from gateway.security.tls import why_no_pair
from store.base.process_errors import ConfigError

COOKIE_KEY_BYTES: Final = 32
COOKIE_BYTES: Final = 32
UNKNOWN_KEY_BYTES: Final = 32
DATAGRAM_BYTES: Final = 1_232  # of a handshake's: fits the smallest MTU of IPv6
# Forward secrecy and AEAD, and those that RFC 7252, 9.1.3 makes mandatory for constrained devices.
PSK_CIPHERS: Final = (
    "ECDHE-PSK-CHACHA20-POLY1305:DHE-PSK-AES128-GCM-SHA256:PSK-AES128-GCM-SHA256:PSK-AES128-CCM8:PSK-AES128-CCM"
)
CERTIFICATE_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE-ECDSA-AES128-CCM8:ECDHE-ECDSA-AES128-CCM"


class DtlsContext:
    """One context for all sessions of a socket. `peer` is whose datagram OpenSSL is looking at."""

    def __init__(self, tls: TlsConfig, find_key: Callable[[bytes], PreSharedKey | None] | None) -> None:
        """Reads the files. Without `find_key` there are no pre-shared keys. Raises `ConfigError`."""
        self._cookie_key = secrets.token_bytes(COOKIE_KEY_BYTES)
        self.peer: Any = None
        self.identified: tuple[bytes, PreSharedKey] | None = None  # the key that the last handshake has asked for
        self.unknown: bytes | None = None  # the identity that it has named, where there is no key of it
        context = self._context = SSL.Context(SSL.DTLS_SERVER_METHOD)
        context.set_options(
            (SSL.OP_COOKIE_EXCHANGE or 0) | SSL.OP_NO_QUERY_MTU | SSL.OP_NO_TICKET | (SSL.OP_NO_RENEGOTIATION or 0)
        )
        context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
        context.set_cookie_generate_callback(lambda _: self._cookie())
        context.set_cookie_verify_callback(lambda _, cookie: hmac.compare_digest(cookie, self._cookie()))
        ciphers = [CERTIFICATE_CIPHERS] if tls.enabled else []
        if find_key is not None:
            ciphers.append(PSK_CIPHERS)
            self._take_keys(context, find_key)
        context.set_cipher_list(f"{':'.join(ciphers)}:@SECLEVEL=1".encode())
        if tls.enabled:
            _use_certificates(context, tls)

    def connection(self) -> SSL.Connection:
        """Returns a session that has heard nothing yet."""
        connection = SSL.Connection(self._context, None)
        connection.set_accept_state()
        connection.set_ciphertext_mtu(DATAGRAM_BYTES)
        return connection

    def _cookie(self) -> bytes:
        """Returns the cookie that proves that a peer receives datagrams at its address (RFC 6347, 4.2.1)."""
        return hmac.digest(self._cookie_key, repr(self.peer).encode(), "sha256")[:COOKIE_BYTES]

    def _take_keys(self, context: SSL.Context, find_key: Callable[[bytes], PreSharedKey | None]) -> None:
        """Sets the lookup of keys. An unknown identity gets a random key, so that it looks like a wrong key."""

        def find(_: Any, identity: Any, psk: Any, room: int) -> int:
            name: bytes = ffi.string(identity)
            found = find_key(name)
            key = secrets.token_bytes(UNKNOWN_KEY_BYTES) if found is None else found.key
            self.identified, self.unknown = (None, name) if found is None else ((name, found), None)
            if len(key) > min(room, KEY_BYTES_MAX):
                return 0
            ffi.memmove(psk, key, len(key))
            return len(key)

        self._callback = ffi.callback(
            "unsigned int(SSL *, const char *, unsigned char *, unsigned int)", find, error=0
        )  # kept as long as the context
        lib.SSL_CTX_set_psk_server_callback(context._context, self._callback)  # noqa: SLF001 - see above


def _use_certificates(context: SSL.Context, tls: TlsConfig) -> None:
    """Loads the certificates of `[tls]` into a context. Raises `ConfigError`."""
    try:
        context.use_certificate_chain_file(str(tls.cert_file))
        context.use_privatekey_file(str(tls.key_file or tls.cert_file))
        context.check_privatekey()
    except SSL.Error as error:
        raise ConfigError(f"tls.cert_file: {tls.cert_file} cannot be used for DTLS: {why_no_pair(error)}") from error
    if tls.client_certificates == "off":
        return
    mode = SSL.VERIFY_PEER
    if tls.client_certificates == "required":
        mode |= SSL.VERIFY_FAIL_IF_NO_PEER_CERT
    context.set_verify(mode, None)
    try:
        context.load_verify_locations(str(tls.client_ca_file))
        if tls.client_crl_file is not None:
            store = context.get_cert_store()
            assert store is not None
            store.load_locations(str(tls.client_crl_file))
            store.set_flags(_CRL_CHECK)
    except SSL.Error as error:
        why = "it, or tls.client_crl_file, is not PEM, or holds nothing of that kind"
        raise ConfigError(f"tls.client_ca_file: {tls.client_ca_file} cannot be used for DTLS: {why}") from error


_CRL_CHECK: Final = 0x4  # X509_V_FLAG_CRL_CHECK: of the client's own certificate


def why_failed(error: SSL.Error) -> str:
    """Returns the reasons of an error, in OpenSSL's words."""
    reasons = [str(one[-1]) for one in error.args[0]] if error.args and isinstance(error.args[0], list) else []
    return ", ".join(reasons) or "the peer has ended it"


def described(certificate: x509.Certificate) -> Mapping[str, Any]:
    """Returns the names of a certificate as `ssl.SSLObject.getpeercert` gives them."""
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    names: list[tuple[str, str]] = []
    try:
        extension = certificate.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    except x509.ExtensionNotFound:
        extension = None
    if isinstance(extension, x509.SubjectAlternativeName):
        names += [("DNS", value) for value in extension.get_values_for_type(x509.DNSName)]
        names += [("URI", value) for value in extension.get_values_for_type(x509.UniformResourceIdentifier)]
        names += [("email", value) for value in extension.get_values_for_type(x509.RFC822Name)]
    subject = tuple([(("commonName", str(one.value)),) for one in common])
    return {"subject": subject, "subjectAltName": tuple(names)}
