"""TLS handshakes in memory: who is let in, as whom, and what becomes of it when files change."""

import ssl

import pytest
from cryptography import x509

from gateway.domain.identity import identity_of
from gateway.security.auth_settings import TlsConfig
from gateway.security.tls import ServerTls, peer_certificate
from store.base.process_errors import ConfigError
from tests.support.process.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def own(authority):
    return authority.issue("gateway", x509.DNSName("localhost"), server=True)


@pytest.fixture
def tls(authority, own):
    def made(certificates="optional", **said):
        config = TlsConfig(
            cert_file=own.cert_file,
            key_file=own.key_file,
            client_certificates=certificates,
            client_ca_file=authority.file if certificates != "off" else None,
            **said,
        )
        return ServerTls(config)

    return made


def handshake(context, authority, client=None):
    """Returns what the server sees of the client's certificate. Raises `ssl.SSLError` where it is not let in."""
    trust = ssl.create_default_context(cafile=authority.file)
    if client is not None:
        trust.load_cert_chain(client.cert_file, client.key_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    peer = trust.wrap_bio(to_client, to_server, server_hostname="localhost")
    done = 0
    for _ in range(6):
        for side in (peer, server):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                continue
        if done >= 4:  # both, twice: what TLS 1.3 sends behind it included
            break
    return server.getpeercert()


def test_clients_are_not_asked_for_certificates_unless_it_is_said(tls, authority):
    context = tls("off").context(["h2"])
    assert not handshake(context, authority, authority.issue("device-7"))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_certificate_names_its_client(tls, authority):
    context = tls().context([])
    uri = x509.UniformResourceIdentifier("spiffe://plant/7")
    certificate = handshake(context, authority, authority.issue("device-7", x509.DNSName("seven"), uri))
    found = [identity_of(certificate, kind) for kind in ("cn", "dns", "uri", "email")]
    assert found == ["device-7", "seven", "spiffe://plant/7", None]
    assert identity_of(handshake(context, authority), "cn") is None


def test_a_certificate_may_be_required(tls, authority):
    context = tls("required").context([])
    assert identity_of(handshake(context, authority, authority.issue("device-7")), "cn") == "device-7"
    with pytest.raises(ssl.SSLError, match=r"(?i)peer did not return a certificate"):
        handshake(context, authority)


@pytest.mark.parametrize("certificates", ["optional", "required"])
def test_others_vouch_for_nobody(tls, authority, tmp_path, certificates):
    context = tls(certificates).context([])
    with pytest.raises(ssl.SSLError, match=r"(?i)verify failed"):
        handshake(context, authority, Authority(tmp_path / "other", "other").issue("device-7"))
    with pytest.raises(ssl.SSLError, match=r"(?i)verify failed"):
        handshake(context, authority, authority.issue("a-server", server=True))


def test_a_revoked_certificate_is_refused_and_lists_are_read_again(tls, authority):
    good, bad = authority.issue("good"), authority.issue("bad")
    subject = tls(client_crl_file=authority.revoke(bad))
    context = subject.context([])
    assert identity_of(handshake(context, authority, good), "cn") == "good"
    with pytest.raises(ssl.SSLError, match=r"(?i)revoked"):
        handshake(context, authority, bad)
    authority.revoke(good, bad, after_s=60)
    assert handshake(context, authority, good), "nobody has looked yet"
    subject.look()
    for one in (good, bad):
        with pytest.raises(ssl.SSLError, match=r"(?i)revoked"):
            handshake(context, authority, one)


def test_a_list_that_could_not_be_read_once_is_read_when_it_can_be(tls, authority, monkeypatch):
    """A file whose mode is set right later does not change otherwise: it was never read."""
    good, bad = authority.issue("good"), authority.issue("bad")
    subject = tls(client_crl_file=authority.revoke(good))
    context = subject.context([])
    authority.revoke(good, bad, after_s=60)

    def fails(_context):
        raise ConfigError("tls.client_crl_file: Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(subject, "_load_revoked", fails)
        subject.look()
    assert handshake(context, authority, bad)
    subject.look()
    with pytest.raises(ssl.SSLError, match=r"(?i)revoked"):
        handshake(context, authority, bad)


def test_our_own_certificate_may_be_renewed(tls, authority, own, tmp_path):
    subject = tls("off")
    context = subject.context([])

    def shown():
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = context.wrap_bio(to_server, to_client, server_side=True)
        trust = ssl.create_default_context(cafile=authority.file)
        peer = trust.wrap_bio(to_client, to_server, server_hostname="localhost")
        for _ in range(3):
            for side in (peer, server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        return int(peer.getpeercert()["serialNumber"], 16)

    assert shown() == own.certificate.serial_number
    renewed = authority.issue("gateway", x509.DNSName("localhost"), server=True)  # in the same files
    subject.look()
    assert shown() == renewed.certificate.serial_number
    kept = renewed.cert_file.read_bytes()
    renewed.cert_file.write_bytes(b"half writ")
    subject.look()
    assert shown() == renewed.certificate.serial_number
    renewed.cert_file.write_bytes(kept)


@pytest.mark.parametrize("key", ["cert_file", "client_ca_file", "client_crl_file"])
def test_a_file_that_cannot_be_used(authority, own, tmp_path, key):
    (tmp_path / "none.pem").write_text("none")
    said = {"cert_file": own.cert_file, "key_file": own.key_file, "client_ca_file": authority.file}
    config = TlsConfig(**{**said, key: tmp_path / "none.pem"}, client_certificates="required")
    with pytest.raises(ConfigError, match=rf"tls\.{key}: .*cannot be used: it is not PEM, or ") as refused:
        ServerTls(config).context([])
    assert "_ssl" not in str(refused.value), "which are the words of Python's code"


def test_a_key_of_another_certificate_is_said(authority, own):
    other = authority.issue("other", x509.DNSName("localhost"), server=True)
    config = TlsConfig(cert_file=own.cert_file, key_file=other.key_file)
    with pytest.raises(ConfigError, match=r"cannot be used: tls\.key_file is the key of another certificate"):
        ServerTls(config).context([])


def test_a_certificate_that_cannot_be_read_names_nobody():
    """A name that is not ASCII ended the connection with an error in the log."""

    class Unreadable:
        def getpeercert(self):
            raise UnicodeDecodeError("ascii", b"\xff", 0, 1, "ordinal not in range(128)")

    assert peer_certificate(Unreadable()) is None
