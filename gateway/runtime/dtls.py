"""The adapter of a listener with DTLS: its sessions, and the principals behind them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gateway.domain.identity import identity_of
from gateway.domain.principal import Principal
from gateway.dtls.psk_file import PreSharedKeys
from gateway.port.adapter import Peer
from gateway.port.datagram import DatagramAdapter, SecuredDatagramFactory
from gateway.runtime.endpoint import Hub, ListenerContext
from gateway.security.auth_settings import AuthConfig, TlsConfig
from gateway.security.failed_handshakes import FailedHandshakes
from store.base import logs
from store.base.clock import now_ms
from store.base.process_errors import ConfigError
from store.base.watched_files import WatchedFiles

if TYPE_CHECKING:
    from gateway.dtls.context import DtlsContext
    from gateway.dtls.sessions import Identified

LOOK_INTERVAL_MS = 5_000  # between two looks whether files of certificates have changed

log = logs.get(__name__)


def vouched_principal(hub: Hub, name: str, *, protocol: str) -> Principal:
    """Returns the principal of a user whose key was verified below the adapter, or by it."""
    principal = hub.authenticator.vouched(name)
    return msgspec.structs.replace(
        principal,
        secret=hub.timer_secrets.of(name),
        permissions=hub.access.permissions(principal, protocol=protocol),
    )


def check_dtls(listener: str, auth: AuthConfig, tls: TlsConfig) -> None:
    """Raises `ConfigError` where a listener with DTLS cannot be: for want of keys, certificates or OpenSSL."""
    if not tls.enabled and auth.psk_file is None:
        raise ConfigError(f"listeners.{listener}: DTLS needs tls.cert_file or auth.psk_file; write one of them")
    try:
        from gateway.dtls.context import DtlsContext  # noqa: PLC0415 - OpenSSL's bindings, which few need
    except ImportError as error:
        raise ConfigError(f"listeners.{listener}: DTLS needs pyOpenSSL ({error}); install the extra `dtls`") from error
    DtlsContext(tls, None if auth.psk_file is None else lambda _: None)


def dtls_adapter(hub: Hub, listener: ListenerContext, auth: AuthConfig, tls: TlsConfig) -> DatagramAdapter:
    """Returns the adapter of a listener with DTLS. Raises `ConfigError`."""
    check_dtls(listener.name, auth, tls)
    from gateway.dtls.adapter import DtlsAdapter  # noqa: PLC0415 - OpenSSL's bindings, which few need
    from gateway.dtls.sessions import DtlsSessions  # noqa: PLC0415

    factory = listener.factory
    if not isinstance(factory, SecuredDatagramFactory):
        raise ConfigError(f"listeners.{listener.name}: {listener.protocol} does not go over DTLS; disable it")
    inner = factory.bind_secured(listener.options, random=hub.random)

    def joined(peer: Peer, identified: "Identified") -> bool:
        name = identified.user or identity_of(identified.certificate, tls.client_identity)
        inner.joined(peer, None if name is None else vouched_principal(hub, name, protocol=listener.protocol))
        return name is not None

    keys = None if auth.psk_file is None else PreSharedKeys(auth.psk_file, now_ms=now_ms)
    failures = FailedHandshakes(listener.name, listener.protocol, hub.metrics.errors(listener.protocol, "handshake"))
    sessions = DtlsSessions(
        _following(tls, keys),
        joined=joined,
        left=inner.left,
        failed=lambda peer, reason: failures.note(str(peer[0]), reason),
        find_key=None if keys is None else keys.find,
    )
    return DtlsAdapter(inner, sessions)


def _following(tls: TlsConfig, keys: PreSharedKeys | None) -> "Callable[[], DtlsContext]":
    """Returns the source of contexts, which makes another one when a file of certificates has changed."""
    from gateway.dtls.context import DtlsContext  # noqa: PLC0415

    find = None if keys is None else keys.find
    paths = (tls.cert_file, tls.key_file, tls.client_ca_file, tls.client_crl_file)
    files = WatchedFiles(paths, interval_ms=LOOK_INTERVAL_MS)
    context, trouble = DtlsContext(tls, find), ""

    def current() -> DtlsContext:
        nonlocal context, trouble
        if files.changed_by(now_ms()):
            try:
                context, trouble = DtlsContext(tls, find), ""
            except ConfigError as error:
                files.read_again()  # they may be readable later, and the same
                if str(error) != trouble:
                    log.warning(
                        "the new certificates cannot be used; the previous ones stay in force", error=str(error)
                    )
                trouble = str(error)
        return context

    return current
