"""Certificates for tests: a CA, what it signs, and what it revokes."""

import datetime
import ipaddress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from store.rpc.credentials import CredentialFiles

DAY = datetime.timedelta(days=1)


class Authority:
    """A CA whose files are in a directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.now = datetime.datetime.now(datetime.UTC)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        usage = dict.fromkeys(("digital_signature", "content_commitment", "key_encipherment"), False)
        usage |= dict.fromkeys(("data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False)
        builder = self._builder(self.name, self.key.public_key()).add_extension(constraints, critical=True)
        builder = builder.add_extension(x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True), critical=True)
        self.certificate = builder.sign(self.key, hashes.SHA256())
        self.file = self._write(f"{name}.pem", self.certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: Any) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder(subject_name=subject, issuer_name=self.name, public_key=key)
        builder = builder.not_valid_before(self.now - DAY).not_valid_after(self.now + DAY)
        return builder.serial_number(x509.random_serial_number())

    def _write(self, name: str, data: bytes) -> Path:
        file = self.directory / name
        new = file.with_suffix(".new")
        new.write_bytes(data)
        new.replace(file)
        return file

    def issue(self, name: str, *alternatives: x509.GeneralName, server: bool = False) -> "Issued":
        """Returns a certificate for a common name, of a client or of a server."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = self._builder(subject, key.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        cert_file = self._write(f"{name}.crt.pem", certificate.public_bytes(serialization.Encoding.PEM))
        return Issued(certificate, cert_file, self._write(f"{name}.key.pem", private))

    def revoke(self, *issued: "Issued", after_s: int = 0) -> Path:
        """Returns the list of revoked certificates, as of some seconds later."""
        at = self.now + datetime.timedelta(seconds=after_s)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.name).last_update(at - DAY)
        builder = builder.next_update(at + DAY)
        for one in issued:
            revoked = x509.RevokedCertificateBuilder().serial_number(one.certificate.serial_number)
            builder = builder.add_revoked_certificate(revoked.revocation_date(self.now).build())
        revoked_list = builder.sign(self.key, hashes.SHA256())
        return self._write("revoked.pem", revoked_list.public_bytes(serialization.Encoding.PEM))


class Issued:
    """A certificate and its files."""

    def __init__(self, certificate: x509.Certificate, cert_file: Path, key_file: Path) -> None:
        self.certificate = certificate
        self.cert_file = cert_file
        self.key_file = key_file


def node_files(
    authority: Authority,
    *names: str,
    days: tuple[int, int] = (-1, 1),
    ca_file: Path | None = None,
    key: CertificateIssuerPrivateKeyTypes | None = None,
) -> CredentialFiles:
    """Returns the files of a node's certificate for these names and addresses, of no certain purpose."""
    key = ec.generate_private_key(ec.SECP256R1()) if key is None else key
    begin, end = (authority.now + datetime.timedelta(days=day) for day in days)
    builder = x509.CertificateBuilder(
        subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")]),
        issuer_name=authority.name,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=begin,
        not_valid_after=end,
    ).add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
    made = builder.sign(authority.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    files = authority.directory / "node.pem", authority.directory / "node.key"
    for file, data in zip(files, (made, private), strict=True):
        file.write_bytes(data)
    return CredentialFiles(*files, ca_file or authority.file)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
