"""Certificates of a test cluster: one authority, and what it signs, valid for a day.

Elliptic-curve keys, because a control plane starts with a handful of them and RSA keys would take longer to find than
everything else here.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = timedelta(days=1)
_CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A private key and its certificate, as PEM files."""

    key: Path
    certificate: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority; it signs servers and clients into its folder."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, folder: Path) -> Authority:
        """A new authority, whose certificate is `ca.crt` in the folder."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("shoal-test-ca")
        certificate = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_signs_certificates(), critical=True)
            .sign(key, hashes.SHA256())
        )
        authority = cls(folder=folder, key=key, certificate=certificate)
        authority.certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return authority

    @property
    def certificate_file(self) -> Path:
        """The authority's certificate: what clients trust."""
        return self.folder / "ca.crt"

    def server(self, name: str, *, dns: tuple[str, ...], addresses: tuple[str, ...]) -> KeyPair:
        """A server's certificate for its names and addresses."""
        names = [x509.DNSName(each) for each in dns]
        numbers = [x509.IPAddress(ipaddress.ip_address(each)) for each in addresses]
        return self._sign(_name(name), name, x509.SubjectAlternativeName([*names, *numbers]))

    def client(self, user: str, *, groups: tuple[str, ...] = ()) -> KeyPair:
        """A client's certificate: Kubernetes reads the user from its CN and the groups from its O."""
        return self._sign(_name(user, groups), user.replace(":", "-"), None)

    def _sign(self, subject: x509.Name, file_name: str, names: x509.SubjectAlternativeName | None) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        # Python 3.13 is as strict as RFC 5280: without its signer's key identifier it takes no certificate.
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = (
            _builder(subject, self.certificate.subject, key.public_key())
            .add_extension(usage, critical=False)
            .add_extension(signer, critical=False)
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        pair = KeyPair(key=self.folder / f"{file_name}.key", certificate=self.folder / f"{file_name}.crt")
        write_private_key(key, pair.key)
        pair.certificate.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return pair


def signing_keys(folder: Path) -> tuple[Path, Path]:
    """The private and the public key that service account tokens are signed and checked with."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / "service-accounts.key", folder / "service-accounts.pub"
    write_private_key(key, private)
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def write_private_key(key: ec.EllipticCurvePrivateKey, path: Path) -> None:
    """Write a private key that only its owner can read."""
    path.touch(mode=0o600)
    # The traditional form ("EC PRIVATE KEY") is the one that Kubernetes accepts for service account keys everywhere.
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )


def _name(common_name: str, organisations: tuple[str, ...] = ()) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organisations]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _signs_certificates() -> x509.KeyUsage:
    """What the key of an authority is for."""
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
