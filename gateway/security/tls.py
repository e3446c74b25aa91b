"""TLS of the listeners: our certificate, and who vouches for those of clients.

Files that are renewed while we run are read again: our certificate and key, and the list of revoked certificates, which
has an expiry of its own, after which no client is admitted. The authorities for clients are read once.
"""

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.security.auth_settings import TlsConfig
from store.base import logs
from store.base.process_errors import ConfigError
from store.base.rhythm import pause
from store.base.watched_files import WatchedFiles

LOOK_INTERVAL_S = 5.0  # between two looks whether files have changed

log = logs.get(__name__)

_VERIFY = {"off": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class ServerTls:
    """The contexts of one gateway's TLS ports, which all have the same files."""

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._contexts: list[ssl.SSLContext] = []
        self._files = WatchedFiles((config.cert_file, config.key_file, config.client_crl_file))
        self._trouble = ""  # why they could not be read again, as it was logged

    def context(self, alpn: Sequence[str]) -> ssl.SSLContext:
        """Returns the context of a port. Raises `ConfigError`."""
        config = self._config
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if alpn:
            context.set_alpn_protocols(list(alpn))
        self._load_own(context)
        context.verify_mode = _VERIFY[config.client_certificates]
        if config.client_certificates != "off":
            assert config.client_ca_file is not None
            _load("tls.client_ca_file", context, config.client_ca_file)
            # A session that is resumed brings its client's certificate along unseen, though it be revoked meanwhile.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
            self._load_revoked(context)
        self._contexts.append(context)
        return context

    async def follow(self) -> None:
        """Looks at the files again and again."""
        while True:
            await pause(LOOK_INTERVAL_S)
            self.look()

    def look(self) -> None:
        """Reads changed files again. A file that cannot be read leaves the former one in force."""
        if not self._files.changed():
            return
        try:
            self._load_own(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # where half of a new pair does no harm
            for context in self._contexts:
                self._load_own(context)
                self._load_revoked(context)
        except ConfigError as error:
            self._files.read_again()  # they may be readable later, and the same
            if str(error) != self._trouble:
                log.warning("the new certificates cannot be used; the previous ones stay in force", error=str(error))
            self._trouble = str(error)
        else:
            self._trouble = ""
            log.info("certificates are reloaded")

    def _load_own(self, context: ssl.SSLContext) -> None:
        config = self._config
        assert config.cert_file is not None
        try:
            context.load_cert_chain(config.cert_file, config.key_file)
        except OSError as error:
            raise ConfigError(f"tls.cert_file: {config.cert_file} cannot be used: {why_no_pair(error)}") from error

    def _load_revoked(self, context: ssl.SSLContext) -> None:
        """Loads the revocation lists; of several lists of one CA, the newest counts."""
        file = self._config.client_crl_file
        if file is not None and context.verify_mode is not ssl.CERT_NONE:
            _load("tls.client_crl_file", context, file)
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def _load(key: str, context: ssl.SSLContext, file: Path) -> None:
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise ConfigError(f"{key}: {file} cannot be used: it is not PEM, or holds nothing of that kind") from error
    except OSError as error:
        raise ConfigError(f"{key}: {file} cannot be used: {error.strerror}") from error


def why_no_pair(error: Exception) -> str:
    """Returns why certificate and key cannot be used, in place of the words of OpenSSL's code."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return "tls.key_file is the key of another certificate"
    return "it is not PEM, or tls.key_file is not its key"


def peer_certificate(tls: ssl.SSLObject) -> Mapping[str, Any] | None:
    """Returns a peer's certificate as `getpeercert` gives it; None: it has none, or one that cannot be read."""
    try:
        return tls.getpeercert() or None
    except ValueError:  # a name that is not ASCII, say
        return None
